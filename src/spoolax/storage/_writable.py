"""Stores that are open for writing: at a path that is locked, with columns of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import LogFileError, LogTypeError, LogValueError, StorageError
from ..loggers._protocol.paths import StrPath, writable
from ._reader import StorageReader
from ._store.contract import Backend, Status, StoreWriter
from ._store.lock import Lock
from ._store.metadata import resumed_metadata
from ._store.tables import TableSpec
from ._store.trees import Json


def check_mode(mode: str, or_else: str = "") -> None:
    """Refuse unknown modes."""
    if mode not in ("x", "w"):
        raise LogValueError(f"`mode={mode!r}` is not known: use 'x' or 'w'{or_else}.")


def check_resume(mode: str, resume: Any) -> int | bool:
    """Refuse unknown modes; return after which step to resume, or True (the last one) or False."""
    check_mode(mode, ", or `resume=True`")
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
        raise LogValueError("`mode='w'` replaces the file, and `resume` continues it: use one.")
    return resume  # type: ignore[no-any-return]


class WritableStore:
    """A store that this process writes. It holds the lock of the path until it is closed.

    Args:
        backend: What the store is kept in.
        path: Where it is.
        tables: Returns the tables to write, given the store to resume, if there is one. It raises
            an error if that store cannot be resumed.
        meta: The metadata of the run.
        writer: What to call the writer in errors.
        mode: "x" refuses a path that exists, "w" replaces it.
        resume: After which step to continue a store that exists; True keeps all of it.
        expected_rows: How many rows a table will have, if that is known.
    """

    def __init__(
        self,
        backend: Backend,
        path: StrPath,
        tables: Callable[[StorageReader | None], Sequence[TableSpec]],
        meta: Json,
        *,
        writer: str,
        mode: str = "x",
        resume: bool | int = False,
        expected_rows: int | None = None,
    ) -> None:
        # Resolved now: links and changes of the working directory must not lead elsewhere later.
        self.path = writable(path, writer).resolve()
        self._lock = Lock(self.path)
        self._lock.acquire()
        self.steps_run = 0
        try:
            if resume is not False and self.path.exists():
                self._store = self._resume(backend, tables, meta, resume, expected_rows)
            elif mode == "x" and self.path.exists():
                way_out = "" if writer == "spoolax.save" else ", or `resume=True` to continue it"
                raise LogFileError(
                    f"{str(self.path)!r} exists, and is left as it is. Choose another name, or "
                    f"`mode='w'` to replace it{way_out}."
                )
            else:
                specs = list(tables(None))
                self._store = backend.create(self.path, meta, specs, expected_rows)
                self.tables = {spec.name: spec for spec in specs}
        except BaseException:
            self._lock.release()
            raise

    def _resume(
        self,
        backend: Backend,
        tables: Callable[[StorageReader | None], Sequence[TableSpec]],
        meta: Json,
        resume: bool | int,
        expected_rows: int | None,
    ) -> StoreWriter:
        last_step = None if resume is True else int(resume)
        with StorageReader(self.path, backend=backend) as old:
            specs = list(tables(old))
            self.steps_run = old.steps_run
            meta = resumed_metadata(old.meta, meta)
        if last_step is not None:
            self.steps_run = min(self.steps_run, last_step + 1)
        self.tables = {spec.name: spec for spec in specs}
        return backend.resume(
            self.path, meta, specs, expected_rows, last_step=last_step, steps_run=self.steps_run
        )

    def row_count(self, table: str) -> int:
        """How many rows a table has."""
        return self._store.row_count(table)

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Add empty tables."""
        self._store.add_tables(tables)
        self.tables |= {spec.name: spec for spec in tables}

    def append(self, table: str, steps: Any, columns: Sequence[Any]) -> None:
        """Append rows and commit them, given an array, or a sequence of rows, for each column."""
        blocks = self.tables[table].encode(columns)
        self._store.append(table, np.asarray(steps, np.int64), blocks)

    def set_steps_run(self, steps: int) -> None:
        """Record how many steps have run."""
        self._store.set_steps_run(steps)
        self.steps_run = steps

    def close(self, status: Status, reason: str = "") -> None:
        """Record how the run ended, close the store, and release its lock."""
        try:
            self._store.close(status, reason)
        finally:
            self._lock.release()


def check_same_tables(old: StorageReader, tables: Sequence[TableSpec]) -> None:
    """Refuse to resume a store that has other tables."""
    if sorted(old.groups) != sorted(table.name for table in tables):
        raise StorageError(
            f"Cannot resume {str(old.path)!r}: it has the groups "
            f"{', '.join(map(repr, old.groups))}, which are not those of the schema."
        )
    for table in tables:
        stored = old.focus_group(table.name).spec
        ours, theirs = dict(table.columns), dict(stored.columns)
        different = [
            name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)
        ]
        if different or stored.timed != table.timed:
            raise StorageError(
                f"Cannot resume the group {table.name!r}: the file has other arrays than the "
                f"schema ({', '.join(different) or 'with or without time'}). Write to another "
                "file."
            )
