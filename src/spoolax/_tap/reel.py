"""How rows of entries travel from the device to the host: packed into words of 32 bits.

A row is what one iteration of a loop logged: a header of whole numbers, then entries. Arguments of
a host call are costly, and so are many small buffers in a loop. So all small arrays of a row stand
side by side in one vector of words, whatever their types; large arrays are kept as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax.arrays import as_key, gathered, is_key, key_shape, mesh_of, raw, raw_type
from .._log.entry import Nodes, entries, size_of

MOST_ROWS = 16384
MOST_BYTES = 1 << 20
PACKED = 1024  # Arrays of up to this many numbers are packed into words.


class Reel(NamedTuple):
    """A device buffer of rows, and how many of them are filled."""

    count: Any
    words: Any
    large: tuple[Any, ...]


class ReelRows(NamedTuple):
    """The rows of a reel, as they arrive on the host."""

    words: np.ndarray[Any, Any]
    large: tuple[np.ndarray[Any, Any], ...]


class Layout:
    """Where in a row everything is: a header of `header` numbers, and entries like `nodes`."""

    def __init__(self, header: int, nodes: Nodes) -> None:
        self.header, self.nodes = header, nodes  # Of the entries, only the types.
        leaves, self._tree = jax.tree.flatten(nodes)
        raws = [raw_type(leaf) for leaf in leaves]
        small = [math.prod(one.shape) <= PACKED for one in raws]
        self._leaves = list(zip(leaves, raws, small, strict=True))
        self._readers = [_reader(one.dtype) for one in raws]
        self._mesh = next(filter(None, map(mesh_of, leaves)), None)

    @property
    def large(self) -> int:
        """How many arrays are not packed."""
        return sum(not small for _, _, small in self._leaves)

    @functools.cached_property
    def capacity(self) -> int:
        """How many rows a reel should have."""
        words, large = jax.eval_shape(lambda: self.pack([jnp.int32(0)] * self.header, None))
        size = sum(one.size * one.dtype.itemsize for one in (words, *large))
        return int(max(1, min(MOST_ROWS, MOST_BYTES // max(1, size))))

    def start(self, rows: int) -> Reel:
        """Make an empty reel."""
        words, large = jax.eval_shape(lambda: self.pack([jnp.int32(0)] * self.header, None))
        words, large = jax.tree.map(
            lambda one: gathered(jnp.zeros((rows, *one.shape), one.dtype), self._mesh),
            (words, tuple(large)),
        )
        return Reel(jnp.int32(0), words, large)

    def pack(self, header: Sequence[Any], nodes: Nodes | None) -> tuple[Any, list[Any]]:
        """Make a row: its words, and its large arrays."""
        if nodes is None:
            values: Sequence[Any] = [jnp.zeros(one.shape, one.dtype) for _, one, _ in self._leaves]
        else:
            values = [gathered(raw(value), self._mesh) for value in jax.tree.leaves(nodes)]
        small = [x for x, (_, _, small) in zip(values, self._leaves, strict=True) if small]
        large = [x for x, (_, _, small) in zip(values, self._leaves, strict=True) if not small]
        words = [jnp.ravel(_to_words(x)) for x in (*header, *small)]
        return (jnp.concatenate(words) if words else jnp.zeros(0, jnp.uint32)), large

    def unpack(self, rows: ReelRows) -> tuple[np.ndarray[Any, Any], Nodes]:
        """Read rows: their headers, and their entries, both with an axis of rows in front."""
        count = len(rows.words)
        start, large = self.header, iter(rows.large)
        values = []
        for (leaf, one, small), read in zip(self._leaves, self._readers, strict=True):
            if small:
                stop = start + _word_count(one.dtype) * math.prod(one.shape)
                value = read(rows.words[:, start:stop]).reshape(count, *one.shape)
                start = stop
            else:
                value = next(large)
            values.append(KeyData(value, leaf.dtype) if is_key(leaf) else value)
        header = rows.words[:, : self.header].view(np.int32)
        return header, jax.tree.unflatten(self._tree, values)


class Group:
    """Entries that are logged together: the rows of a reel, and the loop that they come from."""

    def __init__(
        self, nodes: Nodes, path: tuple[str, ...], most: int | None, counted: bool
    ) -> None:
        self.nodes, self.path, self.most = nodes, path, most
        # The header of a row is its number, and the iteration of each loop; or nothing, if rows are
        # `counted` by the iterations of the one loop that they are in.
        self.counted = counted
        self.layout = Layout(0 if counted else 1 + len(path), nodes)
        self.capacity = min(self.layout.capacity, most or self.layout.capacity)
        self.listeners = frozenset(x for one in entries(nodes) for x in one.meta.listeners)
        self.is_rare = any(one.meta.rare for one in entries(nodes))
        self.entries = sum(map(size_of, nodes))  # In a row, at most.

    def start(self, spare: int) -> Reel:
        """Make an empty reel, with a few rows more than its capacity."""
        return self.layout.start(self.capacity + spare)


def write(reel: Reel, words: Any, large: Sequence[Any], wanted: Any) -> Reel:
    """Add a row, if it is `wanted` (always, if that is None). There must be room for it."""
    rows = [
        lax.dynamic_update_index_in_dim(buffer, row, reel.count, 0)
        for buffer, row in zip((reel.words, *reel.large), (words, *large), strict=True)
    ]
    # A row that is not wanted will be overwritten by the next.
    more = jnp.int32(1) if wanted is None else wanted.astype(jnp.int32)
    return Reel(reel.count + more, rows[0], tuple(rows[1:]))


def taken(words: Any, large: Sequence[Any], count: int) -> ReelRows:
    """Take the rows that are filled from buffers that have arrived on the host."""
    parts = (words[:count], *(x[:count] for x in large))
    if count < len(words) // 4:  # A view would keep all of the buffer.
        parts = tuple(x.copy() for x in parts)
    return ReelRows(parts[0], parts[1:])


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


def _word_count(dtype: Any) -> int:
    """How many words a number of the given type takes."""
    return int(max(1, jnp.dtype(dtype).itemsize // 4))


def _is_tiny(dtype: Any) -> bool:
    """Types of less than eight bits."""
    kind = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return bool(dtype != jnp.bool_ and jnp.dtype(dtype).itemsize == 1 and kind(dtype).bits < 8)


def _to_words(x: Any) -> Any:
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if _is_tiny(x.dtype):
        x = x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)
    size = x.dtype.itemsize
    if size >= 4:
        return lax.bitcast_convert_type(x, jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}[size]
    return lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _reader(dtype: Any) -> Callable[[Any], Any]:
    """Return a function that makes numbers of a type of their words."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return lambda words: words.astype(np.bool_)
    if _is_tiny(dtype):
        wide = np.int32 if jnp.issubdtype(dtype, jnp.integer) else np.float32
        return lambda words: words.view(wide).astype(dtype)
    if dtype.itemsize < 4:
        unsigned = {1: np.uint8, 2: np.uint16}[dtype.itemsize]
        return lambda words: words.astype(unsigned).view(dtype)
    if dtype.itemsize == 4:
        return lambda words: words.view(dtype)
    return lambda words: words.copy().view(dtype)  # Words must be side by side.
