"""The triangular factor R of a matrix, and solving with it.

A Jacobian with many rows is only ever needed as its triangular factor, with the residuals as one
more column. That is accurate where the normal equations lose half of the digits. Everything here is
made of plain operations, which compile for any device, and under `vmap` into loops over a batch.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

MAX_UNROLLED = 12  # Up to this many columns, an unrolled loop takes half the time.


def triangular_factor(columns: Any) -> Any:
    """Return the upper triangular factor R of a matrix that is given by its columns.

    This is the modified Gram-Schmidt method. With the residuals as the last column it is as stable
    as Householder's, and needs fewer passes. In 32 bits the columns are scaled first, as their
    squares could overflow or vanish.
    """
    n, left, unit = len(columns), columns, jnp.ones(len(columns), columns.dtype)
    if columns.dtype.itemsize < 8:
        largest = jnp.max(jnp.abs(columns), 1)
        unit = jnp.where(largest > 0, largest, 1)
        left = columns / unit[:, None]
    if n > MAX_UNROLLED or columns.shape[1] <= 2 * n:  # For small matrices, less code is better.

        def body(k: Any, carry: Any) -> Any:
            left, r = carry
            row, left = _project_out(left, left[k], k)
            return left, r.at[k].set(row)

        r = lax.fori_loop(0, n, body, (left, jnp.zeros((n, n), left.dtype)))[1]
        return jnp.triu(r) * unit[None]
    rows = []
    for k in range(n):
        row, left = _project_out(left, left[0], 0)
        rows.append(jnp.concatenate([jnp.zeros(k, row.dtype), row]))
        left = lax.optimization_barrier(left[1:])  # Or XLA computes it again for each use.
    return jnp.stack(rows) * unit[None]


def _project_out(columns: Any, column: Any, k: Any) -> tuple[Any, Any]:
    """Return a row of R, and all columns without their component along the k-th of them."""
    products = columns @ column
    square = products[k]
    row = divide_or_zero(products, jnp.sqrt(square))
    return row, columns - divide_or_zero(products, square)[:, None] * column[None]


def solve_upper(r: Any, b: Any) -> Any:
    """Solve R x = b. Components of x that R does not determine are 0."""
    n = len(b)

    def body(i: Any, x: Any) -> Any:
        k = n - 1 - i
        return x.at[k].set(divide_or_zero(b[k] - r[k] @ x, r[k, k]))

    return lax.fori_loop(0, n, body, jnp.zeros_like(b))


def solve_upper_transposed(r: Any, b: Any) -> Any:
    """Solve R^T x = b. Components of x that R does not determine are 0."""

    def body(k: Any, x: Any) -> Any:
        return x.at[k].set(divide_or_zero(b[k] - r[:, k] @ x, r[k, k]))

    return lax.fori_loop(0, len(b), body, jnp.zeros_like(b))


def divide_or_zero(a: Any, b: Any) -> Any:
    """Return a / b, and 0 where b is 0."""
    return jnp.where(b != 0, a / jnp.where(b != 0, b, 1), 0)
