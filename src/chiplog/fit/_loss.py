"""Losses: how much a residual counts, and how robust losses become least squares.

A loss is a function of squares, z = (f / scale)^2, as in SciPy. Rows of the Jacobian and residuals
are scaled so that the least-squares problem has the same gradient, and about the same curvature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import LogTypeError, LogValueError

Loss = Callable[[Any], Any]


def _linear(z: Any) -> Any:
    return z


def _soft_l1(z: Any) -> Any:
    return 2 * (jnp.sqrt(1 + z) - 1)


def _huber(z: Any) -> Any:
    far = z > 1
    return jnp.where(far, 2 * jnp.sqrt(jnp.where(far, z, 1)) - 1, z)


LOSSES: dict[str, Loss] = {
    "linear": _linear,
    "soft_l1": _soft_l1,
    "huber": _huber,
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
}


def checked_loss(loss: str | Loss) -> Loss:
    """Find a loss by its name."""
    if callable(loss):
        return loss
    if not isinstance(loss, str):
        raise LogTypeError(f"`loss` is a name or a function of z, not {loss!r}.")
    if loss not in LOSSES:
        known = ", ".join(map(repr, LOSSES))
        raise LogValueError(f"`loss={loss!r}` is not known: there are {known}, or a function of z.")
    return LOSSES[loss]


def as_squares(loss: Loss, f: Any, slopes: Any, scale: Any) -> tuple[Any, Any]:
    """What each residual costs, and the least-squares problem that stands in, by its columns.

    `slopes` are the derivatives of all residuals by each of the parameters. The residuals are the
    last column.
    """
    if loss is _linear:
        return 0.5 * f**2, jnp.concatenate([slopes, f[None]])
    z = (f / scale) ** 2
    slope_at = jax.grad(lambda z: jnp.squeeze(loss(z)))
    slope, bend = jax.vmap(slope_at)(z), jax.vmap(jax.grad(slope_at))(z)
    by = jnp.sqrt(jnp.maximum(slope + 2 * bend * z, jnp.finfo(f.dtype).eps))
    return 0.5 * scale**2 * loss(z), jnp.concatenate([slopes * by[None], (f * slope / by)[None]])
