"""Small arrays side by side in one vector of 32-bit words, whatever their types.

What an array costs on its way to the host hardly depends on its size: that goes for arguments of
host calls, for outputs of programs, and for buffers in loops. So small arrays travel as one; large
ones stay as they are. Random keys travel as the numbers behind them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._jax.arrays import is_in_host_memory, is_key, is_sharded, is_tiny, key_impl, raw, raw_type


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Packing:
    """Where each of a number of arrays is: among the words, or by itself.

    It may come out of a compiled function, as a part of its structure.
    """

    shapes: tuple[tuple[int, ...], ...]  # Of keys, those of the numbers behind them.
    dtypes: tuple[np.dtype[Any], ...]
    keys: tuple[str, ...]  # The implementation of arrays of keys; "" for numbers.
    is_packed: tuple[bool, ...]

    @classmethod
    def of(cls, values: Iterable[Any], small: int) -> Packing:
        """Lay out arrays, or types of arrays: those of up to so many numbers are packed.

        Those that are known to be spread over a mesh are not, as they would have to be gathered.
        """
        values = list(values)
        raws = [raw_type(value) for value in values]
        return cls(
            tuple(tuple(one.shape) for one in raws),
            tuple(np.dtype(one.dtype) for one in raws),
            tuple(key_impl(value.dtype) if is_key(value) else "" for value in values),
            tuple(
                math.prod(one.shape) <= small and not is_sharded(value)
                for one, value in zip(raws, values, strict=True)
            ),
        )

    def pack(self, values: Iterable[Any]) -> tuple[Any, list[Any]]:
        """Return the words of the small arrays, and the large ones."""
        raws = [raw(value) for value in values]
        pairs = list(zip(raws, self.is_packed, strict=True))
        words = [jnp.ravel(_to_words(value)) for value, packed in pairs if packed]
        large = [value for value, packed in pairs if not packed]
        return (jnp.concatenate(words) if words else jnp.zeros(0, jnp.uint32)), large

    def pack_on_host(self, arrays: Sequence[Any], spare: list[list[Any]]) -> list[Any]:
        """Copy arrays that are ready: the words of the small ones, as bytes, and the large ones.

        The large ones are copied into arrays of an earlier copy, if some are to spare: the first
        access to memory is what takes most of the time. Raises a TypeError for an array that is not
        in the memory of the host, in one piece.
        """
        if self._is_plain:
            return [b"".join(arrays)]  # Many arrays in one call: nothing is faster.
        words: list[Any] = []
        _, *types = self.packed_types
        large = spare.pop() if spare else [np.empty(one.shape, one.dtype) for one in types]
        rest = iter(large)
        for array, packed, write in zip(arrays, self.is_packed, self._writers, strict=True):
            if not packed:
                np.copyto(next(rest), _in_place(array))
            elif write is None:
                words.append(array)
            else:
                words.append(write(_in_place(array)))
        return [b"".join(words), *large]

    def stack(self, words: Sequence[Any]) -> Any:
        """Make one array of the words of several rows, which are bytes or arrays."""
        joined = np.frombuffer(b"".join(words), np.uint32)
        return joined.reshape(len(words), *self.packed_types[0].shape)

    @functools.cached_property
    def _is_plain(self) -> bool:
        return all(self.is_packed) and not any(self._writers)

    @functools.cached_property
    def _writers(self) -> list[Callable[[Any], Any] | None]:
        return [_writer(dtype) for dtype in self.dtypes]

    @functools.cached_property
    def nbytes(self) -> int:
        """The size of the words and of the large arrays."""
        return sum(math.prod(one.shape) * one.dtype.itemsize for one in self.packed_types)

    @functools.cached_property
    def packed_types(self) -> list[Any]:
        """The types of what `pack` returns: of the words, and of the large arrays."""
        each = zip(self.shapes, self.dtypes, self.is_packed, self._readers, strict=True)
        words, large = 0, []
        for shape, dtype, packed, (count, _) in each:
            if packed:
                words += count
            else:
                large.append(jax.ShapeDtypeStruct(shape, dtype))
        return [jax.ShapeDtypeStruct((words,), jnp.uint32), *large]

    def unpack(self, words: Any, large: Sequence[Any]) -> list[Any]:
        """Read arrays on the host. The words may have axes in front, and so have the arrays."""
        lead, rest, start = words.shape[:-1], iter(large), 0
        values = []
        readers = zip(self.shapes, self.is_packed, self._readers, strict=True)
        for shape, packed, (count, read) in readers:
            if not packed:
                values.append(next(rest))
                continue
            values.append(read(words[..., start : start + count]).reshape((*lead, *shape)))
            start += count
        return values

    def unpack_one(self, words: Any, large: Sequence[Any]) -> list[Any]:
        """Read arrays that have no axes in front. Those without any axes come as scalars."""
        rest, start = iter(large), 0
        values: list[Any] = []
        for shape, count, read in self._stretches:
            if read is None:
                array = next(rest)
                values.append(array if shape else array[()])
                continue
            numbers = read(words[start : start + count])
            start += count
            if shape:
                values.append(numbers.reshape(shape))
            else:
                values.extend(numbers)
        return values

    @functools.cached_property
    def _readers(self) -> list[tuple[int, Callable[[Any], Any]]]:
        return [
            (_word_count(dtype) * math.prod(shape), _reader(dtype))
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    @functools.cached_property
    def _stretches(self) -> list[tuple[tuple[int, ...], int, Callable[[Any], Any] | None]]:
        """The shape, words and reader of arrays; scalars of one type that are side by side count
        as one, because reading one takes as long as reading many."""
        stretches: list[Any] = []
        each = zip(self.shapes, self.dtypes, self.is_packed, self._readers, strict=True)
        for (shape, _, packed), group in itertools.groupby(each, lambda one: one[:3]):
            readers = [reader for *_, reader in group]
            if packed and not shape:
                stretches.append((shape, sum(n for n, _ in readers), readers[0][1]))
            else:
                stretches += [(shape, n, read if packed else None) for n, read in readers]
        return stretches


def _word_count(dtype: Any) -> int:
    """How many words a number of the given type takes."""
    return int(max(1, jnp.dtype(dtype).itemsize // 4))


def _to_words(x: Any) -> Any:
    """Make words of the numbers of an array."""
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if is_tiny(x.dtype):
        x = x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)
    size = x.dtype.itemsize
    if size >= 4:
        return lax.bitcast_convert_type(x, jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}[size]
    return lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _in_place(array: Any) -> Any:
    """An array as NumPy sees it where it is."""
    if is_in_host_memory(array):
        return np.asarray(array)
    raise TypeError("It is not in the memory of the host, or not in one piece.")


def _writer(dtype: np.dtype[Any]) -> Callable[[Any], Any] | None:
    """Return a function that makes words of numbers of a type, or None if they are words."""
    if dtype == np.bool_:
        return lambda array: array.astype(np.uint32)
    if is_tiny(dtype):
        wide = np.int32 if jnp.issubdtype(dtype, jnp.integer) else np.float32
        return lambda array: array.astype(wide)
    if dtype.itemsize < 4:
        unsigned = {1: np.uint8, 2: np.uint16}[dtype.itemsize]
        return lambda array: array.view(unsigned).astype(np.uint32)
    return None


def _reader(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that makes numbers of a type of their words."""
    if dtype == np.bool_:
        return lambda words: words.astype(np.bool_)
    if is_tiny(dtype):
        wide = np.int32 if jnp.issubdtype(dtype, jnp.integer) else np.float32
        return lambda words: words.view(wide).astype(dtype)
    if dtype.itemsize < 4:
        unsigned = {1: np.uint8, 2: np.uint16}[dtype.itemsize]
        return lambda words: words.astype(unsigned).view(dtype)
    if dtype.itemsize == 4:
        return lambda words: words.view(dtype)
    return lambda words: words.copy().view(dtype)  # Words must be side by side.
