"""One step: the solution of the linearized problem, no longer than the trust radius.

This is Moré's method: the step solves a damped problem, and Newton's method searches for the
damping that makes the step as long as the radius.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .triangular import solve_upper, solve_upper_transposed, triangular_factor

LENGTH_TOLERANCE = 0.1  # How well the length of a step has to match the radius, relatively.
MAX_SEARCH = 12  # Dampings to try.


def factor_with_diagonal(r: Any, q: Any, diagonal: Any) -> Any:
    """Return the factor of R stacked on a diagonal; the last column is q, stacked on zeros."""
    above = jnp.concatenate([r.T, q[None]])
    below = jnp.concatenate([jnp.diag(diagonal), jnp.zeros_like(q)[None]])
    return triangular_factor(jnp.concatenate([above, below], 1))


def trust_region_step(r: Any, q: Any, radius: Any) -> Any:
    """Return the p that minimizes |R p + q| with |p| not much above the radius."""
    n = len(q)
    kind = jnp.finfo(r.dtype)
    diagonal = jnp.abs(jnp.diagonal(r))
    regular = jnp.min(diagonal) > n * kind.eps * jnp.max(diagonal)
    newton = -solve_upper(r, q)
    length = jnp.linalg.norm(newton)
    inside = regular & (length <= (1 + LENGTH_TOLERANCE) * radius)

    def newton_update(r: Any, p: Any) -> Any:
        """Return how much Newton's method adds to the damping whose step is p."""
        length = jnp.linalg.norm(p)
        unit = p / jnp.where(length > 0, length, 1)
        slope = jnp.sum(solve_upper_transposed(r, unit) ** 2)
        return (length - radius) / radius / jnp.maximum(slope, kind.tiny)

    def damped_step(damping: Any) -> tuple[Any, Any]:
        whole = factor_with_diagonal(r, q, jnp.broadcast_to(jnp.sqrt(damping), q.shape))
        return -solve_upper(whole[:n, :n], whole[:n, n]), whole[:n, :n]

    def search(carry: Any) -> Any:
        damping, low, high, _, count, _ = carry
        outside = (damping <= low) | (damping >= high)
        damping = jnp.where(outside, jnp.maximum(jnp.sqrt(low * high), 1e-3 * high), damping)
        p, whole = damped_step(damping)
        excess = jnp.linalg.norm(p) - radius
        low = jnp.where(excess > 0, jnp.maximum(low, damping), low)
        high = jnp.where(excess < 0, jnp.minimum(high, damping), high)
        found = jnp.abs(excess) <= LENGTH_TOLERANCE * radius
        following = jnp.maximum(low, damping + newton_update(whole, p))
        return following, low, high, p, count + 1, found

    slope = jnp.linalg.norm(r.T @ q)
    low = jnp.where(regular, jnp.maximum(newton_update(r, newton), 0), 0)
    high = slope / radius
    first = jnp.clip(slope / jnp.where(length > 0, length, 1), low, high)
    start = (first, low, high, newton, 0, inside)
    return lax.while_loop(lambda c: ~c[5] & (c[4] < MAX_SEARCH), search, start)[3]
