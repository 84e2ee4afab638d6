"""Rows that are in pieces: arrays that are spread over devices, and possibly over processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import StorageError

Array = np.ndarray[Any, Any]


class Pieces(NamedTuple):
    """The pieces of one row of a column that this process has.

    A backend that can, `in_pieces`, writes them one by one. For others they are put together, which
    needs all of them.

    Examples:
        >>> row = Pieces((4,), "float32", [((slice(0, 2),), np.ones(2, np.float32))])
        >>> row.grid()
        (2,)
    """

    shape: tuple[int, ...]  # Of the row.
    dtype: str
    pieces: Sequence[tuple[tuple[slice, ...], Array]]  # Where each of them begins and ends.

    def map(self, f: Callable[[Array], Array]) -> Pieces:
        """The same pieces, after a function of each."""
        made = [(index, f(piece)) for index, piece in self.pieces]
        dtype = made[0][1].dtype.name if made else self.dtype
        return Pieces(self.shape, dtype, made)

    def grid(self) -> tuple[int, ...]:
        """The largest shape of chunks such that no chunk has parts of two pieces.

        Devices have pieces of the same shape, so those of one process say it for all.
        """
        grid = []
        for axis, size in enumerate(self.shape):
            ends = {
                end for index, _ in self.pieces for end in (index[axis].start, index[axis].stop)
            }
            grid.append(math.gcd(*(end for end in ends if end < size)) or size)
        return tuple(grid)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        del copy
        whole = np.empty(self.shape, self.pieces[0][1].dtype if self.pieces else self.dtype)
        if sum(piece.size for _, piece in self.pieces) != whole.size:
            raise StorageError(
                "A row is spread over several processes, and this store can only take whole ones. "
                "Store it in Zarr, or gather it first."
            )
        for index, piece in self.pieces:
            whole[index] = piece
        return whole if dtype is None else whole.astype(dtype)


def pieces_of(array: Any) -> Pieces:
    """The pieces of a `jax.Array` on the devices of this process, each of them once."""
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    pieces = []
    for shard in shards:
        bounds = (one.indices(size)[:2] for one, size in zip(shard.index, array.shape, strict=True))
        index = tuple(slice(start, stop) for start, stop in bounds)
        pieces.append((index, np.asarray(shard.data)))
    return Pieces(tuple(array.shape), np.dtype(array.dtype).name, pieces)
