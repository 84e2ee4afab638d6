"""`least_squares`: as in SciPy, for functions that return all residuals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._listen.drivers import driver
from ..errors import LogTypeError, LogValueError
from ._arguments import (
    arguments_of,
    checked_dtype,
    checked_f_scale,
    checked_jac,
    checked_method,
    checked_start,
    outside_of_traces,
    refuse,
)
from ._descent import Problem, Solution, descend
from ._identity import identity
from ._listen import Listeners
from ._loss import Loss, as_squares, checked_loss
from ._model import explained
from ._parameters import Structure, parameters_of
from ._program import Arguments, program_of, solved
from ._result import Fit, result_of
from ._solve import differentiated, problems_of


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
    """Minimize the sum of the squares of residuals.

    Arguments and results are those of `scipy.optimize.least_squares`; what it returns is the
    result of `curve_fit`: a pair of the solution and its covariance (for residuals whose errors
    are one), with `.x`, `.cost`, `.fun`, `.jac`, ... It does not raise an error if `max_nfev` is
    exceeded: `.success` says so. Data that are given as `args` may change without compiling anew.

    Args:
        fun: The residuals: `fun(x, *args, **kwargs)`, a function of JAX.
        x0: Where to begin: numbers, or any pytree of them.
        jac: The Jacobian, `jac(x, *args, **kwargs)`. Without it, JAX differentiates.
        bounds: Lower and upper bounds of x.
        method: "trf" or "lm"; "lm" knows no bounds.
        ftol: Ends it when the cost changes by less than this, relatively.
        xtol: Ends it when x does.
        gtol: Ends it when the residuals are as good as orthogonal to their derivatives.
        x_scale: The scales of x, or "jac".
        loss: "linear", "soft_l1", "huber", "cauchy", "arctan", or a function of z.
        f_scale: The residual at which a loss begins to count less.
        max_nfev: How often to evaluate the residuals, at most.
        verbose: 1 prints every 10th iteration, 2 all of them.
        args: More arguments of `fun`.
        kwargs: More arguments of `fun`, by their names.
        callback: Gets the entries of all iterations, as with `spoolax.tap`.
        logger: Any logger of spoolax, which gets them as well.
        history: Keep them, as `.history`.
        dtype: The precision: float64 or float32.
        unknown: Nothing: others are refused, with a hint.

    Examples:
        >>> import spoolax, jax.numpy as jnp
        >>> def rosenbrock(x):
        ...     return jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])
        >>> spoolax.fit.least_squares(rosenbrock, [2.0, 2.0]).x.round(6).tolist()
        [1.0, 1.0]
    """
    refuse("least_squares", unknown)
    dtype = checked_dtype(dtype)
    outside_of_traces("least_squares", x0, args, kwargs)
    listeners = Listeners(verbose, callback, logger, history)
    if x0 is None:
        raise LogTypeError("`x0` says where to begin: numbers.")
    parameters = parameters_of(None, x0, dtype)
    start, low, high = checked_start(parameters, bounds)
    method = checked_method(method, low is not None, "trf")
    jac = checked_jac(jac)
    dynamic, static = _split(
        (args if isinstance(args, tuple) else (args,), dict(kwargs or {})), dtype
    )
    problem = _Residuals(fun, jac, checked_loss(loss), parameters.structure, static)
    seen = identity((fun, jac, loss, static[1]))
    key = "residuals", seen, static[0], parameters.structure
    data = dynamic, checked_f_scale(f_scale, dtype)
    tolerances = ftol, xtol, gtol
    given = arguments_of(data, start, low, high, x_scale, tolerances, max_nfev, method, dtype)
    with jax.enable_x64(dtype == np.float64):
        program = program_of(key, problem.solve)
        count = jax.eval_shape(problem.residuals(dynamic), given.start).shape[0]
        if not count:
            raise LogValueError("`fun` returns no residuals.")
        if method == "lm" and count < len(start):
            raise LogValueError(
                "Method 'lm' doesn't work when the number of residuals is less than the number of "
                "variables."
            )
        found = solved(program, given, listeners)

    @functools.cache
    def details() -> tuple[Any, Any]:
        with jax.enable_x64(dtype == np.float64):
            f, jacobian = jax.jit(problem.details)(found.x, data)
            return np.asarray(f), np.asarray(jacobian)

    later = {
        "fun": lambda: details()[0],
        "jac": lambda: details()[1],
        "rsquared": lambda: float("nan"),
    }
    kept = listeners.finish()
    return result_of(found, parameters, count, True, kept, later, (low, high), "residuals")


class _Residuals:
    """The user's function, with what is static to it."""

    def __init__(
        self, fun: Any, jac: Any, loss: Loss, structure: Structure | None, static: Any
    ) -> None:
        self._fun, self._jac = explained(fun, "The function"), jac and explained(jac, "`jac`")
        self._loss, self._structure, self._static = loss, structure, static

    def residuals(self, dynamic: Any) -> Callable[[Any], Any]:
        return lambda x: _flat(self._call(self._fun, x, dynamic), x)

    def problems(self, data: Any) -> tuple[Problem, Problem | None]:
        dynamic, f_scale = data
        return problems_of(self.residuals(dynamic), self._jacobian(dynamic), self._loss, f_scale)

    def solve(self, given: Arguments) -> Solution:
        problem, final = self.problems(given.data)
        return descend(problem, given.start, given.how(), final)

    def details(self, x: Any, data: Any) -> tuple[Any, Any]:
        dynamic, f_scale = data
        f, slopes = differentiated(self.residuals(dynamic), self._jacobian(dynamic), x)
        return f, as_squares(self._loss, f, slopes, f_scale, exact=True)[1][:-1].T

    def _jacobian(self, dynamic: Any) -> Callable[[Any], Any] | None:
        if self._jac is None:
            return None
        return lambda x: jnp.asarray(self._call(self._jac, x, dynamic), x.dtype)

    def _call(self, f: Callable[..., Any], x: Any, dynamic: Any) -> Any:
        args, kwargs = _joined(dynamic, self._static)
        return f(x if self._structure is None else self._structure.unflatten(x), *args, **kwargs)


def _flat(out: Any, x: Any) -> Any:
    out = jnp.atleast_1d(jnp.asarray(out))
    if out.ndim > 1:
        raise LogValueError(
            f"`fun` must return at most 1-d array_like, but it returned one of {out.shape}."
        )
    return out.astype(x.dtype)


def _split(tree: Any, dtype: Any) -> tuple[list[Any], Any]:
    """The arrays among arguments, and all the rest, which can be hashed."""
    leaves, structure = jax.tree.flatten(tree)
    arrays: list[Any] = []
    rest: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array, float)):
            array = np.asarray(leaf)
            arrays.append(array.astype(dtype) if array.dtype.kind == "f" else array)
            rest.append(None)
        else:  # Whole numbers may be sizes, or powers.
            rest.append((leaf,))
    return arrays, (structure, tuple(rest))


def _joined(arrays: list[Any], static: Any) -> Any:
    structure, rest = static
    following = iter(arrays)
    return jax.tree.unflatten(
        structure, [next(following) if one is None else one[0] for one in rest]
    )
