"""Writing a file, and replacing it by a copy where HDF5 cannot change it.

While a file is written in the mode that survives crashes, HDF5 can create nothing in it, and a file
whose writer has died cannot be opened for writing at all. So adding tables and resuming mean the
same: committed rows are copied into a new file, which takes the place of the old one in one step.
Tables are mostly added at the beginning of a run, when there is little to copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import LogFileError
from .._store.contract import Status
from .._store.durable import sync
from .._store.metadata import with_schema
from .._store.structures import Json
from .._store.tables import TableSpec
from ._file import REASON_BYTES, RESERVE, STATUS, check_space, create, reserve, trim
from ._h5py import commit_count
from ._reader import HDF5Reader, HDF5TableReader, open_reader
from ._table import Table, initial_size

SCALARS = ("_status", "_reason", "_end", "_ran")
COPY_BYTES = 1 << 24  # Copied at a time.


class HDF5Writer:
    """A file that is being written, its tables, and how much of its reserved space is left."""

    def __init__(
        self,
        path: Path,
        meta: Json,
        expected_rows: int | None,
        filters: dict[str, Any],
        annotate: Callable[[Any, Sequence[TableSpec]], None],
        steps_run: int = 0,
    ) -> None:
        self._path, self._meta, self._steps_run = path, meta, steps_run
        self._expected_rows, self._filters, self._annotate = expected_rows, filters, annotate
        self._draft = path.with_name(f".{path.name}.draft")
        self._open_path = path  # The draft, until it has taken its place.
        self._file: Any = None
        self._specs: list[TableSpec] = []
        self._tables: dict[str, Table] = {}
        self._reserved = 0

    def create(self, tables: Sequence[TableSpec]) -> None:
        """Make a new file."""
        self._rewrite(tables)

    def resume(self, tables: Sequence[TableSpec], rows: Mapping[str, int] | None) -> None:
        """Make a new file that has rows of the old one: of each table so many, or all of them."""
        old = open_reader(self._path)
        try:
            self._rewrite(tables, old, rows)
        finally:
            old.close()

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Make a new file that has more tables than the old one."""
        self._file.close()
        self.resume([*self._specs, *tables], None)

    def row_count(self, table: str) -> int:
        """How many rows of a table are committed."""
        return self._tables[table].rows

    def begin(
        self, table: str, steps: Any, columns: Sequence[Any], written: Callable[[], None]
    ) -> None:
        """Append rows to a table, and commit them."""
        self._check_not_removed()
        self._append(self._tables[table], steps, columns)
        written()

    def commit(self, steps_run: int) -> None:
        """Record how many steps have run. Rows are committed when they are appended."""
        self._steps_run = steps_run
        commit_count(self._scalars["_ran"], steps_run)

    def close(self, status: Status, reason: str = "", end: float | None = None) -> None:
        """Record how the run ended, and close the file."""
        try:
            for table in self._tables.values():
                table.finish()
            self._write_scalar("_reason", _cut(reason))
            self._write_scalar("_status", STATUS.index(status))
            self._write_scalar("_end", time.time() if end is None else end)
            self._write_scalar("_ran", self._steps_run)
        finally:
            self._file.close()
            if self._path.exists():
                trim(self._path)

    def _rewrite(
        self,
        tables: Sequence[TableSpec],
        old: HDF5Reader | None = None,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        """Make a new file, with the rows of an old one if there is one, and put it in place."""
        self._draft.unlink(missing_ok=True)  # Of an attempt that was interrupted.
        self._open_path, self._reserved = self._draft, 0
        try:
            self._create_draft(tables)
            if old is not None:
                for name in old.tables:
                    table = old.table(name)
                    self._copy_rows(table, table.row_count() if rows is None else rows[name])
            self._file.flush()
            self._file.swmr_mode = True  # Before anybody can see it.
            _replace(self._draft, self._path)
        except BaseException:
            if self._file:
                self._file.close()
            self._draft.unlink(missing_ok=True)
            raise
        self._open_path, self._identity = self._path, os.stat(self._path)

    def _create_draft(self, tables: Sequence[TableSpec]) -> None:
        check_space(self._draft, RESERVE)
        self._file = create(self._draft, with_schema(self._meta, tables))
        size = sum(initial_size(table, bool(self._filters)) for table in tables)
        reserve(self._draft, size + RESERVE)
        for table in tables:
            Table.create(self._file, table, self._expected_rows, self._filters)
        self._annotate(self._file, tables)
        self._file.flush()
        self._specs = list(tables)
        self._tables = {table.name: Table(self._file, table) for table in tables}
        self._scalars = {name: self._file[name] for name in SCALARS}
        self._scalars["_ran"][()] = self._steps_run

    def _copy_rows(self, source: HDF5TableReader, count: int) -> None:
        """Copy the first rows of a table into the one of the same name."""
        block = max(1, COPY_BYTES // max(1, source.spec.row_bytes))
        table = self._tables[source.spec.name]
        for start in range(0, count, block):
            stop = min(start + block, count)
            # By name: the old table may have its columns in another order.
            columns = [source.read(name, start, stop) for name, _ in table.spec.stored_columns]
            self._append(table, source.steps(start, stop), columns)

    def _append(self, table: Table, steps: Any, columns: Sequence[Any]) -> None:
        self._reserve(table.growth(len(steps)))
        table.append(steps, columns)

    def _write_scalar(self, name: str, value: Any) -> None:
        self._scalars[name][()] = value
        self._scalars[name].flush()

    def _reserve(self, size: int) -> None:
        if self._reserved < size:
            reserve(self._open_path, size)
            self._reserved += size
        self._reserved -= size - RESERVE

    def _check_not_removed(self) -> None:
        try:
            is_there = os.path.samestat(os.stat(self._path), self._identity)
        except OSError:
            is_there = False
        if not is_there:
            raise LogFileError(f"{str(self._path)!r} has been removed while it was being written.")


def _cut(text: str) -> bytes:
    """A text in UTF-8, without the characters for which there is no room."""
    return text.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore").encode()


def _replace(draft: Path, path: Path) -> None:
    """Put a file in the place of another, durably."""
    if path.exists():
        sync(draft)
    os.replace(draft, path)
