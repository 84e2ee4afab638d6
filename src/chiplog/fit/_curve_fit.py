"""`curve_fit`: as in SciPy, compiled once per model, and in full view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._host import flush
from .._spool import spool
from .._tap import tap
from ..errors import LogTypeError, LogValueError
from ..loggers._composite import is_logger
from ._arguments import (
    checked_bounds,
    checked_data,
    checked_method,
    finite,
    middle_of,
    start_of,
    weights_of,
)
from ._loss import Loss, checked_loss
from ._model import as_flat, as_flat_jacobian, identity
from ._problem import bucket, padded
from ._program import program_of
from ._result import MESSAGES, Fit, covariance_of, warn_of_covariance
from ._solve import Solution, Tolerances
from ._verbose import printer


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
    dtype: Any = np.float64,
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
        callback: Gets the entries of all iterations, as with `chiplog.tap`.
        logger: Any logger of chiplog, which gets them as well.
        history: Keep them, as `.history`.
        dtype: The precision: float64 or float32.

    Examples:
        >>> import chiplog, jax.numpy as jnp, numpy as np
        >>> x = np.linspace(0, 4, 50)
        >>> y = 2.5 * np.exp(-1.3 * x) + 0.5
        >>> popt, pcov = chiplog.fit.curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, y)
        >>> popt.round(6).tolist()
        [2.5, 1.3, 0.5]
    """
    dtype = np.dtype(dtype)
    structure, names, start = start_of(f, p0, dtype)
    low, high = checked_bounds(bounds, len(names))
    start = middle_of(low, high).astype(dtype) if start is None else start
    bounded = bool(np.any(np.isfinite(low)) or np.any(np.isfinite(high)))
    method = checked_method(method, bounded)
    x, y = checked_data(xdata, ydata, dtype)
    x, y, sigma = finite(x, y, sigma, check_finite, nan_policy)
    weights, whiten = weights_of(sigma, len(y), y.dtype)
    if np.any((start < low) | (start > high)):
        raise LogValueError("`x0` is infeasible.")
    if method == "lm" and len(y) < len(start):
        raise LogTypeError(
            f"Improper input: func input vector length N={len(start)} must not exceed func output "
            f"vector length M={len(y)}"
        )
    model = as_flat(f, structure)
    slope = None if not callable(jac) else as_flat_jacobian(jac, structure)
    scale = None if isinstance(x_scale, str) else np.broadcast_to(x_scale, start.shape)
    how = (identity(f), identity(jac), structure, identity(checked_loss(loss)), bounded)
    limits = [y.dtype.type(0.0 if tol is None else tol) for tol in (ftol, xtol, gtol)]
    most = max_nfev or 100 * len(start) * (1 if method == "trf" else 10)
    with jax.enable_x64(dtype == np.float64):  # Whatever the settings are.
        program = program_of(how, model, slope, checked_loss(loss), bounded)
        length = len(y)
        if program.is_pointwise(x, start, y.shape) and whiten is None:
            length = bucket(len(y))
        x = jax.tree.map(lambda a: padded(a, length), x)
        more = np.zeros(length - len(y), y.dtype)
        arrays = (
            x,
            padded(y, length),
            np.concatenate([weights, more]),
            whiten,
            start,
            low,
            high,
            scale,
            np.asarray(f_scale, y.dtype),
            Tolerances(limits[0], limits[1], limits[2], np.int32(most)),
        )
        solution, kept = _run(program.solve, arrays, verbose, callback, logger, history)
        found = jax.tree.map(np.asarray, solution)
    return _result(found, names, structure, y, weights, whiten, absolute_sigma, full_output, kept)


def _run(
    solve: Callable[..., Solution],
    arrays: Any,
    verbose: int,
    callback: Callable[[Any], Any] | None,
    logger: Any,
    history: bool,
) -> tuple[Solution, Any]:
    """Run the solver, and let those who listen see its iterations."""
    if logger is not None and not is_logger(logger):
        raise LogTypeError(f"`logger` is a logger of chiplog, not {logger!r}.")
    listeners = [one for one in (printer(verbose) if verbose else None, callback) if one]
    run = solve
    if logger is not None:
        run = logger.tap(run, keep_logs=True)
    for listener in listeners:
        run = tap(run, listener, keep_logs=True)
    kept = None
    if history:
        solution, kept = spool(run)(*arrays)
        kept = jax.tree.map(np.asarray, kept)
    else:
        solution = run(*arrays)
    if listeners:
        flush()
    return solution, kept


def _result(
    found: Solution,
    names: tuple[str, ...],
    structure: Any,
    y: Any,
    weights: Any,
    whiten: Any,
    absolute_sigma: bool,
    full_output: bool,
    history: Any,
) -> Fit:
    n, points, status = len(found.x), len(y), int(found.status)
    if not np.isfinite(found.cost):
        raise LogValueError("Residuals are not finite in the initial point.")
    if status == 0:
        raise RuntimeError(f"Optimal parameters not found: {MESSAGES[0]}")
    r, q = found.r[:n, :n], found.r[:n, n]
    covariance, loose = covariance_of(r, max(points, n))
    if not absolute_sigma and not loose:
        covariance *= 2 * found.cost / (points - n) if points > n else np.inf
    if loose or (points <= n and not absolute_sigma):
        warn_of_covariance(names, loose)
        covariance = np.full((n, n), np.inf)
    z = y if whiten is None else np.linalg.solve(whiten, y)
    mean = np.average(z, weights=weights**2)
    total = np.sum((weights * (z - mean)) ** 2)
    popt: Any = found.x if structure is None else jax.tree.unflatten(structure, list(found.x))
    values: tuple[Any, ...] = (popt, covariance)
    if full_output:
        info = {"nfev": int(found.nfev), "fvec": None, "fjac": None, "ipvt": None, "qtf": q}
        values = (*values, info, MESSAGES[status], status)
    return Fit(
        values,
        names=names,
        points=points,
        x=found.x,
        cost=float(found.cost),
        grad=r.T @ q,
        optimality=float(found.optimality),
        nfev=int(found.nfev),
        njev=int(found.nfev),
        nit=int(found.nit),
        status=status,
        perr=np.sqrt(np.diag(covariance)),
        rsquared=float(1 - 2 * found.cost / total) if total > 0 else float("nan"),
        history=history,
    )
