"""`least_squares`: as in SciPy, for functions that return all residuals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._listen.drivers import driver
from ..errors import LogTypeError, LogValueError
from ._arguments import check_call, prepare
from ._model.function import with_clear_errors
from ._model.identity import identity
from ._model.parameters import Structure
from ._program.listeners import Listeners
from ._program.program import Inputs, program_of, run_with_listeners
from ._result import Fit, Lazy, fit_result
from ._solver.losses import Loss, as_least_squares, checked_loss
from ._solver.residuals import residual_problem, value_and_derivatives
from ._solver.solver import Solution, minimize


@driver
def least_squares(
    fun: Callable[..., Any],
    x0: Any,
    jac: Any = None,
    bounds: Any = (-np.inf, np.inf),
    method: str = "trf",
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    x_scale: Any = "jac",
    loss: str | Loss = "linear",
    f_scale: float = 1.0,
    max_nfev: int | None = None,
    verbose: int = 0,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    callback: Callable[[Any], Any] | None = None,
    logger: Any = None,
    history: bool = False,
    dtype: Any = np.float64,
    **unknown: Any,
) -> Fit:
    """Minimize the sum of squares of residuals.

    Arguments and results are those of `scipy.optimize.least_squares`. It returns a result like that
    of `curve_fit`: a pair of the solution and its covariance (for residuals with errors of one),
    with `.x`, `.cost`, `.fun`, `.jac`, ... It does not raise if `max_nfev` is exceeded: see
    `.success`. Arrays passed as `args` may change without compiling again.

    Args:
        fun: The residuals, `fun(x, *args, **kwargs)`: a JAX function.
        x0: Where to start: numbers, or any pytree of them.
        jac: The Jacobian, `jac(x, *args, **kwargs)`. Without it, JAX differentiates.
        bounds: Lower and upper bounds of x.
        method: "trf" or "lm"; "lm" takes no bounds.
        ftol: Stop when the relative change of the cost is below this.
        xtol: Stop when the relative change of x is below this.
        gtol: Stop when the cosine between the residuals and each column of the Jacobian is.
        x_scale: The scales of x, or "jac".
        loss: "linear", "soft_l1", "huber", "cauchy", "arctan", or a function of z.
        f_scale: The residual from which on a robust loss counts less.
        max_nfev: The largest number of evaluations of the residuals.
        verbose: 1 prints every 10th iteration, 2 all of them.
        args: More arguments of `fun`.
        kwargs: More arguments of `fun`, by name.
        callback: Gets the entries of all iterations, as with `spoolax.tap`.
        logger: Any logger of spoolax, which gets them as well.
        history: Keep them, as `.history`.
        dtype: The precision: float64 or float32.
        unknown: Refused, with a hint.

    Examples:
        >>> import spoolax, jax.numpy as jnp
        >>> def rosenbrock(x):
        ...     return jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])
        >>> spoolax.fit.least_squares(rosenbrock, [2.0, 2.0]).x.round(6).tolist()
        [1.0, 1.0]
    """
    check_call("least_squares", unknown, x0, args, kwargs)
    listeners = Listeners(verbose, callback, logger, history)
    if x0 is None:
        raise LogTypeError("`x0` must be numbers to start from, not None.")
    setup = prepare(
        None,
        x0,
        bounds=bounds,
        method="trf" if method is None else method,
        jac=jac,
        f_scale=f_scale,
        x_scale=x_scale,
        ftol=ftol,
        xtol=xtol,
        gtol=gtol,
        max_nfev=max_nfev,
        dtype=dtype,
    )
    structure = setup.parameters.structure
    args = args if isinstance(args, tuple) else (args,)
    arrays, static = _partition((args, dict(kwargs or {})), setup.dtype)
    residuals = _Residuals(fun, setup.jac, checked_loss(loss), structure, static)
    key = "residuals", identity((fun, setup.jac, loss, static[1])), static[0], structure
    inputs = setup.inputs._replace(data=(arrays, setup.f_scale))
    with setup.x64():
        program = program_of(key, residuals.solve)
        count = jax.eval_shape(residuals.function(arrays), inputs.start).shape[0]
        if not count:
            raise LogValueError("`fun` returns no residuals.")
        if setup.method == "lm" and count < len(inputs.start):
            raise LogValueError(
                "Method 'lm' doesn't work when the number of residuals is less than the number of "
                "variables."
            )
        found = run_with_listeners(program, inputs, listeners)

    @functools.cache
    def details() -> tuple[Any, Any]:
        with setup.x64():
            f, jacobian = jax.jit(residuals.residuals_and_jacobian)(found.x, inputs.data)
            return np.asarray(f), np.asarray(jacobian)

    lazy: Lazy = {
        "fun": lambda: details()[0],
        "jac": lambda: details()[1],
        "rsquared": lambda: math.nan,
    }
    kept = listeners.finish()
    return fit_result(found, setup.parameters, count, True, kept, lazy, setup.bounds, "residuals")


class _Residuals:
    """The user's function, with its static arguments."""

    def __init__(
        self, fun: Any, jac: Any, loss: Loss, structure: Structure | None, static: Any
    ) -> None:
        self._fun = with_clear_errors(fun, "The function")
        self._jac = jac and with_clear_errors(jac, "`jac`")
        self._loss, self._structure, self._static = loss, structure, static

    def function(self, arrays: Any) -> Callable[[Any], Any]:
        """Return all residuals as a function of x alone."""
        return lambda x: _flat(self._call(self._fun, x, arrays), x)

    def solve(self, inputs: Inputs) -> Solution:
        """Solve the problem, given the arrays among the arguments."""
        arrays, f_scale = inputs.data
        fun, jac = self.function(arrays), self._jacobian(arrays)
        problem, final = residual_problem(fun, jac, self._loss, f_scale)
        return minimize(problem, inputs.start, inputs.solver, final)

    def residuals_and_jacobian(self, x: Any, data: Any) -> tuple[Any, Any]:
        """Return all residuals, and the Jacobian of the least-squares problem."""
        arrays, f_scale = data
        f, derivatives = value_and_derivatives(self.function(arrays), self._jacobian(arrays), x)
        return f, as_least_squares(self._loss, f, derivatives, f_scale, exact=True)[1][:-1].T

    def _jacobian(self, arrays: Any) -> Callable[[Any], Any] | None:
        if self._jac is None:
            return None
        return lambda x: jnp.asarray(self._call(self._jac, x, arrays), x.dtype)

    def _call(self, f: Callable[..., Any], x: Any, arrays: Any) -> Any:
        args, kwargs = _combine(arrays, self._static)
        return f(x if self._structure is None else self._structure.unflatten(x), *args, **kwargs)


def _flat(out: Any, x: Any) -> Any:
    out = jnp.atleast_1d(jnp.asarray(out))
    if out.ndim > 1:
        raise LogValueError(
            f"`fun` must return at most 1-d array_like, but it returned shape {out.shape}."
        )
    return out.astype(x.dtype)


def _partition(tree: Any, dtype: Any) -> tuple[list[Any], Any]:
    """Return the arrays among arguments, and all the rest, which can be hashed."""
    leaves, structure = jax.tree.flatten(tree)
    arrays: list[Any] = []
    rest: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array, float)):
            array = np.asarray(leaf)
            arrays.append(array.astype(dtype) if array.dtype.kind == "f" else array)
            rest.append(None)
        else:  # Integers may be sizes, or powers.
            rest.append((leaf,))
    return arrays, (structure, tuple(rest))


def _combine(arrays: list[Any], static: Any) -> Any:
    """Undo `_partition`."""
    structure, rest = static
    following = iter(arrays)
    return jax.tree.unflatten(
        structure, [next(following) if one is None else one[0] for one in rest]
    )
