"""Losses: how much a residual counts, and how a robust loss becomes a least-squares problem.

A loss is a function of squares, z = (f / scale)^2, as in SciPy. The residuals and the rows of the
Jacobian are scaled so that the least-squares problem has the same gradient and about the same
curvature. To add a loss, add a line to `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import LogTypeError, LogValueError

Loss = Callable[[Any], Any]
MIN_CURVATURE = 0.1  # Of a loss, as a fraction of what its slope alone would give.


def linear(z: Any) -> Any:
    """Return z: plain least squares."""
    return z


def _soft_l1(z: Any) -> Any:
    return 2 * (jnp.sqrt(1 + z) - 1)


def _huber(z: Any) -> Any:
    far = z > 1
    return jnp.where(far, 2 * jnp.sqrt(jnp.where(far, z, 1)) - 1, z)


LOSSES: dict[str, Loss] = {
    "linear": linear,
    "soft_l1": _soft_l1,
    "huber": _huber,
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
}


def checked_loss(loss: str | Loss) -> Loss:
    """Return the loss of a name, or a function of the user's with clear errors."""
    if callable(loss):
        return loss if loss in LOSSES.values() else _UserLoss(loss)
    if not isinstance(loss, str):
        raise LogTypeError(f"`loss` must be a name or a function of z, not {loss!r}.")
    if loss not in LOSSES:
        known = ", ".join(map(repr, LOSSES))
        raise LogValueError(f"`loss={loss!r}` is unknown. Use one of {known}, or a function of z.")
    return LOSSES[loss]


class _UserLoss:
    """A loss of the user's, with errors that say what a loss must be."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def __call__(self, z: Any) -> Any:
        try:
            out = jnp.asarray(self._loss(z))
        except jax.errors.TracerArrayConversionError as error:
            raise LogTypeError("Write the loss with `jax.numpy`, not with `numpy`.") from error
        if out.shape != z.shape:
            raise LogValueError(
                f"The loss of an array of shape {z.shape} has shape {out.shape}. It must be one "
                "function of z; JAX differentiates it."
            )
        return out


def as_least_squares(
    loss: Loss, f: Any, derivatives: Any, scale: Any, exact: bool = False
) -> tuple[Any, Any]:
    """Return the cost of each residual, and the columns of the equivalent least-squares problem.

    `derivatives` has a row for each parameter. The last column is the residuals. The curvature of a
    loss vanishes or becomes negative for large residuals. A step must not rely on that, but the
    covariance of the result does, as in SciPy: that is what `exact` is for.
    """
    if loss is linear:
        return 0.5 * f**2, jnp.concatenate([derivatives, f[None]])
    z = (f / scale) ** 2
    slope_at = jax.grad(lambda z: loss(z))
    slope, curvature = jax.vmap(slope_at)(z), jax.vmap(jax.grad(slope_at))(z)
    kind = jnp.finfo(f.dtype)
    least = kind.eps if exact else jnp.maximum(MIN_CURVATURE * slope, kind.tiny)
    factor = jnp.sqrt(jnp.maximum(slope + 2 * curvature * z, least))
    columns = jnp.concatenate([derivatives * factor[None], (f * slope / factor)[None]])
    return 0.5 * scale**2 * loss(z), columns
