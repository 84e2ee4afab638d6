"""The problem of fitting a model to data: residuals that are gone through in blocks.

Data are padded to lengths of which there are few, so that a new length is no new program. What is
padded has no weight, and is a copy of real data, at which the model is as good as it is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._log.primitive import listening
from ._descent import Problem
from ._loss import LOSSES, Loss, as_squares
from ._solve import differentiated
from ._triangular import FEW, factor

BLOCK = 16384  # Points that are worked on at a time, so that they stay in the caches.
STEPS = 4  # Lengths between a power of two and the next.


def bucket(length: int) -> int:
    """The length that data of a length are padded to."""
    if length <= 16:
        return 16
    unit = max(1, (1 << (length - 1).bit_length()) // (2 * STEPS))
    if length > BLOCK:
        unit = max(unit, BLOCK)
    return -(-length // unit) * unit


def padded(x: Any, length: int) -> Any:
    """An array with its last axis padded to a length, with its first element."""
    missing = length - x.shape[-1]
    if not missing:
        return x
    return np.concatenate([x, np.repeat(x[..., :1], missing, axis=-1)], axis=-1)


class Data(NamedTuple):
    """What a model is fitted to. All arrays have the points along the last axis."""

    x: Any
    y: Any
    weights: Any  # None: all are one.
    points: Any  # How many of them are real. None: all, and the model has to see them together.
    factor: Any  # Of the covariance matrix of y, or None.
    f_scale: Any

    def mapped(self, change: Callable[[Any], Any]) -> Data:
        """The same with all arrays changed that have the points along an axis."""
        x, y, weights = jax.tree.map(change, (self.x, self.y, self.weights))
        return self._replace(x=x, y=y, weights=weights)


class Curve(NamedTuple):
    """A model, as a function of x and of all parameters, and how much its residuals count."""

    model: Callable[[Any, Any], Any]
    slope: Callable[[Any, Any], Any] | None
    loss: Loss
    exact: bool = False  # As in `as_squares`.

    @property
    def final(self) -> Curve | None:
        """The curve that makes the triangle of the result, if it is another one."""
        return None if self.loss is LOSSES["linear"] else self._replace(exact=True)

    def problem(self, data: Data) -> Problem:
        """The problem of all data, which are on the device."""
        length = data.y.shape[-1]
        if data.points is None or length <= BLOCK or length % BLOCK:
            return lambda p: self._whole(p, data)
        starts = jnp.arange(0, length, BLOCK, dtype=data.points.dtype)
        cut = data.mapped(_cut)._replace(points=data.points - starts)

        def problem(p: Any) -> tuple[Any, Any]:
            def add(carry: Any, block: Any) -> tuple[Any, None]:
                x, y, weights, points = block
                here = Data(x, y, weights, points, data.factor, data.f_scale)
                return self.added(p, carry, here), None

            return lax.scan(add, self.nothing(p), cut[:4])[0]  # type: ignore[no-any-return]

        return problem

    def nothing(self, p: Any) -> tuple[Any, Any]:
        """The cost and the triangle of no data."""
        return jnp.zeros((), p.dtype), jnp.zeros((len(p) + 1, len(p) + 1), p.dtype)

    def added(self, p: Any, before: tuple[Any, Any], data: Data) -> tuple[Any, Any]:
        """The cost and the triangle of some data and of those before."""
        cost, r = self.problem(data)(p)
        return before[0] + cost, factor(jnp.concatenate([before[1].T, r.T], 1))

    def details(self, p: Any, data: Data) -> tuple[Any, Any]:
        """All residuals, and the Jacobian of the least-squares problem."""
        f, slopes = self._residuals(p, data)
        return f, as_squares(self.loss, f, slopes, data.f_scale, exact=True)[1][:-1].T

    def _whole(self, p: Any, data: Data) -> tuple[Any, Any]:
        cost, columns = self._squares(p, data)
        return cost, factor(columns)

    def _squares(self, p: Any, data: Data) -> tuple[Any, Any]:
        """What data cost, and the columns of their least-squares problem."""
        f, slopes = self._residuals(p, data)
        costs, columns = as_squares(self.loss, f, slopes, data.f_scale, self.exact)
        return jnp.sum(jnp.where(_real(data), costs, 0)), columns

    def _residuals(self, p: Any, data: Data) -> tuple[Any, Any]:
        """The weighted residuals, and their derivatives by each parameter."""
        weights = _real(data).astype(p.dtype)
        if data.weights is not None:
            weights *= data.weights

        def white(a: Any) -> Any:
            if data.factor is None:
                return a * weights if a.ndim == 1 else a * weights[None]
            return jax.scipy.linalg.solve_triangular(data.factor, a.T, lower=True).T

        def residuals(p: Any) -> Any:
            return white(self.model(data.x, p) - data.y)

        slope = self.slope
        if slope is None and len(p) <= min(FEW, len(data.y)):
            return _differentiated_by_each(residuals, list(p))
        jac = None if slope is None else lambda p: white(slope(data.x, p).T).T
        return differentiated(residuals, jac, p)


def _differentiated_by_each(fun: Callable[[Any], Any], p: list[Any]) -> tuple[Any, Any]:
    """As `differentiated`, one after the other: what does not depend on one costs nothing then."""
    slopes = []
    for i, one in enumerate(p):

        def of(x: Any, i: int = i) -> Any:
            return fun([*p[:i], x, *p[i + 1 :]])

        with contextlib.nullcontext() if i == 0 else listening(None):  # It logs only once.
            f, slope = jax.jvp(of, (one,), (jnp.ones_like(one),))
        slopes.append(slope)
    return f, jnp.stack(slopes)


def _real(data: Data) -> Any:
    if data.points is None:
        return jnp.ones(data.y.shape, bool)
    return jnp.arange(data.y.shape[-1], dtype=data.points.dtype) < data.points


def _cut(a: Any) -> Any:
    return jnp.moveaxis(a.reshape(*a.shape[:-1], -1, BLOCK), -2, 0)
