"""Stores that are open for writing: at a path that is locked, with columns of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import LogTypeError, LogValueError, StorageError
from ..loggers._protocol.paths import StrPath, as_path, check_free, check_mode
from ._group import GroupReader
from ._reader import StorageReader
from ._store.contract import Backend, Begun, Status, StoreWriter
from ._store.metadata import resumed_metadata
from ._store.structures import Json
from ._store.tables import TableSpec


class Position(NamedTuple):
    """How far a store of entries had been written at some moment.

    With a `step`, entries up to that step count as well, though they were written later.
    """

    entries: int
    steps_run: int
    step: int | None = None


# Where to go on: after everything, after a step, or after so many entries. False: do not.
Resume: TypeAlias = bool | int | Position


def check_resume(mode: str, resume: Any) -> Resume:
    """Refuse unknown modes; return after what to resume."""
    check_mode(mode, or_else=", or `resume=True` to continue it")
    if isinstance(resume, Position):
        return resume
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
        resume: After what to continue a store that exists; True keeps all of it.
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
        resume: Resume = False,
        expected_rows: int | None = None,
    ) -> None:
        # Resolved now: links and changes of the working directory must not lead elsewhere later.
        self.path = backend.place(as_path(path), writer)
        self._lock = backend.lock(self.path)
        self._lock.acquire()
        self.steps_run, self._takes_pieces = 0, backend.in_pieces is not None
        meta = {**meta, "storage": backend.options}
        try:
            is_there = backend.exists(self.path)
            if resume is not False and is_there:
                self._store = self._resume(backend, tables, meta, resume, expected_rows)
            else:
                way_out = "" if writer == "spoolax.save" else ", or `resume=True` to continue it"
                check_free(self.path, mode, or_else=way_out, exists=is_there)
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
        resume: Resume,
        expected_rows: int | None,
    ) -> StoreWriter:
        rows = None
        with StorageReader(self.path, backend=backend) as old:
            specs = list(tables(old))
            self.steps_run = old.steps_run
            meta = resumed_metadata(old.meta, meta)
            if resume is not True:
                groups = map(old.focus_group, old.groups)
                rows = {group.name: _rows_until(group, resume) for group in groups}
        if resume is not True:
            run = resume.steps_run if isinstance(resume, Position) else resume + 1
            self.steps_run = min(self.steps_run, run)
        self.tables = {spec.name: spec for spec in specs}
        return backend.resume(
            self.path, meta, specs, expected_rows, rows=rows, steps_run=self.steps_run
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
        if self.begin(table, steps, columns) is not None:
            self.commit(self.steps_run)

    def begin(
        self,
        table: str,
        steps: Any,
        columns: Sequence[Any],
        written: Callable[[], None] = lambda: None,
    ) -> Begun | None:
        """Begin to do so, and call `written` when that is done. Returns None if they count."""
        blocks = self.tables[table].encode(columns, self._takes_pieces)
        return self._store.begin(table, np.asarray(steps, np.int64), blocks, written)

    def commit(self, steps_run: int) -> None:
        """Commit all rows, and how many steps have run."""
        self._store.commit(steps_run)
        self.steps_run = steps_run

    def close(self, status: Status, reason: str = "", end: float | None = None) -> None:
        """Record how the run ended, close the store, and release its lock."""
        try:
            self._store.close(status, reason, end)
        finally:
            self._lock.release()


def _rows_until(group: GroupReader, resume: Position | int) -> int:
    """How many rows of a group were written until then."""
    last_step = resume.step if isinstance(resume, Position) else resume
    is_after = np.ones(len(group), bool) if last_step is None else group.steps > last_step
    if isinstance(resume, Position):
        is_after &= group["order"][:] >= resume.entries
    return int(np.argmax(is_after)) if is_after.any() else len(group)


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
