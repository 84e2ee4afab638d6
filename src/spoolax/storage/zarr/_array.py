"""An array that grows by rows, in chunks that hold several of them.

The chunk at the end is written anew whenever rows of it are committed, from a copy in memory, so
nothing has to be read for that. It replaces the one before in one step, and has the same rows and
more, so it makes no difference to readers, or in a crash, which of them is there.

Arrays are opened as if they had no end: their documents say how many rows there are, for other
programs, but which of them count is in the state of the store.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...errors import StorageError
from .._store.contract import Array, Block
from .._store.damage import raises_storage_errors
from .._store.dtypes import ColumnType
from .._store.pieces import Pieces
from .._store.structures import Json
from ._nodes import array_document
from ._place import Place
from ._tensorstore import kvstore, tensorstore, writing

ENDLESS = 1 << 60
MAX_CHUNK = 1 << 32  # Bytes. More than spoolax puts into one, and a lot to allocate for nothing.


class ArrayFile:
    """An array of a store, and its metadata.

    Args:
        place: Where the store is.
        key: Which array it is.
        column: What is in it.
        timed: Whether it has a time axis.
        context: That of readers or writers.
    """

    def __init__(
        self, place: Place, key: str, column: ColumnType, timed: bool, context: Any
    ) -> None:
        self.key, self.column, self.timed = key, column, timed
        self.metadata = _metadata(place, key, column, timed)
        shape = [ENDLESS, *column.shape] if timed else list(column.shape)
        spec = {
            "driver": "zarr3",
            "kvstore": {**place.spec, "path": f"{place.spec['path']}{key}/"},
            "metadata": {**self.metadata, "shape": shape},
            "store_data_equal_to_fill_value": True,
            "fill_missing_data_reads": False,  # Chunks of rows that count are there, or damaged.
        }
        opened = tensorstore().open(spec, open=True, assume_metadata=True, context=context)
        self.data = opened.result()

    @property
    def chunk(self) -> tuple[int, ...]:
        """The shape of a chunk."""
        return tuple(self.metadata["chunk_grid"]["configuration"]["chunk_shape"])

    def read(self, start: int, stop: int) -> Array:
        """Read rows."""
        rows = max(0, stop - start)
        if not rows:
            return np.zeros((0, *self.column.shape), self.column.stored)
        # NumPy refuses sizes that cannot be, which a damaged store may ask for.
        read = np.empty(
            (rows, *self.column.shape) if self.timed else self.column.shape, self.column.stored
        )
        chosen = self.data[start:stop] if self.timed else self.data
        tensorstore().array(read).write(chosen).result()
        return read if self.timed else read[None]


def _metadata(place: Place, key: str, column: ColumnType, timed: bool) -> Json:
    found = kvstore(place.spec, writing()).read(f"{key}/zarr.json").result()
    if found.state != "value":
        raise StorageError(f"The array {key!r} is missing from the store.")
    metadata: Json = json.loads(found.value)
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    shape = list(metadata["shape"][1:] if timed else metadata["shape"])
    if shape != list(column.shape) or metadata["data_type"] != column.stored.name:
        raise StorageError(
            f"The array {key!r} does not have the shape or type that the store says."
        )
    if len(chunk) != len(column.shape) + timed or min(chunk, default=1) < 1:
        raise StorageError(f"The array {key!r} has chunks of another shape.")
    if int(np.prod(chunk, dtype=object)) * column.stored.itemsize > MAX_CHUNK:
        raise StorageError(f"The array {key!r} has chunks that are larger than spoolax makes them.")
    return metadata


class Column(ArrayFile):
    """An array that is being written."""

    _end: Array | None = None  # The chunk at the end, if it is not full.
    _end_at, _end_is_written = 0, True

    @raises_storage_errors
    def resume(self, rows: int) -> None:
        """Go on after some rows."""
        count = rows % self.chunk[0] if self.timed else 0
        if count:
            self._end, self._end_at = self._new_chunk(), rows - count
            self._end[:count] = self.read(rows - count, rows)

    def check(self, block: Block, count: int) -> None:
        """Refuse rows of another shape or type, before anything is written."""
        rows = block[:1] if isinstance(block, np.ndarray) else block
        if len(block) != count or any(
            row.shape != self.column.shape or row.dtype != self.column.stored for row in rows
        ):
            raise StorageError(
                f"The rows of {self.key!r} do not have the type {self.column.stored.name} and the "
                f"shape {self.column.shape}, or there are not {count} of them."
            )
        for row in rows:
            if isinstance(row, Pieces):
                self._check_grid(row)

    def _check_grid(self, row: Pieces) -> None:
        """Refuse pieces that share chunks: two processes must never write the same."""
        grid = self.chunk[int(self.timed) :]
        is_single = not self.timed or self.chunk[0] == 1
        if not is_single or any(of % one for of, one in zip(row.grid(), grid, strict=True)):
            raise StorageError(
                f"The pieces of {self.key!r} do not fit its chunks of shape {self.chunk}. Rows "
                "have to be spread over devices as they were when the store was made."
            )

    def append(self, block: Block, first: int) -> list[Any]:
        """Begin to write rows after the `first` ones, but those in a chunk that is not full."""
        if not self.timed:
            return self._write_row(self.data, block[0])
        writes, size, at, stop = [], self.chunk[0], first, first + len(block)
        while at < stop:
            begin = at - at % size
            whole = stop - stop % size
            if at == begin < whole and isinstance(block, np.ndarray):
                writes.append(self._write(self.data[at:whole], block[at - first : whole - first]))
                at = whole
            elif size == 1:
                writes += self._write_row(self.data[at], block[at - first])
                at += 1
            else:
                end = min(begin + size, stop)
                if self._end is None:
                    self._end = self._new_chunk()
                for row in range(at, end) if isinstance(block, list) else ():
                    self._end[row - begin] = block[row - first]
                if isinstance(block, np.ndarray):
                    self._end[at - begin : end - begin] = block[at - first : end - first]
                self._end_at, self._end_is_written = begin, False
                if end % size == 0:
                    writes += self.write_end()
                    self._end = None
                at = end
        return writes

    def write_end(self) -> list[Any]:
        """Begin to write the chunk at the end. It must be written before rows are appended."""
        if self._end is None or self._end_is_written:
            return []
        self._end_is_written = True
        return [self._write(self.data[self._end_at : self._end_at + self.chunk[0]], self._end)]

    def document(self, rows: int) -> bytes:
        """Its document when it has so many rows."""
        return array_document(self.metadata, rows if self.timed else None)

    def _new_chunk(self) -> Array:
        return np.zeros((self.chunk[0], *self.column.shape), self.column.stored)

    def _write_row(self, where: Any, row: Array | Pieces) -> list[Any]:
        """Begin to write a row, or those pieces of it that are here."""
        if isinstance(row, Pieces):
            return [self._write(where[index] if index else where, x) for index, x in row.pieces]
        return [self._write(where, row)]

    def _write(self, where: Any, rows: Array) -> Any:
        # Without a copy: callers wait for it before they change the rows.
        return where.write(rows, can_reference_source_data_indefinitely=True)
