"""A dataset that grows by rows.

Compressed datasets are written in whole chunks only: writing part of a chunk means writing all of
it to another place, and the file would grow with every write. Rows that do not fill a chunk yet are
in another dataset, the tail, which is not compressed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import StorageError
from .._store.contract import Array
from ._h5py import h5py, refresh


class Column:
    """A dataset, and its tail if it has one."""

    def __init__(self, data: Any, tail: Any = None) -> None:
        self.data, self.tail = data, tail
        self._partial: Array | None = None  # The chunk that the tail holds the beginning of.

    def append(self, block: Any, first: int) -> None:
        """Append rows, an array or a list, after the `first` rows that are there already."""
        if self.tail is None:
            _write(self.data, block, first)
            return
        if self._partial is None:
            self._partial = np.empty(self.tail.shape, self.tail.dtype)
        chunk, done = len(self._partial), 0
        at = begin = first % chunk
        while done < len(block):
            count = min(chunk - at, len(block) - done)
            self._partial[at : at + count] = block[done : done + count]
            at, done = at + count, done + count
            if at == chunk:
                _write(self.data, self._partial, first + done - chunk)
                at = begin = 0
        # Only now that its rows are in a chunk, the tail may be overwritten.
        if at > begin:
            _put(self.tail, self._partial[begin:at], begin)
            self.tail.id.flush()

    def finish(self, rows: int) -> None:
        """Write the rows of the tail into the dataset, as no more will follow."""
        if self._partial is not None and rows % len(self._partial):
            count = rows % len(self._partial)
            _write(self.data, self._partial[:count], rows - count)

    def read(self, start: int, stop: int) -> Array:
        """Read rows, also while others are appended."""
        while True:
            refresh(self.data)
            there = int(self.data.shape[0])
            rows = np.asarray(self.data[min(start, there) : min(stop, there)])
            if stop <= there:
                return rows
            if self.tail is None or stop - there > self.tail.shape[0]:
                raise StorageError(
                    f"{self.data.name!r} ends before row {stop}, which it should have."
                )
            refresh(self.tail)
            rest = np.asarray(self.tail[max(start - there, 0) : stop - there])
            refresh(self.data)
            if self.data.shape[0] == there:  # Or else these rows have just moved.
                return np.concatenate([rows, rest])


def _write(data: Any, block: Any, first: int) -> None:
    """Write rows at the end of a dataset."""
    shape = data.shape[1:]
    data.id.set_extent((first + len(block), *shape))
    if data.chunks == (1, *shape) and not data.id.get_create_plist().get_nfilters():
        for row, values in enumerate(block, first):
            data.id.write_direct_chunk((row, *[0] * len(shape)), values)
    else:
        for piece in [row[None] for row in block] if isinstance(block, list) else [block]:
            _put(data, piece, first)
            first += len(piece)
    data.id.flush()


def _put(data: Any, rows: Any, first: int) -> None:
    """Write rows where a dataset has room for them. h5py's own indexing takes far longer."""
    space = data.id.get_space()
    space.select_hyperslab((first, *[0] * (rows.ndim - 1)), rows.shape)
    data.id.write(h5py().h5s.create_simple(rows.shape), space, rows)
