"""One step: the least squares of a linear model, not further than it can be trusted.

Moré's way: the step is that of a damped problem, and the damping is searched for by Newton's method
until the step is as long as it may be.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ._triangular import back, factor, forth

CLOSE = 0.1  # How well the length has to be met.
SEARCH = 12  # How often to try.


def stacked(r: Any, q: Any, diagonal: Any) -> Any:
    """The factor of R with a diagonal below it; q, with zeros below, is the last column."""
    above = jnp.concatenate([r.T, q[None]])
    below = jnp.concatenate([jnp.diag(diagonal), jnp.zeros_like(q)[None]])
    return factor(jnp.concatenate([above, below], 1))


def step_within(r: Any, q: Any, radius: Any) -> Any:
    """The p that minimizes |R p + q|, with |p| not much above the radius."""
    n = len(q)
    kind = jnp.finfo(r.dtype)
    diagonal = jnp.abs(jnp.diagonal(r))
    regular = jnp.min(diagonal) > n * kind.eps * jnp.max(diagonal)
    newton = -back(r, q)
    length = jnp.linalg.norm(newton)
    inside = regular & (length <= (1 + CLOSE) * radius)

    def change(r: Any, p: Any) -> Any:
        """How much more damping Newton's method wants, for the step of a damped problem."""
        length = jnp.linalg.norm(p)
        slope = jnp.sum(forth(r, p / jnp.where(length > 0, length, 1)) ** 2)
        return (length - radius) / radius / jnp.maximum(slope, kind.tiny)

    def damped(damping: Any) -> tuple[Any, Any]:
        whole = stacked(r, q, jnp.broadcast_to(jnp.sqrt(damping), q.shape))
        return -back(whole[:n, :n], whole[:n, n]), whole[:n, :n]

    def search(carry: Any) -> Any:
        damping, low, high, _, count, _ = carry
        outside = (damping <= low) | (damping >= high)
        damping = jnp.where(outside, jnp.maximum(jnp.sqrt(low * high), 1e-3 * high), damping)
        p, whole = damped(damping)
        excess = jnp.linalg.norm(p) - radius
        low = jnp.where(excess > 0, jnp.maximum(low, damping), low)
        high = jnp.where(excess < 0, jnp.minimum(high, damping), high)
        found = jnp.abs(excess) <= CLOSE * radius
        return jnp.maximum(low, damping + change(whole, p)), low, high, p, count + 1, found

    slope = jnp.linalg.norm(r.T @ q)
    low = jnp.where(regular, jnp.maximum(change(r, newton), 0), 0)
    high = slope / radius
    first = jnp.clip(slope / jnp.where(length > 0, length, 1), low, high)
    start = (first, low, high, newton, 0, inside)
    return lax.while_loop(lambda c: ~c[5] & (c[4] < SEARCH), search, start)[3]
