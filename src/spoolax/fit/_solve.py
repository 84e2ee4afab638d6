"""The solver: nonlinear least squares in one loop that compiles, and logs its own iterations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import LogValueError
from ._bounds import Bounds
from ._descent import Descent, Problem, Solution, Tolerances, descend
from ._loss import LOSSES, Loss, as_squares, checked_loss
from ._triangular import factor


def solve(
    fun: Callable[..., Any],
    x0: Any,
    *,
    bounds: tuple[Any, Any] | None = None,
    jac: Callable[..., Any] | None = None,
    loss: str | Loss = "linear",
    f_scale: Any = 1.0,
    x_scale: Any = "jac",
    ftol: Any = 1e-8,
    xtol: Any = 1e-8,
    gtol: Any = 1e-8,
    max_nfev: Any = 1000,
) -> Solution:
    """Minimize the sum of the squares of residuals: a traced function, for `jit` and `vmap`.

    It logs "cost", "reduction", "step_norm" and "optimality" of every iteration; `spool` or `tap`
    it to see them. The precision is that of `x0`.

    Examples:
        >>> import jax, jax.numpy as jnp, spoolax
        >>> x = jnp.linspace(0, 1, 20)
        >>> def fit(y):
        ...     return spoolax.fit.solve(lambda p: p[0] * jnp.exp(-p[1] * x) - y, jnp.ones(2))
        >>> solution = jax.jit(fit)(2 * jnp.exp(-3 * x))
        >>> [round(float(x), 3) for x in solution.x]
        [2.0, 3.0]
        >>> many = jax.vmap(fit)(jnp.stack([2 * jnp.exp(-k * x) for k in (1, 2)]))
        >>> [round(float(x), 3) for x in many.x[:, 1]]
        [1.0, 2.0]
    """
    x0 = jnp.asarray(x0)
    x0 = x0 if jnp.issubdtype(x0.dtype, jnp.floating) else x0.astype(float)
    if x0.ndim != 1:
        raise LogValueError(
            f"`x0` has the shape {x0.shape}; it is one row of numbers. For more of them, use "
            "`jax.vmap`; for other structures, `jax.flatten_util.ravel_pytree`."
        )
    problem, final = problems_of(fun, jac, checked_loss(loss), f_scale)
    limits = None if bounds is None else Bounds(*(jnp.broadcast_to(b, x0.shape) for b in bounds))
    fixed = None if isinstance(x_scale, str) else 1 / jnp.broadcast_to(x_scale, x0.shape)
    how = Descent(limits, fixed, Tolerances(ftol, xtol, gtol, max_nfev))
    return descend(problem, x0, how, final)


def problems_of(
    fun: Callable[..., Any], jac: Callable[..., Any] | None, loss: Loss, f_scale: Any
) -> tuple[Problem, Problem | None]:
    """The problem of a function that returns all residuals; and of its result, if different."""

    def problem(x: Any, exact: bool = False) -> tuple[Any, Any]:
        f, slopes = differentiated(fun, jac, x)
        costs, columns = as_squares(loss, f, slopes, f_scale, exact)
        return jnp.sum(costs), factor(columns)

    final = functools.partial(problem, exact=True)
    return problem, None if loss is LOSSES["linear"] else final


def differentiated(
    fun: Callable[[Any], Any], jac: Callable[[Any], Any] | None, x: Any
) -> tuple[Any, Any]:
    """Residuals, and their derivatives by each parameter.

    Forward if there are no more parameters than residuals, else in reverse.
    """
    if jac is not None:
        return fun(x), jac(x).T
    if len(x) <= jax.eval_shape(fun, x).shape[0]:
        unit = jnp.eye(len(x), dtype=x.dtype)
        f, slopes = jax.vmap(lambda v: jax.jvp(fun, (x,), (v,)), out_axes=(None, 0))(unit)
        return f, slopes
    f, pull = jax.vjp(fun, x)
    return f, jax.vmap(lambda v: pull(v)[0], out_axes=1)(jnp.eye(len(f), dtype=f.dtype))
