"""`solve`: the solver as a traced function, for use inside `jit` and `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..errors import LogValueError
from ._arguments import bounds_pair, checked_jac, is_scale_from_jacobian
from ._solver.bounds import Bounds
from ._solver.losses import Loss, checked_loss
from ._solver.residuals import residual_problem
from ._solver.solver import Solution, Solver, Tolerances, minimize


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
    """Minimize the sum of squares of residuals: a function to trace, for `jit` and `vmap`.

    It logs "cost", "reduction", "step_norm", "optimality" and "nfev" of every iteration; `spool` or
    `tap` it to see them. The precision is that of `x0`. Arguments mean what they mean to
    `least_squares`, but may be traced, so their values are not checked.

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
            f"`x0` has shape {x0.shape}, but it must be one row of numbers. For several, use "
            "`jax.vmap`; for other structures, `jax.flatten_util.ravel_pytree`."
        )
    limits = scale = None
    if bounds is not None:
        limits = Bounds(*(jnp.broadcast_to(b, x0.shape) for b in bounds_pair(bounds)))
    if not is_scale_from_jacobian(x_scale):
        scale = jnp.broadcast_to(x_scale, x0.shape)
    solver = Solver(limits, scale, Tolerances(ftol, xtol, gtol, max_nfev))
    problem, final = residual_problem(fun, checked_jac(jac), checked_loss(loss), f_scale)
    return minimize(problem, x0, solver, final)
