"""A file to which tables can be added while it is being written.

In the mode that survives crashes nothing can be created, so a new table means a new file: what
there is is copied, and the new file takes the place of the old one. Tables mostly appear at the
beginning of a run, when there is little to copy.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import LogFileError, LogValueError
from ..loggers._paths import StrPath, writable
from ._file import RESERVE, create, reserve, trim
from ._heal import copy_rows, replace
from ._lock import Lock
from ._reader import HDF5StorageReader
from ._table import Form, Table
from ._tree import Json


def check_mode(mode: str) -> None:
    """Refuse a mode that is not known."""
    if mode not in ("x", "w"):
        raise LogValueError(f"`mode={mode!r}` is not known: use 'x' or 'w', or `resume=True`.")


@contextlib.contextmanager
def claimed(path: StrPath, mode: str, resume: bool, writer: str) -> Iterator[tuple[Path, Lock]]:
    """Take possession of a path: see that it can be written, by nobody else, and is free.

    It is given back if something goes wrong in the block, and else when the book is closed.
    """
    path = writable(path, writer)
    lock = Lock(path)
    lock.acquire()
    try:
        if path.exists() and not resume:
            if mode == "x":
                raise LogFileError(
                    f"{str(path)!r} exists, and nothing in it is lost. Choose another name, "
                    "`mode='w'` to replace it, or `resume=True` to go on with it."
                )
            path.unlink()
        yield path, lock
    except BaseException:
        lock.release()
        raise


class Book:
    """An open file, its tables by name, and how much of it is reserved."""

    def __init__(
        self,
        path: Path,
        lock: Lock,
        meta: Json,
        expected: int | None = None,
        options: dict[str, Any] | None = None,
        finish: Callable[[Any, Sequence[Form]], None] | None = None,
    ) -> None:
        self.path, self._lock, self._meta = path, lock, meta
        self._expected, self._options = expected, options or {}
        self._finish = finish  # Adds something to a new file.
        self._file: Any = None
        self.forms: dict[str, Form] = {}
        self.tables: dict[str, Table] = {}
        self.ran = 0
        self._budget = 0

    def open(self, forms: Sequence[Form]) -> None:
        """Make the file."""
        self._create(self.path, forms)
        self._start()

    def resume(self, forms: Sequence[Form], last: int | None) -> None:
        """Go on with a file that is there, after a step, or after all that is in it."""
        ran = self._rewrite(forms, last)
        self.ran = ran if last is None else last + 1

    def add(self, forms: Sequence[Form]) -> None:
        """Add tables."""
        self._file.close()
        self._rewrite([*self.forms.values(), *forms], None)

    def _rewrite(self, forms: Sequence[Form], last: int | None) -> int:
        """Make a new file of the rows of the old one, and put it in its place.

        Returns how many steps had run.
        """
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.unlink(missing_ok=True)  # Of an attempt that was interrupted.
        with HDF5StorageReader(self.path) as old:
            self._create(draft, forms)
            copy_rows(old, [self.tables[name] for name in old.groups], last)
            ran = old.steps_run
        self._file.flush()
        replace(draft, self.path)
        self._start()
        return ran

    def append(self, name: str, steps: Any, columns: Sequence[Any]) -> None:
        """Append rows to a table, given the arrays of each column."""
        self._check_there()
        table = self.tables[name]
        self._reserve(table.size_of(len(steps)))
        table.append(steps, columns)

    def note(self, ran: int) -> None:
        """Say how many steps have run."""
        self.ran = ran
        self._status[2][()] = ran
        self._status[2].flush()

    def close(self, status: int) -> None:
        """Say how the run ended, and close the file."""
        try:
            for table in self.tables.values():
                table.finish()
            for dataset, value in zip(self._status, (status, time.time(), self.ran), strict=True):
                dataset[()] = value
                dataset.flush()
        finally:
            self._file.close()
            if self.path.exists():
                trim(self.path)
            self._lock.release()

    def _create(self, path: Path, forms: Sequence[Form]) -> None:
        reserve_for_new(path, RESERVE)
        schema = {"kind": "dict", "children": [[f.name, {"leaf": f.name}] for f in forms]}
        self._file = create(path, {"schema": schema, **self._meta})
        for form in forms:
            Table.create(self._file, form, self._expected, self._options)
        if self._finish is not None:
            self._finish(self._file, forms)
        self._file.flush()
        self.forms = {form.name: form for form in forms}
        self.tables = {form.name: Table(self._file, form) for form in forms}
        self._status = [self._file[name] for name in ("_status", "_end", "_ran")]
        self._status[2][()] = self.ran

    def _start(self) -> None:
        self._file.swmr_mode = True
        self._identity = os.stat(self.path)
        self._budget = 0

    def _reserve(self, size: int) -> None:
        if self._budget < size:
            reserve(self.path, size)
            self._budget += size
        self._budget -= size - RESERVE

    def _check_there(self) -> None:
        try:
            there = os.path.samestat(os.stat(self.path), self._identity)
        except OSError:
            there = False
        if not there:
            raise LogFileError(f"{str(self.path)!r} has been removed while it was being written.")


def reserve_for_new(path: Path, size: int) -> None:
    """See that there is room for a new file at all."""
    stat = os.statvfs(path.parent)
    if stat.f_bavail * stat.f_frsize < size:
        raise LogFileError(f"There is no room for {str(path)!r}: the disk is full.")
