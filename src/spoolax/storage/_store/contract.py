"""What a backend does. HDF5 files are one; to add another, write these four classes in a folder.

A store is a path that holds tables, metadata (JSON), a status, and how many steps have run. A table
has rows of columns, each row with a step. Rows are appended and never change.

Any process may read a store while one process writes it, and the writer may die at any moment. So:

- Rows count once they are committed: all columns of a row, or nothing of it.
- What is committed stays readable, while the store is written and after its writer has died.

Backends never see locks, views or pytrees: the caller holds the lock of the path (`lock.py`), and
columns are arrays of numbers that NumPy knows (`dtypes.py`). `spoolax.testing.StoreContract` tests
all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from .tables import TableSpec
from .trees import Json

Array = np.ndarray[Any, Any]
Block = Array | Sequence[Array]  # The rows of a column: stacked, or one by one if they are large.
Status = Literal["running", "finished", "failed", "interrupted"]


class Backend(Protocol):
    """A way to keep stores, with its options."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that it uses, whose versions are worth recording."""

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Raise an error if it cannot keep these tables, before anything is made."""

    def create(
        self, path: Path, meta: Json, tables: Sequence[TableSpec], expected_rows: int | None
    ) -> StoreWriter:
        """Make a store with empty tables.

        Whatever is at the path is replaced in one step, once the new store is complete.
        `expected_rows` is a hint.
        """

    def resume(
        self,
        path: Path,
        meta: Json,
        tables: Sequence[TableSpec],
        expected_rows: int | None,
        *,
        last_step: int | None,
        steps_run: int,
    ) -> StoreWriter:
        """Continue a store whose writer has ended, however it ended, with new metadata.

        In each table, rows from the first one after `last_step` on are dropped; None keeps all. A
        table may have its columns in another order than before.
        """

    def open(self, path: Path) -> StoreReader:
        """Open a store for reading. If it is damaged, a `StorageError` says so."""


class StoreWriter(Protocol):
    """A store that is being written, by one thread at a time."""

    def row_count(self, table: str) -> int:
        """How many rows of a table are committed."""

    def append(self, table: str, steps: Array, columns: Sequence[Block]) -> None:
        """Append rows and commit them. There is a block for each of the table's stored columns."""

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Add empty tables. Readers may have to open the store again to see them."""

    def set_steps_run(self, steps: int) -> None:
        """Record how many steps have run."""

    def close(self, status: Status, reason: str = "") -> None:
        """Record how the run ended, and why, and close the store."""


class StoreReader(Protocol):
    """A store that is open for reading, possibly while it is written."""

    @property
    def meta(self) -> Json:
        """Its metadata. `meta["schema"]` is a tree whose leaves are the names of the tables."""

    def status(self) -> Status:
        """What its writer recorded last. One that died never records that it has ended."""

    def reason(self) -> str:
        """Why the run ended, if that was recorded; it may be cut off."""

    def steps_run(self) -> int:
        """How many steps had run when that was last recorded."""

    def table(self, name: str) -> TableReader:
        """One of its tables."""

    def is_current(self) -> bool:
        """Whether the path still leads to this store, or to one that has taken its place."""

    def close(self) -> None:
        """Close it."""


class TableReader(Protocol):
    """A table of a store that is open for reading. `read` and `steps` take committed rows only."""

    @property
    def spec(self) -> TableSpec:
        """What it looks like."""

    def row_count(self) -> int:
        """How many rows are committed by now."""

    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""

    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a stored column."""
