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

import numpy as np

from ..errors import LogFileError, LogTypeError, LogValueError
from ..loggers._protocol.paths import StrPath, writable
from ._file import RESERVE, create, reserve, room_for, trim
from ._heal import copy_rows, replace
from ._lock import Lock
from ._meta import resumed
from ._reader import HDF5StorageReader
from ._table import Form, Table
from ._tree import Json


def check_mode(mode: str, resume: Any = False) -> int | bool:
    """Refuse modes that are not known; return where to go on: True, False, or a step."""
    if mode not in ("x", "w"):
        raise LogValueError(f"`mode={mode!r}` is not known: use 'x' or 'w', or `resume=True`.")
    if isinstance(resume, (bool, np.bool_)):
        resume = bool(resume)
    elif isinstance(resume, (int, np.integer)):
        resume = int(resume)
    else:
        raise LogTypeError(
            f"`resume` is True, False, or the last step to keep, not {resume!r} (of type "
            f"{type(resume).__name__})."
        )
    if mode == "w" and resume is not False:
        raise LogValueError("`mode='w'` replaces the file, and `resume` goes on with it: use one.")
    return resume  # type: ignore[no-any-return]


@contextlib.contextmanager
def claimed(path: StrPath, mode: str, resume: bool, writer: str) -> Iterator[tuple[Path, Lock]]:
    """Take possession of a path: see that it can be written, by nobody else, and is free.

    It is given back if something goes wrong in the block, and else when the book is closed.
    """
    # Wherever it is, by its own name: links and other directories must not lead elsewhere.
    path = writable(path, writer).resolve()
    lock = Lock(path)
    lock.acquire()
    try:
        if path.exists() and not resume and mode == "x":
            goes_on = "" if writer == "spoolax.save" else ", or `resume=True` to go on with it"
            raise LogFileError(
                f"{str(path)!r} exists, and nothing in it is lost. Choose another name, or "
                f"`mode='w'` to replace it{goes_on}."
            )
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
        self._draft = path.with_name(f".{path.name}.draft")
        self._where = path  # What is being written: it, or a draft of it.
        self._file: Any = None
        self.forms: dict[str, Form] = {}
        self.tables: dict[str, Table] = {}
        self.ran = 0
        self._budget = 0

    def open(self, forms: Sequence[Form]) -> None:
        """Make the file, in the place of one that is there."""
        self._make(forms)

    def resume(self, forms: Sequence[Form], after: int | bool) -> None:
        """Go on with a file that is there, after a step, or (True) after all that is in it."""
        last = None if after is True else int(after)
        with HDF5StorageReader(self.path) as old:
            self.ran = old.steps_run if last is None else min(old.steps_run, last + 1)
            self._meta = resumed(old.meta, self._meta)
            self._make(forms, old, last)

    def add(self, forms: Sequence[Form]) -> None:
        """Add tables."""
        self._file.close()
        with HDF5StorageReader(self.path) as old:
            self._make([*self.forms.values(), *forms], old)

    def _make(
        self,
        forms: Sequence[Form],
        old: HDF5StorageReader | None = None,
        last: int | None = None,
    ) -> None:
        """Make a new file, of the rows of an old one if there is one, and put it in its place."""
        self._draft.unlink(missing_ok=True)  # Of an attempt that was interrupted.
        self._where, self._budget = self._draft, 0
        try:
            self._create(forms)
            if old is not None:
                copy_rows(old, [self.tables[name] for name in old.groups], last, self._append)
            self._file.flush()
            self._file.swmr_mode = True  # Before anybody can see it.
            replace(self._draft, self.path)
        except BaseException:
            if self._file:
                self._file.close()
            self._draft.unlink(missing_ok=True)
            raise
        self._where, self._identity = self.path, os.stat(self.path)

    def append(self, name: str, steps: Any, columns: Sequence[Any]) -> None:
        """Append rows to a table, given the arrays of each column."""
        self._check_there()
        table = self.tables[name]
        self._append(table, steps, table.raw(columns))

    def _append(self, table: Table, steps: Any, blocks: Sequence[Any]) -> None:
        self._reserve(table.size_of(len(steps)))
        table.append(steps, blocks)

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

    def _create(self, forms: Sequence[Form]) -> None:
        room_for(self._draft, RESERVE)
        schema = {"kind": "dict", "children": [[f.name, {"leaf": f.name}] for f in forms]}
        self._file = create(self._draft, {"schema": schema, **self._meta})
        reserve(self._draft, sum(form.room(self._options) for form in forms) + RESERVE)
        for form in forms:
            Table.create(self._file, form, self._expected, self._options)
        if self._finish is not None:
            self._finish(self._file, forms)
        self._file.flush()
        self.forms = {form.name: form for form in forms}
        self.tables = {form.name: Table(self._file, form) for form in forms}
        self._status = [self._file[name] for name in ("_status", "_end", "_ran")]
        self._status[2][()] = self.ran

    def _reserve(self, size: int) -> None:
        if self._budget < size:
            reserve(self._where, size)
            self._budget += size
        self._budget -= size - RESERVE

    def _check_there(self) -> None:
        try:
            there = os.path.samestat(os.stat(self.path), self._identity)
        except OSError:
            there = False
        if not there:
            raise LogFileError(f"{str(self.path)!r} has been removed while it was being written.")
