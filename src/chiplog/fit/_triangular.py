"""Least squares by way of triangles: the factor R of a matrix, and solving with it.

A Jacobian with many rows is only ever needed as its triangular factor, with the residuals as one
more column. It is exact where the normal equations lose half of the digits. It is written in plain
operations, which compile into loops over all fits of a batch at once; for such matrices, calls of
LAPACK would take longer than the work itself.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def factor(a: Any) -> Any:
    """The upper triangular factor of a matrix, with as many rows as columns."""
    rows, columns = a.shape
    if rows < columns:
        a = jnp.concatenate([a, jnp.zeros((columns - rows, columns), a.dtype)])
    place = jnp.arange(len(a))

    def reflected(k: Any, a: Any) -> Any:
        """Householder's reflection, which makes a column end at the diagonal."""
        x = jnp.where(place >= k, a[:, k], 0)
        largest = jnp.max(jnp.abs(x))
        unit = jnp.where(largest > 0, largest, 1)
        norm = unit * jnp.sqrt(jnp.sum((x / unit) ** 2))
        end = jnp.where(a[k, k] > 0, -norm, norm)
        v = x - jnp.where(place == k, end, 0)
        half = end * (end - a[k, k])  # Half of the square of v.
        return a - v[:, None] * over(v @ a, half)[None]

    return jnp.triu(lax.fori_loop(0, columns, reflected, a)[:columns])


def back(r: Any, b: Any) -> Any:
    """Solve R x = b; what R does not determine is 0."""
    n = len(b)

    def substituted(i: Any, x: Any) -> Any:
        k = n - 1 - i
        return x.at[k].set(over(b[k] - r[k] @ x, r[k, k]))

    return lax.fori_loop(0, n, substituted, jnp.zeros_like(b))


def forth(r: Any, b: Any) -> Any:
    """Solve R^T x = b."""

    def substituted(k: Any, x: Any) -> Any:
        return x.at[k].set(over(b[k] - r[:, k] @ x, r[k, k]))

    return lax.fori_loop(0, len(b), substituted, jnp.zeros_like(b))


def over(a: Any, b: Any) -> Any:
    """A quotient, or 0 where there is none."""
    return jnp.where(b != 0, a / jnp.where(b != 0, b, 1), 0)
