"""Zarr hierarchies as stores, with their options: compression, units, and where a bucket is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import LogValueError
from ...loggers._protocol.paths import UrlPath
from .._store.contract import Agree
from .._store.damage import raises_storage_errors
from .._store.lock import Lock
from .._store.structures import Json
from .._store.tables import TableSpec
from ._lease import Lease
from ._nodes import codecs
from ._pieces import PieceWriter
from ._place import Place, place_of
from ._reader import ZarrReader
from ._state import StateReader
from ._writer import ZarrWriter

DEFAULT = "blosc"  # Zarr's own specification has it, and it is fast.


def at_once(table: str, rows: int, commit: Callable[[int], None]) -> None:
    """Commit rows: there are no other processes."""
    del table
    commit(rows)


class ZarrBackend:
    """Keeps a store in a Zarr hierarchy. `ZarrStorageWriter` documents the options."""

    packages = ("tensorstore",)
    batch_bytes = 32 << 20  # Chunks are written at the same time, and synced: let there be many.

    def __init__(
        self,
        compression: str | None = DEFAULT,
        units: Mapping[str, str] | None = None,
        endpoint: str | None = None,
    ) -> None:
        codecs(compression, 1)  # Refuses what is not known.
        self._compression, self._units, self._endpoint = compression, dict(units or {}), endpoint
        self._agree: Agree = at_once
        # Where a bucket is may change, and one who reads this has found it already.
        self.options: Json = {"compression": compression, "units": self._units}

    @property
    def in_pieces(self) -> ZarrBackend:
        """It takes rows in pieces."""
        return self

    def wait_with(self, agree: Agree) -> None:
        """Have other processes write their pieces before rows count: see `_pieces.py`."""
        self._agree = agree

    def piece_writer(self, path: Path, table: str) -> PieceWriter:
        """Write pieces of the rows of a table of a store that another process has made."""
        return PieceWriter(self._place(path), path, table)

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Refuse units that fit no table."""
        unknown = self._units.keys() - {name for table in tables for name, _ in table.columns}
        if unknown:
            raise LogValueError(f"`units` has {min(unknown)!r}, but no view returns that.")

    def place(self, path: Path, writer: str) -> Path:
        """Make sure that a store can be written at a path; return it without links."""
        path = path if isinstance(path, UrlPath) else path.expanduser()
        self._place(path).prepare(writer)
        return path.resolve()

    def exists(self, path: Path) -> bool:
        """Whether there is a store at a path."""
        try:
            return StateReader(self._place(path), path).find() is not None
        except ValueError:  # There is something else.
            return True

    def lock(self, path: Path) -> Lock | Lease:
        """The lock of a path, or the lease of a prefix in a bucket."""
        return self._place(path).lock()

    @raises_storage_errors
    def last_written(self, path: Path) -> float:
        """When a store was last written, in seconds since 1970."""
        return float(StateReader(self._place(path), path).read()["written"])

    def remove(self, path: Path) -> None:
        """Remove a store."""
        self._place(path).remove()

    def create(
        self, path: Path, meta: Json, tables: Sequence[TableSpec], expected_rows: int | None
    ) -> ZarrWriter:
        """Make a store."""
        writer = self._writer(path, meta, expected_rows)
        writer.create(tables)
        return writer

    def resume(
        self,
        path: Path,
        meta: Json,
        tables: Sequence[TableSpec],
        expected_rows: int | None,
        *,
        rows: Mapping[str, int] | None,
        steps_run: int,
    ) -> ZarrWriter:
        """Continue a store where it is."""
        old = self.open(path)
        if rows is None:
            rows = {spec.name: old.table(spec.name).row_count() for spec in tables}
        writer = self._writer(path, meta, expected_rows)
        writer.resume(tables, rows, steps_run)
        return writer

    def open(self, path: Path) -> ZarrReader:
        """Open a store for reading."""
        return ZarrReader(self._place(path), path)

    def _place(self, path: Path) -> Place:
        return place_of(path, self._endpoint)

    def _writer(self, path: Path, meta: Json, expected_rows: int | None) -> ZarrWriter:
        place, options = self._place(path), (expected_rows, self._compression, self._units)
        return ZarrWriter(place, path, meta, options, self._agree)
