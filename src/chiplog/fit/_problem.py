"""The problem of fitting a model to data: residuals that are gone through in blocks.

Data are padded to lengths of which there are few, so that a new length is no new program. What is
padded has no weight, and is a copy of real data, at which the model is as good as it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._loss import Loss, as_squares
from ._solve import Problem, jacobian_of
from ._triangular import factor

BLOCK = 4096  # Rows that are worked on at a time, so that they stay in the caches.
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


def blockwise(
    model: Callable[[Any, Any], Any],
    x: Any,
    y: Any,
    weights: Any,
    loss: Loss,
    f_scale: Any,
    jac: Callable[[Any, Any], Any] | None,
) -> Problem:
    """The problem of weighted residuals, all of whose arrays have the data along the last axis."""

    def block(p: Any, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        """What a block of data adds to the cost, and its rows of the Jacobian and residuals."""

        def residuals(p: Any) -> Any:
            return weights * (model(x, p) - y)

        f = residuals(p)
        if jac is None:
            jacobian = jacobian_of(residuals, p, len(f))
        else:
            jacobian = weights[:, None] * jac(x, p)
        costs, rows = as_squares(loss, f, jacobian, f_scale)
        return jnp.sum(jnp.where(weights > 0, costs, 0)), rows

    length = y.shape[-1]
    if length <= BLOCK or length % BLOCK:
        return lambda p: _reduced(*block(p, x, y, weights))

    def cut(a: Any) -> Any:
        return jnp.moveaxis(a.reshape(*a.shape[:-1], length // BLOCK, BLOCK), -2, 0)

    pieces = jax.tree.map(cut, (x, y, weights))

    def problem(p: Any) -> tuple[Any, Any]:
        def add(carry: Any, piece: Any) -> tuple[Any, None]:
            cost, r = carry
            more, below = block(p, *piece)
            return (cost + more, factor(jnp.concatenate([r, below]))), None

        n = len(p) + 1
        start = (jnp.zeros((), p.dtype), jnp.zeros((n, n), p.dtype))
        cost, r = lax.scan(add, start, pieces)[0]
        return cost, r

    return problem


def _reduced(cost: Any, rows: Any) -> tuple[Any, Any]:
    return cost, factor(rows)
