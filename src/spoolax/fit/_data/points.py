"""The points that a model is fitted to, padded to one of few lengths, and cut into blocks.

A new length of the data is then rarely a new program. Padding is a copy of a real point, where the
model is as well-behaved as it is there, and has no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import LogValueError
from .arrays import apply_nan_policy, checked_arrays, weights_or_cholesky

BLOCK = 16384  # Points that are worked on at a time, so that they stay in the CPU's caches.
LENGTHS_PER_OCTAVE = 4  # Padded lengths between a power of two and the next.


def padded_length(length: int) -> int:
    """Return the length that data of some length are padded to."""
    if length <= 16:
        return 16
    unit = max(1, (1 << (length - 1).bit_length()) // (2 * LENGTHS_PER_OCTAVE))
    if length > BLOCK:
        unit = max(unit, BLOCK)
    return -(-length // unit) * unit


def pad(x: Any, length: int, numpy: Any = np) -> Any:
    """Pad the last axis of an array to a length, with its first element."""
    missing = length - x.shape[-1]
    if not missing:
        return x
    return numpy.concatenate([x, numpy.repeat(x[..., :1], missing, axis=-1)], axis=-1)


class Data(NamedTuple):
    """What a model is fitted to. All arrays have the points along the last axis."""

    x: Any
    y: Any
    weights: Any  # None: all are one.
    points: Any  # How many are real. None: all, and the model has to see them together.
    cholesky: Any  # The Cholesky factor of the covariance matrix of y, or None.
    f_scale: Any

    @property
    def is_real(self) -> Any:
        """Which points are real, and not padding."""
        if self.points is None:
            return jnp.ones(self.y.shape, bool)
        return jnp.arange(self.y.shape[-1], dtype=self.points.dtype) < self.points

    def padded(self) -> Data:
        """Pad the points to a length that there may be a program for."""
        length = padded_length(len(self.y))
        return self._mapped(lambda a: pad(a, length))

    def padded_to_blocks(self) -> Data:
        """Pad the points to whole blocks, if there are more than one. This can be traced."""
        length = self.y.shape[-1]
        whole = -(-length // BLOCK) * BLOCK if length > BLOCK else length
        return self._mapped(lambda a: pad(a, whole, jnp))

    def cut(self) -> Data | None:
        """Cut the points into blocks along a new first axis; None if that is not to be done."""
        length = self.y.shape[-1]
        if self.points is None or length <= BLOCK or length % BLOCK:
            return None
        starts = jnp.arange(0, length, BLOCK, dtype=self.points.dtype)
        return self._mapped(_cut)._replace(points=self.points - starts)

    def _mapped(self, change: Callable[[Any], Any]) -> Data:
        x, y, weights = jax.tree.map(change, (self.x, self.y, self.weights))
        return self._replace(x=x, y=y, weights=weights)


def _cut(a: Any) -> Any:
    return jnp.moveaxis(a.reshape(*a.shape[:-1], -1, BLOCK), -2, 0)


def checked_points(
    xdata: Any, ydata: Any, sigma: Any, f_scale: Any, check_finite: bool, nan_policy: str | None
) -> Data:
    """Return the data as arrays on the host."""
    x, y = checked_arrays(xdata, ydata, f_scale.dtype)
    x, y, sigma = apply_nan_policy(x, y, sigma, check_finite, nan_policy)
    if not y.size:
        raise LogValueError("`ydata` must not be empty!")
    weights, cholesky = weights_or_cholesky(sigma, len(y), f_scale.dtype)
    return Data(x, y, weights, np.int32(len(y)), cholesky, f_scale)
