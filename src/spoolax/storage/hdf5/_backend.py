"""HDF5 files as stores, with their options: compression, units, and the layout H5MD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import LogValueError
from .._store.files import InOneFile
from .._store.structures import Json
from .._store.tables import TableSpec
from ._file import RESERVED
from ._h5md import add_h5md, check_h5md
from ._h5py import filters
from ._reader import HDF5Reader, open_reader
from ._writer import HDF5Writer


class HDF5Backend(InOneFile):
    """Keeps a store in an HDF5 file. `HDF5StorageWriter` documents the options."""

    packages = ("h5py",)

    def __init__(
        self,
        compression: str | None = None,
        layout: str | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self._filters = filters(compression)
        self._layout, self._units = layout, dict(units or {})
        self.options: Json = {"compression": compression, "layout": layout, "units": self._units}
        if layout not in (None, "h5md"):
            raise LogValueError(f"`layout={layout!r}` is not known: there is 'h5md', or None.")

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Refuse names that mean something else in a file, and options that fit no table."""
        for table in tables:
            if table.name.split("/")[0] in RESERVED:
                raise LogValueError(
                    f"A group cannot be called {table.name!r}: the file already has that name."
                )
        if self._layout == "h5md":
            check_h5md(tables)
        unknown = self._units.keys() - {name for table in tables for name, _ in table.columns}
        if unknown:
            raise LogValueError(f"`units` has {min(unknown)!r}, but no view returns that.")

    def create(
        self, path: Path, meta: Json, tables: Sequence[TableSpec], expected_rows: int | None
    ) -> HDF5Writer:
        """Make a file."""
        writer = HDF5Writer(path, meta, expected_rows, self._filters, self._annotate)
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
    ) -> HDF5Writer:
        """Continue a file."""
        writer = HDF5Writer(path, meta, expected_rows, self._filters, self._annotate, steps_run)
        writer.resume(tables, rows)
        return writer

    def open(self, path: Path) -> HDF5Reader:
        """Open a file for reading."""
        return open_reader(path)

    def _annotate(self, file: Any, tables: Sequence[TableSpec]) -> None:
        """Add what other programs look for to a new file."""
        for table in tables:
            for column in self._units.keys() & set(file[table.name]):
                # H5MD reads `unit`, netCDF and xarray read `units`.
                file[table.name][column].attrs.update(
                    {"unit": self._units[column], "units": self._units[column]}
                )
        if self._layout == "h5md":
            add_h5md(file, tables)
