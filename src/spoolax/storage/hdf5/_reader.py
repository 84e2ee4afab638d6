"""Reading a file, also while it is written, and after its writer has died.

A process opens a file, and each dataset in it, only once, and its readers share them: refreshing a
dataset, as reading one that is written requires, breaks other handles of it in the same process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from ...errors import StorageError
from .._store.contract import Array, Status
from .._store.damage import raises_storage_errors
from .._store.lock import Lock
from .._store.structures import Json, leaf_names
from .._store.tables import TableSpec
from ._column import Column
from ._file import FORMAT, ROWS, STATUS
from ._h5py import get_attribute, h5py
from ._superblock import RepairedFile, is_marked_as_open
from ._validate import check_distinct, find_column, find_object, read_row, read_rows, read_scalar

CACHE_BYTES = 1 << 23  # For chunks of one dataset.
_open_files: weakref.WeakValueDictionary[tuple[int, int], HDF5Reader] = (
    weakref.WeakValueDictionary()
)
_opening = threading.RLock()


def open_reader(path: Path) -> HDF5Reader:
    """Open a file for reading, or share one that this process has open already."""
    with _opening:
        while True:
            reader = _open_files.get(_identity(path)) or HDF5Reader(path)
            if reader.identity == _identity(path):  # Or else it was replaced in between.
                break
        _open_files[reader.identity] = reader
        reader.users += 1
        return reader


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise StorageError(f"There is no file {str(path)!r}.") from error
    return status.st_dev, status.st_ino


class HDF5Reader:
    """A file that is open for reading, until all its users have closed it. Call `open_reader`."""

    @raises_storage_errors
    def __init__(self, path: Path) -> None:
        self._path, self.identity, self.users = path, _identity(path), 0
        if not path.is_file():
            raise StorageError(f"{str(path)!r} is not a file.")
        if not os.access(path, os.R_OK):
            raise StorageError(f"Cannot read {str(path)!r}: Permission denied.")
        if not h5py().is_hdf5(path):
            raise StorageError(f"{str(path)!r} is not an HDF5 file.")
        is_open = is_marked_as_open(path)
        crashed = is_open and not Lock(path).is_held()
        with contextlib.ExitStack() as stack:
            # If nobody writes it, HDF5 must not wait for a writer to complete what is missing.
            file = stack.enter_context(RepairedFile(path)) if crashed else path
            self._file = stack.enter_context(
                h5py().File(
                    file,
                    "r",
                    swmr=is_open and not crashed,
                    libver="latest",
                    rdcc_nbytes=CACHE_BYTES,
                )
            )
            self._read_meta()
            self._stack = stack.pop_all()
        self._tables: dict[str, HDF5TableReader] = {}

    def _read_meta(self) -> None:
        if "spoolax_format" not in self._file.attrs:
            raise StorageError(f"{str(self._path)!r} was not written by spoolax.")
        version = get_attribute(self._file, "spoolax_format")
        if version != FORMAT:
            raise StorageError(
                f"{str(self._path)!r} has format {version}, and this version of spoolax reads "
                f"format {FORMAT}. Install one that knows it."
            )
        self.meta: Json = json.loads(get_attribute(self._file, "meta"))
        self.tables = tuple(leaf_names(self.meta["schema"]))

    @raises_storage_errors
    def status(self) -> Status:
        """What its writer recorded last."""
        return STATUS[int(read_scalar(self._file, "_status"))]

    @raises_storage_errors
    def reason(self) -> str:
        """Why the run ended, if that was recorded."""
        if not self._file.id.links.exists(b"_reason"):  # Files of earlier versions have none.
            return ""
        text = read_scalar(self._file, "_reason")
        if not isinstance(text, bytes):
            raise StorageError("'_reason' is not a text.")
        return text.decode(errors="replace")

    @raises_storage_errors
    def end(self) -> float:
        """When the run ended, in seconds since 1970. NaN if that was not recorded."""
        return float(read_scalar(self._file, "_end"))

    @raises_storage_errors
    def steps_run(self) -> int:
        """How many steps had run when that was last recorded."""
        return int(read_scalar(self._file, "_ran"))

    def table(self, name: str) -> HDF5TableReader:
        """One of its tables."""
        with _opening:
            if name not in self._tables:
                self._tables[name] = HDF5TableReader(self._file, name)
            return self._tables[name]

    def is_current(self) -> bool:
        """Whether the path still leads to this file. If the path is gone, nothing replaced it."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return True
        return self.identity == (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Close it, once for each call of `open_reader`."""
        with _opening:
            self.users -= 1
            if self.users <= 0:
                _open_files.pop(self.identity, None)
                self._tables.clear()
                self._stack.close()


class HDF5TableReader:
    """A table of a file that is open for reading."""

    @raises_storage_errors
    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        described = json.loads(get_attribute(find_object(file, name), "table"))
        self.spec = spec = TableSpec.from_json(name, described)
        self._step_name = str(described["step"])
        self._columns: dict[str, Column] = {
            leaf: find_column(file, name, leaf, column.shape, spec.timed)
            for leaf, column in spec.stored_columns
        }
        check_distinct(list(self._columns.values()))

    @functools.cached_property
    def _steps(self) -> Column:
        return find_column(self._file, self.spec.name, self._step_name, (), True)

    @raises_storage_errors
    def row_count(self) -> int:
        """How many rows are committed by now."""
        return max(0, int(read_scalar(self._file, f"{ROWS}/{self.spec.name}")))

    @raises_storage_errors
    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""
        return read_rows(self._steps, start, stop)

    @raises_storage_errors
    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column."""
        if not self.spec.timed:
            return read_row(self._columns[column])[None][start:stop]
        return read_rows(self._columns[column], start, stop)
