"""`curve_fit`: as in SciPy, compiled once per model, and in full view."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from .._listen.drivers import driver
from ..errors import LogValueError
from ._arguments import check_call, prepare
from ._data.arrays import device_of
from ._data.blocks import Blocks, as_blocks
from ._data.mesh import checked_points_on_mesh, sharding_of
from ._data.points import Data, checked_points
from ._model.curve import Curve
from ._model.function import curve_and_identity
from ._model.sharded import sharded_problem
from ._program.listeners import Listeners
from ._program.program import Inputs, minimizer, program_of, run_with_listeners
from ._program.streaming import solve_in_blocks
from ._result import MESSAGES, Fit, Lazy, fit_result
from ._solver.losses import Loss
from ._solver.solver import MAX_NFEV, Problem, Solution


@driver
def curve_fit(
    f: Callable[..., Any],
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    check_finite: bool = True,
    bounds: Any = (-np.inf, np.inf),
    method: str | None = None,
    jac: Any = None,
    *,
    loss: str | Loss = "linear",
    f_scale: float = 1.0,
    x_scale: Any = "jac",
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    max_nfev: int | None = None,
    nan_policy: str | None = None,
    full_output: bool = False,
    verbose: int = 0,
    callback: Callable[[Any], Any] | None = None,
    logger: Any = None,
    history: bool = False,
    pointwise: bool | None = None,
    dtype: Any = np.float64,
    **unknown: Any,
) -> Fit:
    """Fit a function to data by nonlinear least squares.

    Arguments and results are those of `scipy.optimize.curve_fit`. It returns `(popt, pcov)`, which
    also has `.cost`, `.perr`, `.nit`, `.message`, ... The model is a JAX function, and is compiled
    once, whatever the length of the data. Everything is computed in 64 bits, whatever the settings
    of JAX are.

    Args:
        f: The model: `f(x, a, b, ...)`, or `f(x, params)` if `p0` is a pytree such as a dictionary.
        xdata: The independent variable, with the points along the last axis.
        ydata: The measured values.
        p0: Where to start; ones, if it is not given.
        sigma: The errors of `ydata`, or their covariance matrix.
        absolute_sigma: Whether `sigma` is absolute, and not only known up to a factor.
        check_finite: Whether to refuse data that are not finite.
        bounds: Lower and upper bounds of the parameters.
        method: "trf" or "lm"; "lm" takes no bounds.
        jac: The Jacobian of the model, `jac(x, a, b, ...)`. Without it, JAX differentiates.
        loss: "linear", "soft_l1", "huber", "cauchy", "arctan", or a function of z.
        f_scale: The residual from which on a robust loss counts less.
        x_scale: The scales of the parameters, or "jac".
        ftol: Stop when the relative change of the cost is below this.
        xtol: Stop when the relative change of the parameters is below this.
        gtol: Stop when the cosine between the residuals and each column of the Jacobian is.
        max_nfev: The largest number of evaluations of the model.
        nan_policy: "raise", or "omit" to leave out points that are NaN.
        full_output: Return `(popt, pcov, infodict, mesg, ier)`.
        verbose: 1 prints every 10th iteration, 2 all of them.
        callback: Gets the entries of all iterations, as with `spoolax.tap`.
        logger: Any logger of spoolax, which gets them as well.
        history: Keep them, as `.history`.
        pointwise: Whether the model looks at each point by itself, so that data can be padded and
            cut into blocks. Without it, that is proved for models of common operations, and not
            assumed for others.
        dtype: The precision: float64 or float32.
        unknown: Refused, with a hint.

    Examples:
        >>> import spoolax, jax.numpy as jnp, numpy as np
        >>> x = np.linspace(0, 4, 50)
        >>> y = 2.5 * np.exp(-1.3 * x) + 0.5
        >>> popt, pcov = spoolax.fit.curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, y)
        >>> popt.round(6).tolist()
        [2.5, 1.3, 0.5]
    """
    check_call("curve_fit", unknown, xdata, ydata, p0, sigma)
    listeners = Listeners(verbose, callback, logger, history)
    setup = prepare(
        f,
        p0,
        bounds=bounds,
        method=method,
        jac=jac,
        f_scale=f_scale,
        x_scale=x_scale,
        ftol=ftol,
        xtol=xtol,
        gtol=gtol,
        max_nfev=max_nfev,
        dtype=dtype,
    )
    inputs, scale = setup.inputs, setup.f_scale
    curve, key = curve_and_identity(f, setup.jac, loss, setup.parameters.structure)
    blocks = as_blocks(xdata, ydata, sigma, setup.dtype, check_finite, nan_policy)
    mesh = sharding_of(ydata)
    device = None if blocks or mesh else device_of(xdata, ydata)
    on_device = contextlib.nullcontext() if device is None else jax.default_device(device)
    with setup.x64(), on_device:
        program = program_of((key, mesh), _solver_on(curve, mesh))
        if blocks and blocks.in_memory:
            is_pointwise = program.is_pointwise(curve, xdata, inputs.start, pointwise)
            blocks = blocks if is_pointwise else None
        if blocks:
            if full_output:
                raise LogValueError("`full_output` needs data in memory, not blocks of them.")
            found = solve_in_blocks(program, curve, blocks, inputs, scale, listeners, pointwise)
            points, lazy = blocks.points, _lazy_of_blocks(blocks, curve, found)
            setup.check_enough_points(points)
        else:
            given = xdata, ydata, sigma, scale, check_finite, nan_policy
            data = checked_points_on_mesh(*given, mesh) if mesh else checked_points(*given)
            points = int(data.points)
            setup.check_enough_points(points)
            about = curve, data.x, inputs.start, pointwise
            if mesh:
                program.check_pointwise(*about)
                ready = data
            elif program.is_pointwise(*about) and data.cholesky is None:
                ready = data.padded()
            else:
                ready = data._replace(points=None)
            found = run_with_listeners(program, inputs._replace(data=ready), listeners)
            lazy = _lazy_of_points(data, curve, found)
    kept = listeners.finish()
    fit = fit_result(found, setup.parameters, points, absolute_sigma, kept, lazy, setup.bounds)
    if fit.status == MAX_NFEV:
        most = int(inputs.solver.tolerances.max_nfev)
        raise RuntimeError(
            f"Optimal parameters not found: {MESSAGES[MAX_NFEV]} (`max_nfev` is {most}.)"
        )
    return _with_full_output(fit) if full_output else fit


def _solver_on(curve: Curve, mesh: NamedSharding | None) -> Callable[[Inputs], Solution]:
    """Return what solves the problem of a curve and of data, which may be on a mesh."""

    def problem(curve: Curve) -> Callable[[Data], Problem]:
        return curve.problem if mesh is None else sharded_problem(curve, mesh)

    return minimizer(problem(curve), None if curve.final is None else problem(curve.final))


def _lazy_of_blocks(blocks: Blocks, curve: Curve, found: Solution) -> Lazy:
    """Return the attributes of a result that are computed when they are asked for."""
    return {"rsquared": lambda: blocks.rsquared(found.cost) if curve.final is None else math.nan}


def _lazy_of_points(data: Data, curve: Curve, found: Solution) -> Lazy:
    """Return the attributes of a result that are computed when they are asked for."""

    @functools.cache
    def details() -> list[Any]:
        with jax.enable_x64(found.x.dtype == np.float64):
            return [np.asarray(a) for a in jax.jit(curve.residuals_and_jacobian)(found.x, data)]

    def rsquared() -> float:
        squares = 2 * found.cost if curve.final is None else np.sum(details()[0] ** 2)
        y, weights = np.asarray(data.y), data.weights
        if data.cholesky is not None:
            y = np.linalg.solve(data.cholesky, y)
        squared = np.ones_like(y) if weights is None else np.asarray(weights) ** 2
        total = np.sum(squared * (y - np.average(y, weights=squared)) ** 2)
        return float(1 - squares / total) if total > 0 else math.nan

    return {"fun": lambda: details()[0], "jac": lambda: details()[1], "rsquared": rsquared}


def _with_full_output(fit: Fit) -> Fit:
    """Return the five values that SciPy returns with `full_output`."""
    info = {
        "nfev": fit.nfev,
        "fvec": fit.fun,
        "fjac": fit.r.T,
        "ipvt": np.arange(1, len(fit.x) + 1),
        "qtf": fit.qtf,
    }
    return Fit((*fit, info, fit.message, fit.status), **vars(fit))
