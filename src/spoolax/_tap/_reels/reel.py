"""Reels: buffers on the device whose rows travel to the host.

A row is what one iteration of a loop logged: a header of whole numbers, then entries, with their
small arrays packed into words.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax.arrays import as_key, gathered, is_key, key_shape, mesh_of, raw, raw_spec, spread_over
from ..._jax.primitives import split
from ..._log.entry import Nodes, entries, size_of
from ..._packing import Packing

# How long a reel is that cannot hold all: a call to the host should cost little next to the rows
# that it sends, and making the reel, which is cleared first, little next to a loop that ends soon.
ENOUGH_ROWS, ENOUGH_BYTES = 256, 1 << 16
MOST_ROWS = 16384
MOST_BYTES_EACH = 1 << 20
MOST_BYTES_OF_ALL = 4 << 20  # If a reel can hold all that a loop logs, as its outputs would.
MOST_BYTES = 16 << 20  # All reels of a program together.
# Arrays of up to this many numbers are packed into words. On several devices, they may be spread,
# which is not known yet, and would be gathered in every iteration: so only what cannot be.
PACKED = 1024
PACKED_IF_SPREAD = 1


class Reel(NamedTuple):
    """A device buffer of rows, and how many of them are filled."""

    count: Any
    words: Any  # Of all rows, one after the other: TPUs would pad rows to 128 numbers.
    large: tuple[Any, ...]


class ReelRows(NamedTuple):
    """The rows of a reel, as they arrive on the host."""

    words: np.ndarray[Any, Any]
    large: tuple[np.ndarray[Any, Any], ...]


class Layout:
    """Where in a row everything is: a header of `header` numbers, and entries like `nodes`."""

    def __init__(self, header: int, nodes: Nodes, mesh: Any, packed: int) -> None:
        self.header = header
        self._leaves, self._tree = jax.tree.flatten(nodes)  # Only the types.
        numbers = [jax.ShapeDtypeStruct((), jnp.int32)] * header
        self._packing = Packing.of([*numbers, *self._leaves], packed)
        self._mesh = next(filter(None, map(mesh_of, self._leaves)), mesh)
        large = zip(self._leaves, self._packing.is_packed[header:], strict=True)
        self._specs = [raw_spec(leaf) for leaf, small in large if not small]  # Of large arrays.

    @property
    def large(self) -> int:
        """How many arrays are not packed."""
        return self._packing.is_packed.count(False)

    @property
    def width(self) -> int:
        """How many words a row has."""
        return self._packing.packed_types[0].size  # type: ignore[no-any-return]

    @functools.cached_property
    def row_bytes(self) -> int:
        """The size of a row."""
        return sum(one.size * one.dtype.itemsize for one in self._packing.packed_types)

    def start(self, rows: int) -> Reel:
        """Make an empty reel."""
        words, *large = (jnp.zeros((rows, *x.shape), x.dtype) for x in self._packing.packed_types)
        if self._mesh is not None:
            words = gathered(words, self._mesh)
            places = zip(large, self._specs, strict=True)
            large = [spread_over(x, self._mesh, (None, *spec)) for x, spec in places]
        return Reel(jnp.int32(0), words.reshape(-1), tuple(large))

    def write(self, reel: Reel, row: Any, words: Any, large: Sequence[Any]) -> Reel:
        """Write a row. There must be room for it. It is not counted."""
        pairs = zip(reel.large, large, strict=True)
        return reel._replace(
            words=lax.dynamic_update_slice_in_dim(reel.words, words, row * words.size, 0),
            large=tuple(lax.dynamic_update_index_in_dim(x, one, row, 0) for x, one in pairs),
        )

    def taken(self, count: int, words: Any, large: Sequence[Any]) -> ReelRows:
        """Take the rows that are filled from buffers that have arrived on the host."""
        width = self.width
        parts = (words[: count * width].reshape(count, width), *(x[:count] for x in large))
        if count * width < len(words) // 4:  # A view would keep all of the buffer.
            parts = tuple(x.copy() for x in parts)
        return ReelRows(parts[0], parts[1:])

    def pack(self, header: Sequence[Any], nodes: Nodes) -> tuple[Any, list[Any]]:
        """Make a row: its words, and its large arrays, which stay as they are sharded."""
        values = list(map(raw, jax.tree.leaves(nodes)))
        if self._mesh is not None:
            packed = self._packing.is_packed[self.header :]
            values = [
                gathered(value, self._mesh) if small or mesh_of(value) is None else value
                for value, small in zip(values, packed, strict=True)
            ]
            header = [gathered(number, self._mesh) for number in header]
        words, large = self._packing.pack([*header, *values])
        if self._mesh is not None and not words.size:
            words = gathered(words, self._mesh)  # No number says which mesh they are on.
        return words, large

    def unpack(self, rows: ReelRows) -> tuple[np.ndarray[Any, Any], Nodes]:
        """Read rows: their headers, and their entries, both with an axis of rows in front."""
        _, values = split(self._packing.unpack(rows.words, rows.large), self.header)
        values = [
            KeyData(value, leaf.dtype) if is_key(leaf) else value
            for value, leaf in zip(values, self._leaves, strict=True)
        ]
        header = rows.words[:, : self.header].view(np.int32)
        return header, jax.tree.unflatten(self._tree, values)


class Group:
    """Entries that are logged together: the rows of a reel, and the loop that they come from."""

    def __init__(
        self,
        nodes: Nodes,
        path: tuple[str, ...],
        most: int | None,
        counted: bool,
        most_bytes: int = MOST_BYTES_EACH,
        mesh: Any = None,  # That the program runs on, as it may not say.
        packed: int = PACKED,
    ) -> None:
        self.nodes, self.path, self.most = nodes, path, most
        # The header of a row is its number, and the iteration of each loop; or nothing, if rows are
        # `counted` by the iterations of the one loop that they are in.
        self.counted = counted
        self.layout = Layout(0 if counted else 1 + len(path), nodes, mesh, packed)
        size = max(1, self.layout.row_bytes)
        self.holds_all = most is not None and most * size <= min(MOST_BYTES_OF_ALL, most_bytes)
        rows = min(MOST_ROWS, max(ENOUGH_ROWS, ENOUGH_BYTES // size))
        rows = max(1, min(rows, min(MOST_BYTES_EACH, most_bytes) // size))
        self.capacity = max(1, most) if self.holds_all and most is not None else rows
        self.listeners = frozenset(x for one in entries(nodes) for x in one.meta.listeners)
        alarms = [one.meta.alarm for one in entries(nodes) if one.meta.alarm is not None]
        self.is_rare, self.holds_up = bool(alarms), any(alarm.holds_up for alarm in alarms)
        self.entries = sum(map(size_of, nodes))  # In a row, at most.

    @property
    def arrays(self) -> int:
        """How many arrays a reel has."""
        return 1 + self.layout.large

    @property
    def size(self) -> int:
        """The bytes of as many rows as there can be."""
        return self.capacity * self.layout.row_bytes

    def start(self, spare: int) -> Reel:
        """Make an empty reel, with a few rows more than its capacity if it may be overstepped."""
        return self.layout.start(self.capacity + (0 if self.holds_all else spare))


class KeyData:
    """An array of random keys on the host: the numbers behind them, and their type."""

    def __init__(self, data: np.ndarray[Any, Any], dtype: Any) -> None:
        self.data, self.dtype = data, dtype
        self.shape = data.shape[: data.ndim - len(key_shape(dtype))]

    def __getitem__(self, index: Any) -> KeyData:
        return KeyData(self.data[index], self.dtype)

    def reshape(self, *shape: int) -> KeyData:
        return KeyData(self.data.reshape(*shape, *key_shape(self.dtype)), self.dtype)

    def key(self) -> Any:
        """The keys as JAX knows them."""
        return as_key(self.data, self.dtype)
