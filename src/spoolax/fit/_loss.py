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
LEAST = 0.1  # Of the curvature that a loss would have, if it went on with its slope.


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
        return loss if loss in LOSSES.values() else _Checked(loss)
    if not isinstance(loss, str):
        raise LogTypeError(f"`loss` is a name or a function of z, not {loss!r}.")
    if loss not in LOSSES:
        known = ", ".join(map(repr, LOSSES))
        raise LogValueError(f"`loss={loss!r}` is not known: there are {known}, or a function of z.")
    return LOSSES[loss]


class _Checked:
    """A loss of the user's, whose errors say what it has to be."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, z: Any) -> Any:
        try:
            out = jnp.asarray(self._loss(z))
        except jax.errors.TracerArrayConversionError as error:
            raise LogTypeError("A loss is written with `jax.numpy`, not with `numpy`.") from error
        if out.shape != z.shape:
            raise LogValueError(
                f"The loss of an array of shape {z.shape} has the shape {out.shape}. It is one "
                "function of z; JAX differentiates it."
            )
        return out


def as_squares(loss: Loss, f: Any, slopes: Any, scale: Any, exact: bool = False) -> tuple[Any, Any]:
    """What each residual costs, and the least-squares problem that stands in, by its columns.

    `slopes` are the derivatives of all residuals by each of the parameters. The residuals are the
    last column. The curvature of a loss vanishes far out, or becomes negative. A step must not rely
    on that; but `exact` does, as SciPy has it, for the covariance of what is found.
    """
    if loss is _linear:
        return 0.5 * f**2, jnp.concatenate([slopes, f[None]])
    z = (f / scale) ** 2
    slope_at = jax.grad(lambda z: loss(z))
    slope, bend = jax.vmap(slope_at)(z), jax.vmap(jax.grad(slope_at))(z)
    least = jnp.finfo(f.dtype).eps if exact else jnp.maximum(LEAST * slope, jnp.finfo(f.dtype).tiny)
    by = jnp.sqrt(jnp.maximum(slope + 2 * bend * z, least))
    return 0.5 * scale**2 * loss(z), jnp.concatenate([slopes * by[None], (f * slope / by)[None]])
