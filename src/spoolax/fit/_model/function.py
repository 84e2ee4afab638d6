"""The user's functions as the solver calls them: of x and of all parameters in one array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import LogTypeError, LogValueError
from .._solver.losses import Loss, checked_loss
from .curve import Curve
from .identity import identity
from .parameters import Structure


def with_clear_errors(f: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return a function whose errors say what JAX cannot do with it, and what to write instead."""

    @functools.wraps(f, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except jax.errors.TracerArrayConversionError as error:
            raise LogTypeError(
                f"{what} uses NumPy (or something else that is not JAX) on its arguments, so it "
                "cannot be compiled or differentiated. Write it with `jax.numpy` instead of "
                "`numpy`."
            ) from error
        except (
            jax.errors.ConcretizationTypeError,
            jax.errors.NonConcreteBooleanIndexError,
        ) as error:
            raise LogTypeError(
                f"{what} branches on the values of its arguments (`if x > 0`), which are not known "
                "while it is compiled. Use `jax.numpy.where` instead."
            ) from error

        except (TypeError, ValueError) as error:
            if "Only scalar arrays can be converted" in str(error):
                raise LogTypeError(
                    f"{what} passes an array to a function of numbers, such as those of `math`. "
                    "Use those of `jax.numpy`."
                ) from error
            if "truth value of an array" in str(error):
                raise LogTypeError(
                    f"{what} branches on a whole array (`if x > 0`). Use `jax.numpy.where`, which "
                    "chooses for each point."
                ) from error
            raise

    return called


def flat_model(model: Callable[..., Any], structure: Structure | None) -> Callable[[Any, Any], Any]:
    """Return a model as a function of x and of all parameters in one array."""
    if not callable(model):
        raise LogTypeError(f"The model must be a function of x and of parameters, not {model!r}.")
    call = with_clear_errors(model, "The model")

    def flat(x: Any, p: Any) -> Any:
        out = call(x, *((*p,) if structure is None else (structure.unflatten(p),)))
        if out is None:
            raise LogTypeError("The model returns nothing. Is there a `return` missing?")
        out = jnp.asarray(out)
        length = jax.tree.leaves(x)[0].shape[-1]
        if jnp.iscomplexobj(out):
            raise LogTypeError("The model returns complex numbers. Fit real and imaginary parts.")
        if out.ndim == 0:
            out = jnp.broadcast_to(out, (length,))
        if out.size != length:
            raise LogValueError(
                f"The model returns an array of shape {out.shape}, but there are {length} points."
            )
        return jnp.ravel(out).astype(p[0].dtype)

    return flat


def flat_jacobian(
    jac: Callable[..., Any], structure: Structure | None
) -> Callable[[Any, Any], Any]:
    """Return the Jacobian of a model as a function of x and of all parameters in one array."""
    if structure is not None:
        raise LogValueError("`jac` needs parameters that are given one by one, not a pytree `p0`.")
    call = with_clear_errors(jac, "The Jacobian")

    def flat(x: Any, p: Any) -> Any:
        out = jnp.asarray(call(x, *p))
        expected = (jax.tree.leaves(x)[0].shape[-1], len(p))
        if out.shape != expected:
            raise LogValueError(
                f"`jac` returns an array of shape {out.shape}, but it should be {expected}: a row "
                "for each point, and a column for each parameter."
            )
        return out.astype(p[0].dtype)

    return flat


def curve_and_identity(
    f: Callable[..., Any],
    jac: Callable[..., Any] | None,
    loss: str | Loss,
    structure: Structure | None,
) -> tuple[Curve, Any]:
    """Return the curve of the user's functions, and a key that is equal for equal functions."""
    jacobian = None if jac is None else flat_jacobian(jac, structure)
    curve = Curve(flat_model(f, structure), jacobian, checked_loss(loss))
    return curve, (identity((f, jac, loss)), structure)
