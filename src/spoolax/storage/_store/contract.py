"""What a backend does. HDF5 files are one, Zarr hierarchies another; to add one, write these
classes in a folder.

A store is a path that holds tables, metadata (JSON), a status, and how many steps have run. A table
has rows of columns, each row with a step. Rows are appended and never change.

Any process may read a store while one process writes it, and the writer may die at any moment. So:

- Rows count once they are committed: all columns of a row, or nothing of it.
- What is committed stays readable, while the store is written and after its writer has died.

Backends never see views or pytrees: columns are arrays of numbers that NumPy knows (`dtypes.py`).
Nor do they take locks: they say where the lock of a path is, and their caller holds it. Those that
keep a store in one file share what there is to say about that (`files.py`).
`spoolax.testing.StoreContract` tests all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from .pieces import Pieces
from .structures import Json
from .tables import TableSpec

Array = np.ndarray[Any, Any]
# The rows of a column: stacked, or one by one if they are large.
Block = Array | Sequence[Array | Pieces]
Status = Literal["running", "finished", "failed", "interrupted", "crashed"]


class Backend(Protocol):
    """A way to keep stores, with its options."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that it uses, whose versions are worth recording."""

    @property
    def options(self) -> Json:
        """Its options by name, which are kept in the metadata, to make another one like it."""

    @property
    def batch_bytes(self) -> int:
        """How much is worth being appended at once."""

    @property
    def in_pieces(self) -> InPieces | None:
        """What it does with rows in pieces (`pieces.py`). If None, they are put together before."""

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Raise an error if it cannot keep these tables, before anything is made."""

    def place(self, path: Path, writer: str) -> Path:
        """Make sure that a store can be written at a path; return it without links.

        `writer` is what to call the writer in errors.
        """

    def exists(self, path: Path) -> bool:
        """Whether there is something at a path."""

    def lock(self, path: Path) -> WriterLock:
        """The lock of a path, which its writer holds."""

    def last_written(self, path: Path) -> float:
        """When a store was last written, in seconds since 1970."""

    def remove(self, path: Path) -> None:
        """Remove a store."""

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
        rows: Mapping[str, int] | None,
        steps_run: int,
    ) -> StoreWriter:
        """Continue a store whose writer has ended, however it ended, with new metadata.

        Of each table that there was, as many rows remain as `rows` says; None keeps all. A table
        may have its columns in another order than before.
        """

    def open(self, path: Path) -> StoreReader:
        """Open a store for reading. If it is damaged, a `StorageError` says so."""


Agree: TypeAlias = Callable[[str, int, Callable[[int], None]], None]


class InPieces(Protocol):
    """A backend whose stores several processes may write, each of them its own pieces of rows."""

    def wait_with(self, agree: Agree) -> None:
        """Have `agree(table, rows, commit)` called before so many rows of a table count.

        It calls `commit` with the number of rows that all processes have written.
        """

    def piece_writer(self, path: Path, table: str) -> WritesPieces:
        """Write pieces of the rows of a table of a store that another process has made."""


class WritesPieces(Protocol):
    """Writes pieces of rows of a table."""

    def begin(self, rows: Mapping[str, list[Pieces]], first: int) -> Begun:
        """Begin to write pieces of rows after the `first` ones, by column."""

    def close(self) -> None:
        """Wait until nothing is being written any more."""


class Begun(Protocol):
    """Rows that are being written."""

    def wait(self) -> None:
        """Wait for that. Raises an error if they could not be written."""


class WriterLock(Protocol):
    """What keeps a second writer away from a path. `lock.py` has the one of local paths."""

    def acquire(self) -> None:
        """Take the lock, or raise an error that says who holds it."""

    def release(self) -> None:
        """Release the lock, if it is held."""

    def is_held(self) -> bool:
        """Whether any process holds the lock."""


class StoreWriter(Protocol):
    """A store that is being written, by one thread at a time."""

    def row_count(self, table: str) -> int:
        """How many rows of a table are committed."""

    def begin(
        self,
        table: str,
        steps: Array,
        columns: Sequence[Block],
        written: Callable[[], None],
    ) -> Begun | None:
        """Begin to append rows. There is a block for each of the table's stored columns.

        Blocks must not change before `written` is called. Returns None if the rows count already;
        or else they do not before they are committed, and more may have begun by then.
        """

    def commit(self, steps_run: int) -> None:
        """Wait until all rows are written, and commit them, with how many steps have run."""

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Add empty tables. Readers may have to open the store again to see them."""

    def close(self, status: Status, reason: str = "", end: float | None = None) -> None:
        """Record how the run ended, why, and when (None: now), and close the store.

        Rows that have begun, but were not committed, do not count.
        """


class StoreReader(Protocol):
    """A store that is open for reading, possibly while it is written."""

    @property
    def meta(self) -> Json:
        """Its metadata. `meta["schema"]` is a tree whose leaves are the names of the tables."""

    def status(self) -> Status:
        """What its writer recorded last. One that died never records that it has ended."""

    def reason(self) -> str:
        """Why the run ended, if that was recorded; it may be cut off."""

    def end(self) -> float:
        """When the run ended, in seconds since 1970. NaN if that was not recorded."""

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
