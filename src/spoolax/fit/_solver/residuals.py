"""Problems for the solver, from a function that returns all residuals; and their derivatives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..._log.primitive import listening
from .losses import Loss, as_least_squares, linear
from .solver import Problem
from .triangular import triangular_factor


def residual_problem(
    fun: Callable[[Any], Any], jac: Callable[[Any], Any] | None, loss: Loss, f_scale: Any
) -> tuple[Problem, Problem | None]:
    """Return the problem of a function, and the one for the factor of the result if it differs."""

    def problem(x: Any, exact: bool = False) -> tuple[Any, Any]:
        f, derivatives = value_and_derivatives(fun, jac, x)
        costs, columns = as_least_squares(loss, f, derivatives, f_scale, exact)
        return jnp.sum(costs), triangular_factor(columns)

    return problem, None if loss is linear else functools.partial(problem, exact=True)


def value_and_derivatives(
    fun: Callable[[Any], Any], jac: Callable[[Any], Any] | None, x: Any
) -> tuple[Any, Any]:
    """Return the residuals, and their derivatives with a row for each parameter.

    Without `jac`, in forward mode if there are no more parameters than residuals, else in reverse.
    """
    if jac is not None:
        return fun(x), jac(x).T
    if len(x) <= jax.eval_shape(fun, x).shape[0]:
        unit = jnp.eye(len(x), dtype=x.dtype)
        f, derivatives = jax.vmap(lambda v: jax.jvp(fun, (x,), (v,)), out_axes=(None, 0))(unit)
        return f, derivatives
    f, pullback = jax.vjp(fun, x)
    return f, jax.vmap(lambda v: pullback(v)[0], out_axes=1)(jnp.eye(len(f), dtype=f.dtype))


def value_and_unrolled_derivatives(
    fun: Callable[[list[Any]], Any], x: list[Any]
) -> tuple[Any, Any]:
    """Differentiate by one parameter after the other.

    Then XLA drops whatever does not depend on a parameter from its derivative.
    """
    derivatives = []
    for i, one in enumerate(x):

        def of_one(value: Any, i: int = i) -> Any:
            return fun([*x[:i], value, *x[i + 1 :]])

        with contextlib.nullcontext() if i == 0 else listening(None):  # Log only once.
            f, derivative = jax.jvp(of_one, (one,), (jnp.ones_like(one),))
        derivatives.append(derivative)
    return f, jnp.stack(derivatives)
