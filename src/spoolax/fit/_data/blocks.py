"""Data that do not fit into memory: they come in blocks, again for each iteration."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ...errors import LogTypeError, LogValueError
from .arrays import apply_nan_policy, checked_arrays, default_device_is_cpu, weights_or_cholesky

LARGE_BYTES = 1 << 26  # From this size on, arrays are neither loaded nor copied as a whole.
CHUNK = 1 << 17  # Points of such arrays that are worked on at a time.
Block = tuple[Any, Any, Any]  # x, y and the weights.


class Blocks:
    """Blocks of data, to be iterated over once for each evaluation.

    The number of points and the variance are known after the first time.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[Any]],
        dtype: Any,
        check_finite: bool,
        nan_policy: str | None,
        in_memory: bool = False,
    ) -> None:
        self._source, self._dtype = source, dtype
        self._check_finite, self._nan_policy = check_finite, nan_policy
        self.in_memory = in_memory  # They could be taken as a whole as well.
        self.points = 0
        self._weight = self._mean = self._squares = 0.0
        self._counted = False

    def __iter__(self) -> Iterator[Block]:
        points = 0
        for block in self._source():
            if not isinstance(block, (tuple, list)) or len(block) not in (2, 3):
                raise LogTypeError("A block of data is `(x, y)`, or `(x, y, sigma)`.")
            x, y = checked_arrays(block[0], block[1], self._dtype)
            sigma = block[2] if len(block) == 3 else None
            if len(y):
                check = self._check_finite and not self._counted
                x, y, sigma = apply_nan_policy(x, y, sigma, check, self._nan_policy)
            if not len(y):
                continue
            weights, cholesky = weights_or_cholesky(sigma, len(y), self._dtype)
            if cholesky is not None:
                raise LogValueError(
                    "The `sigma` of a block must be the errors of its points, not a matrix."
                )
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
        """Update the weighted mean and sum of squares, which R^2 needs."""
        squared = np.ones_like(y) if weights is None else weights**2
        weight, mean = float(squared.sum()), float(np.average(y, weights=squared))
        squares, difference = float(np.sum(squared * (y - mean) ** 2)), mean - self._mean
        total = self._weight + weight
        self._squares += squares + difference**2 * self._weight * weight / total
        self._mean += difference * weight / total
        self._weight = total

    def rsquared(self, cost: Any) -> float:
        """Return R^2 of a fit with linear loss."""
        return 1 - 2 * float(cost) / self._squares if self._squares > 0 else float("nan")


def as_blocks(
    xdata: Any, ydata: Any, sigma: Any, dtype: Any, check_finite: bool, nan_policy: str | None
) -> Blocks | None:
    """Return data as blocks, if they come in blocks or are too large to be copied as a whole."""
    if ydata is None:
        if sigma is not None:
            raise LogTypeError("With blocks of data, `sigma` is the third part of each of them.")
        return Blocks(_repeatable(xdata), dtype, check_finite, nan_policy)
    arrays = [a for a in jax.tree.leaves((xdata, ydata, sigma)) if np.ndim(a)]
    if not all(isinstance(a, np.ndarray) or _is_in_file(a) for a in arrays):
        return None
    if np.ndim(sigma) > 1 or sum(a.size * dtype.itemsize for a in arrays) < LARGE_BYTES:
        return None
    in_memory = not any(map(_is_in_file, arrays))
    if in_memory and not default_device_is_cpu():
        return None  # They are copied to the device, once and for all.
    length = ydata.shape[-1]

    def part(a: Any, begin: int) -> Any:
        if a is None or not np.ndim(a) or np.shape(a) == (1,):
            return a
        if a.shape[-1] != length:
            raise LogValueError(
                f"`xdata` and `sigma` must be as long as `ydata` ({length} points), but one of "
                f"them has shape {a.shape}."
            )
        return a[..., begin : begin + CHUNK]

    def chunks() -> Iterator[Any]:
        for begin in range(0, length, CHUNK):
            pieces = jax.tree.map(lambda a: part(a, begin), (xdata, ydata, sigma))
            yield pieces if sigma is not None else pieces[:2]

    return Blocks(chunks, dtype, check_finite, nan_policy, in_memory)


def _is_in_file(a: Any) -> bool:
    """Return whether an array is read when it is indexed, as those of memmap, h5py and zarr."""
    if isinstance(a, (np.ndarray, jax.Array)):
        return isinstance(a, np.memmap)
    array_like = all(hasattr(a, name) for name in ("shape", "dtype", "size", "__getitem__"))
    return array_like and not hasattr(a, "index")  # Those of pandas are in memory.


def _repeatable(source: Any) -> Callable[[], Iterator[Any]]:
    """Return a function that iterates over blocks from the beginning."""
    if callable(source):
        return lambda: iter(source())
    if hasattr(source, "__next__"):
        return _Recorded(source)
    if hasattr(source, "__iter__") and not hasattr(source, "__array__"):
        return lambda: iter(source)
    raise LogTypeError(
        "Without `ydata`, `xdata` must be blocks: an iterator over `(x, y)`, or a function that "
        "returns one."
    )


class _Recorded:
    """An iterator that can be used only once: its blocks are kept in a temporary file."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source: Iterator[Any] | None = source
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (It lives as long as we do.)
        weakref.finalize(self, self._file.close)
        self._count = 0

    def __call__(self) -> Iterator[Any]:
        if self._source is not None:
            source, self._source = self._source, None
            for block in source:
                self._write(block)
                yield block
            return
        self._file.seek(0)
        for _ in range(self._count):
            yield self._read()

    def _write(self, block: Any) -> None:
        leaves, self._structure = jax.tree.flatten(block)
        np.save(self._file, len(leaves))
        for leaf in leaves:
            np.save(self._file, np.asarray(leaf), allow_pickle=False)
        self._count += 1

    def _read(self) -> Any:
        leaves = [np.load(self._file) for _ in range(int(np.load(self._file)))]
        return jax.tree.unflatten(self._structure, leaves)
