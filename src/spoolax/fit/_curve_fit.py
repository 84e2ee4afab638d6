"""`curve_fit`: as in SciPy, compiled once per model, and in full view."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
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
from ._blocks import blocks_of
from ._data import checked_data, device_of, finite, weights_of
from ._descent import MAXIMUM, Solution
from ._listen import Listeners
from ._loss import LOSSES, Loss
from ._mesh import on_mesh, points_on_mesh, sharding_of
from ._model import curve_of
from ._parameters import parameters_of
from ._problem import Curve, Data, bucket, padded
from ._program import keeps_apart, program_of, see_that_it_keeps_apart, solved, solver_of
from ._result import MESSAGES, Fit, result_of
from ._streamed import solve_streamed


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
    """Fit a function to data, by nonlinear least squares.

    Arguments and results are those of `scipy.optimize.curve_fit`; what it returns is `(popt,
    pcov)`, and also has `.cost`, `.perr`, `.nit`, `.message`, ... The model is a function of JAX,
    and is compiled once, whatever the length of the data. Everything is computed in 64 bits,
    whatever the settings of JAX are.

    Args:
        f: The model: `f(x, a, b, ...)`, or `f(x, params)` if `p0` is a pytree, as a dictionary is.
        xdata: The independent variable, with the points along the last axis.
        ydata: What was measured.
        p0: Where to begin; ones, if it is not given.
        sigma: The errors of `ydata`, or their covariance matrix.
        absolute_sigma: Whether `sigma` is meant as it is, and not only up to a factor.
        check_finite: Whether to refuse data that are not finite.
        bounds: Lower and upper bounds of the parameters.
        method: "trf" or "lm"; "lm" knows no bounds.
        jac: The Jacobian of the model, `jac(x, a, b, ...)`. Without it, JAX differentiates.
        loss: "linear", "soft_l1", "huber", "cauchy", "arctan", or a function of z.
        f_scale: The residual at which a loss begins to count less.
        x_scale: The scales of the parameters, or "jac".
        ftol: Ends it when the cost changes by less than this, relatively.
        xtol: Ends it when the parameters do.
        gtol: Ends it when the residuals are as good as orthogonal to the model's derivatives.
        max_nfev: How often to evaluate the model, at most.
        nan_policy: "raise", or "omit" for points that are not a number.
        full_output: Return `(popt, pcov, infodict, mesg, ier)`.
        verbose: 1 prints every 10th iteration, 2 all of them.
        callback: Gets the entries of all iterations, as with `spoolax.tap`.
        logger: Any logger of spoolax, which gets them as well.
        history: Keep them, as `.history`.
        pointwise: Whether the model looks at each point by itself, so that data can be padded, and
            gone through in blocks. Without it, that is proved for models of common operations, and
            not assumed for others.
        dtype: The precision: float64 or float32.
        unknown: Nothing: others are refused, with a hint.

    Examples:
        >>> import spoolax, jax.numpy as jnp, numpy as np
        >>> x = np.linspace(0, 4, 50)
        >>> y = 2.5 * np.exp(-1.3 * x) + 0.5
        >>> popt, pcov = spoolax.fit.curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, y)
        >>> popt.round(6).tolist()
        [2.5, 1.3, 0.5]
    """
    refuse("curve_fit", unknown)
    dtype = checked_dtype(dtype)
    outside_of_traces("curve_fit", xdata, ydata, p0, sigma)
    listeners = Listeners(verbose, callback, logger, history)
    parameters = parameters_of(f, p0, dtype)
    count = len(parameters.names)
    start, low, high = checked_start(parameters, bounds)
    method = checked_method(method, low is not None, "lm")
    curve, seen = curve_of(f, checked_jac(jac), loss, parameters.structure)
    blocks = blocks_of(xdata, ydata, sigma, dtype, check_finite, nan_policy)
    mesh = sharding_of(ydata)
    device = None if blocks or mesh else device_of(xdata, ydata)
    tolerances = ftol, xtol, gtol
    given = arguments_of(None, start, low, high, x_scale, tolerances, max_nfev, method, dtype)
    scale = checked_f_scale(f_scale, dtype)
    on_device = contextlib.nullcontext() if device is None else jax.default_device(device)
    with jax.enable_x64(dtype == np.float64), on_device:  # Whatever the settings are.
        final = curve.final
        if mesh:
            solver = solver_of(on_mesh(curve, mesh), final and on_mesh(final, mesh))
        else:
            solver = solver_of(curve.problem, final and final.problem)
        program = program_of((seen, mesh), solver)
        if blocks and blocks.optional:
            apart = keeps_apart(program, curve, xdata, given.start, pointwise)
            blocks = blocks if apart else None
        if blocks:
            if full_output:
                raise LogValueError("`full_output` is for data in memory, not for blocks of them.")
            found = solve_streamed(program, curve, blocks, given, scale, listeners, pointwise)
            points, later = blocks.points, blocks.later(found, final is None)
            see_enough_points(points, count, method)
        else:
            about = xdata, ydata, sigma, scale, check_finite, nan_policy
            data = points_on_mesh(*about, mesh) if mesh else checked_points(*about)
            points = int(data.points)
            see_enough_points(points, count, method)
            if mesh:
                see_that_it_keeps_apart(program, curve, data.x, given.start, pointwise)
                ready = data
            else:
                apart = keeps_apart(program, curve, data.x, given.start, pointwise)
                alone = apart and data.factor is None
                ready = padded_data(data) if alone else data._replace(points=None)
            found = solved(program, given._replace(data=ready), listeners)
            later = later_of(curve, data, found)
    kept = listeners.finish()
    fit = result_of(found, parameters, points, absolute_sigma, kept, later, (low, high))
    if fit.status == MAXIMUM:
        raise RuntimeError(
            f"Optimal parameters not found: {MESSAGES[MAXIMUM]} (`max_nfev` is {given.most}.)"
        )
    return full(fit) if full_output else fit


def see_enough_points(points: int, parameters: int, method: str) -> None:
    if method == "lm" and points < parameters:
        raise LogTypeError(
            f"Improper input: func input vector length N={parameters} must not exceed func output "
            f"vector length M={points}"
        )


def checked_points(
    xdata: Any,
    ydata: Any,
    sigma: Any,
    f_scale: Any,
    check_finite: bool,
    nan_policy: str | None,
) -> Data:
    """The data, as arrays on the host."""
    x, y = checked_data(xdata, ydata, f_scale.dtype)
    x, y, sigma = finite(x, y, sigma, check_finite, nan_policy)
    if not y.size:
        raise LogValueError("`ydata` must not be empty!")
    weights, factor = weights_of(sigma, len(y), f_scale.dtype)
    return Data(x, y, weights, np.int32(len(y)), factor, f_scale)


def padded_data(data: Data) -> Data:
    """Data of a length that there is a program for."""
    length = bucket(len(data.y))
    return data.mapped(lambda a: padded(a, length))


def later_of(curve: Curve, data: Data, found: Solution) -> dict[str, Callable[[], Any]]:
    """What is computed when somebody asks for it."""

    @functools.cache
    def details() -> list[Any]:
        with jax.enable_x64(found.x.dtype == np.float64):
            return [np.asarray(a) for a in jax.jit(curve.details)(found.x, data)]

    def rsquared() -> float:
        squares = 2 * found.cost if curve.loss is LOSSES["linear"] else np.sum(details()[0] ** 2)
        y, weights = np.asarray(data.y), data.weights
        if data.factor is not None:
            y = np.linalg.solve(data.factor, y)
        by = np.ones_like(y) if weights is None else np.asarray(weights) ** 2
        total = np.sum(by * (y - np.average(y, weights=by)) ** 2)
        return float(1 - squares / total) if total > 0 else float("nan")

    return {"fun": lambda: details()[0], "jac": lambda: details()[1], "rsquared": rsquared}


def full(fit: Fit) -> Fit:
    """The five values that SciPy returns with `full_output`."""
    info = {
        "nfev": fit.nfev,
        "fvec": fit.fun,
        "fjac": fit.r.T,
        "ipvt": np.arange(1, len(fit.x) + 1),
        "qtf": fit.qtf,
    }
    return Fit((*fit, info, fit.message, fit.status), **vars(fit))
