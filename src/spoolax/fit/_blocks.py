"""Data that do not fit into memory: blocks of them, again and again for each iteration."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..errors import LogTypeError, LogValueError
from ._data import checked_data, finite, on_cpu, weights_of

MANY_BYTES = 1 << 26  # Of arrays, from which on they are not loaded, or copied, as a whole.
CHUNK = 1 << 17  # Points of such arrays that are worked on at a time.
Block = tuple[Any, Any, Any]  # x, y, and the weights.


class Blocks:
    """Blocks of data. What is counted is known after they have been gone through once."""

    def __init__(
        self,
        source: Callable[[], Iterator[Any]],
        dtype: Any,
        check: bool,
        policy: str | None,
        optional: bool = False,
    ) -> None:
        self._source, self._dtype, self._check, self._policy = source, dtype, check, policy
        self.optional = optional  # They are in memory, and could be taken as a whole.
        self.points = 0
        self._weight = self._mean = self._squares = 0.0
        self._counted = False

    def __iter__(self) -> Iterator[Block]:
        points = 0
        for block in self._source():
            if not isinstance(block, (tuple, list)) or len(block) not in (2, 3):
                raise LogTypeError("A block of data is `(x, y)`, or `(x, y, sigma)`.")
            x, y = checked_data(block[0], block[1], self._dtype)
            sigma = block[2] if len(block) == 3 else None
            if len(y):
                check = self._check and not self._counted
                x, y, sigma = finite(x, y, sigma, check, self._policy)
            if not len(y):
                continue
            weights, factor = weights_of(sigma, len(y), self._dtype)
            if factor is not None:
                raise LogValueError("The `sigma` of a block are the errors of its points.")
            if not self._counted:
                self._count(y, weights)
            points += len(y)
            yield x, y, weights
        if not points:
            raise LogValueError("`ydata` must not be empty!")
        if self._counted and points != self.points:
            raise LogValueError(
                f"There were {self.points} points of data at first, and now there are {points}. If "
                "they come from an iterator, give a function that returns a new one each time."
            )
        self.points, self._counted = points, True

    def _count(self, y: Any, weights: Any) -> None:
        """What R^2 needs, of all blocks so far."""
        by = np.ones_like(y) if weights is None else weights**2
        weight, mean = float(by.sum()), float(np.average(y, weights=by))
        squares, apart = float(np.sum(by * (y - mean) ** 2)), mean - self._mean
        total = self._weight + weight
        self._squares += squares + apart**2 * self._weight * weight / total
        self._mean += apart * weight / total
        self._weight = total

    def later(self, found: Any, linear: bool) -> dict[str, Callable[[], Any]]:
        """What is computed when somebody asks for it."""
        known = linear and self._squares > 0
        rsquared = 1 - 2 * float(found.cost) / self._squares if known else float("nan")
        return {"rsquared": lambda: rsquared}


def blocks_of(
    xdata: Any, ydata: Any, sigma: Any, dtype: Any, check: bool, policy: str | None
) -> Blocks | None:
    """The blocks that data come in, if they do."""
    if ydata is None:
        if sigma is not None:
            raise LogTypeError("With blocks of data, `sigma` is the third part of each of them.")
        return Blocks(_repeatable(xdata), dtype, check, policy)
    arrays = [a for a in jax.tree.leaves((xdata, ydata, sigma)) if np.ndim(a)]
    if not all(isinstance(a, np.ndarray) or _is_in_file(a) for a in arrays):
        return None
    if np.ndim(sigma) > 1 or sum(a.size * dtype.itemsize for a in arrays) < MANY_BYTES:
        return None
    optional = not any(map(_is_in_file, arrays))
    if optional and not on_cpu():
        return None  # They are copied to the device, once and for all.
    length = ydata.shape[-1]

    def part(a: Any, begin: int) -> Any:
        if a is None or not np.ndim(a) or np.shape(a) == (1,):
            return a
        if a.shape[-1] != length:
            raise LogValueError(
                f"`xdata` and `sigma` must be as long as `ydata` ({length} points), not {a.shape}."
            )
        return a[..., begin : begin + CHUNK]

    def slices() -> Iterator[Any]:
        for begin in range(0, length, CHUNK):
            pieces = jax.tree.map(lambda a: part(a, begin), (xdata, ydata, sigma))
            yield pieces if sigma is not None else pieces[:2]

    return Blocks(slices, dtype, check, policy, optional)


def _is_in_file(a: Any) -> bool:
    """Whether an array is read when it is asked for: those of NumPy, h5py, zarr, ..."""
    if isinstance(a, (np.ndarray, jax.Array)):
        return isinstance(a, np.memmap)
    array_like = all(hasattr(a, name) for name in ("shape", "dtype", "size", "__getitem__"))
    return array_like and not hasattr(a, "index")  # Those of pandas are in memory.


def _repeatable(source: Any) -> Callable[[], Iterator[Any]]:
    """A function that goes through blocks from the beginning."""
    if callable(source):
        return lambda: iter(source())
    if hasattr(source, "__next__"):
        return _Kept(source)
    if hasattr(source, "__iter__") and not hasattr(source, "__array__"):
        return lambda: iter(source)
    raise LogTypeError(
        "Without `ydata`, `xdata` are blocks: an iterator over `(x, y)`, or a function that "
        "returns one."
    )


class _Kept:
    """An iterator that can be gone through only once: its blocks are kept in a temporary file."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source: Iterator[Any] | None = source
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (It lives as long as we do.)
        weakref.finalize(self, self._file.close)
        self._count = 0

    def __call__(self) -> Iterator[Any]:
        if self._source is not None:
            source, self._source = self._source, None
            for block in source:
                yield self._written(block)
            return
        self._file.seek(0)
        for _ in range(self._count):
            yield self._read()

    def _written(self, block: Any) -> Any:
        leaves, self._structure = jax.tree.flatten(block)
        np.save(self._file, len(leaves))
        for leaf in leaves:
            np.save(self._file, np.asarray(leaf), allow_pickle=False)
        self._count += 1
        return block

    def _read(self) -> Any:
        leaves = [np.load(self._file) for _ in range(int(np.load(self._file)))]
        return jax.tree.unflatten(self._structure, leaves)
