"""`curve_fit_batch`: thousands of fits of one model in one call."""

from __future__ import annotations

import concurrent.futures
import functools
import os
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
    see_inside,
)
from ._data import on_cpu, see_finite, see_lengths, see_policy
from ._descent import BAD, Solution
from ._lanes import LANES, Many, solve_many
from ._listen import Listeners
from ._loss import Loss
from ._model import curve_of
from ._parameters import parameters_of
from ._problem import bucket, padded
from ._program import Arguments, Program, keeps_apart, program_of
from ._result import (
    MESSAGES,
    Pair,
    covariance_of,
    regular_covariance_of,
    warn_of_covariance,
)


class BatchFit(Pair):
    """`(popt, pcov)` of many fits along the first axis; also `cost`, `status`, `success`, ...

    Examples:
        >>> import spoolax, numpy as np
        >>> x = np.arange(5.0)
        >>> ys = np.array([[2.0], [3.0]]) * x
        >>> spoolax.fit.curve_fit_batch(lambda x, a: a * x, x, ys)
        BatchFit: 2 fits of 5 points and 1 parameters, 2 converged, at most 3 evaluations
    """

    names: tuple[str, ...]
    points: Any
    x: Any
    cost: Any
    optimality: Any
    nfev: Any
    nit: Any
    status: Any
    history: Any

    @property
    def success(self) -> Any:
        """Which ones have converged."""
        return self.status > 0

    @property
    def message(self) -> list[str]:
        """Why each of them ended."""
        few = "There are fewer points than parameters."
        pairs = zip(self.status, self.points, strict=True)
        least = len(self.names)
        return [few if s < 0 and n < least else MESSAGES[int(s)] for s, n in pairs]

    @property
    def perr(self) -> Any:
        """The standard errors of the parameters."""
        return np.sqrt(np.diagonal(self[1], axis1=1, axis2=2))

    def __repr__(self) -> str:
        least, most = np.min(self.points), np.max(self.points)
        points = f"{most}" if least == most else f"{least} to {most}"
        return (
            f"BatchFit: {len(self.x)} fits of {points} points and {len(self.names)} parameters, "
            f"{int(np.sum(self.success))} converged, at most {int(np.max(self.nfev))} evaluations"
        )


@driver
def curve_fit_batch(
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
    verbose: int = 0,
    callback: Callable[[Any], Any] | None = None,
    logger: Any = None,
    history: bool = False,
    pointwise: bool | None = None,
    shared_x: bool | None = None,
    dtype: Any = np.float64,
    **unknown: Any,
) -> BatchFit:
    """Fit a function to many sets of data at once.

    Options are those of `curve_fit`. A fit that fails does not stop the others: `.status` says of
    each of them why it ended, as in SciPy, and `.success` which ones have converged. Entries of
    `callback`, `logger` and `history` say how many fits are "done" and "running".

    Args:
        f: The model, as in `curve_fit`.
        xdata: The independent variable, the same for all fits; or with one row for each.
        ydata: What was measured, with one row for each fit.
        p0: Where to begin: numbers, or an array with a row of them for each fit; or a pytree.
        sigma: The errors of `ydata`: one row for all fits, or one for each.
        absolute_sigma: As in `curve_fit`, like everything below.
        check_finite: As in `curve_fit`.
        bounds: As in `curve_fit`; the same for all fits.
        method: As in `curve_fit`.
        jac: As in `curve_fit`.
        loss: As in `curve_fit`.
        f_scale: As in `curve_fit`.
        x_scale: As in `curve_fit`.
        ftol: As in `curve_fit`.
        xtol: As in `curve_fit`.
        gtol: As in `curve_fit`.
        max_nfev: As in `curve_fit`.
        nan_policy: As in `curve_fit`; "omit" leaves out points of some fits.
        verbose: 1 prints every 10th step, 2 all of them.
        callback: As in `curve_fit`.
        logger: As in `curve_fit`.
        history: As in `curve_fit`.
        pointwise: As in `curve_fit`.
        shared_x: Whether all fits have the same `xdata`. Without it, an array whose first axis is
            as long as there are fits, and is not its last, has one part for each of them.
        dtype: As in `curve_fit`.
        unknown: As in `curve_fit`.

    Examples:
        >>> import spoolax, jax.numpy as jnp, numpy as np
        >>> x, rates = np.linspace(0, 3, 40), np.linspace(0.5, 2, 1000)
        >>> ys = 2 * np.exp(-rates[:, None] * x)
        >>> fits = spoolax.fit.curve_fit_batch(lambda x, a, b: a * jnp.exp(-b * x), x, ys)
        >>> bool(np.allclose(fits.x[:, 1], rates)), bool(fits.success.all())
        (True, True)
    """
    refuse("curve_fit_batch", unknown)
    dtype = checked_dtype(dtype)
    outside_of_traces("curve_fit_batch", xdata, ydata, p0, sigma)
    listeners = Listeners(verbose, callback, logger, history)
    x, y, weights, points = _checked(xdata, ydata, sigma, check_finite, nan_policy, dtype)
    fits, length = y.shape
    starts = _rows(p0, fits, dtype)
    parameters = parameters_of(f, p0 if starts is None else starts[0], dtype)
    names = parameters.names
    first, low, high = checked_start(parameters, bounds)
    starts = np.broadcast_to(first, (fits, len(names))) if starts is None else starts
    if low is not None:
        outside = np.any((starts < low) | (starts > high), axis=1)
        see_inside(starts[np.argmax(outside)], low, high, names)
    method = checked_method(method, low is not None, "lm")
    if method == "lm" and length < len(names):
        raise LogTypeError(f"There are {len(names)} parameters, but only {length} points.")
    curve, seen = curve_of(f, checked_jac(jac), loss, parameters.structure)
    leading = {a.shape[0] for a in jax.tree.leaves(x) if a.ndim > 1}
    if shared_x is False and leading != {fits}:
        raise LogValueError(f"`xdata` has {leading} rows, but there are {fits} fits.")
    shared = (
        jax.tree.map(lambda a: not _is_by_fit(a, y) if shared_x is None else shared_x, x),
        None if weights is None else weights.ndim == 1,
    )
    key = "batch", seen, *map(str, jax.tree.leaves(shared)), jax.tree.structure(shared)
    tolerances = ftol, xtol, gtol
    given = arguments_of(None, first, low, high, x_scale, tolerances, max_nfev, method, dtype)
    with jax.enable_x64(dtype == np.float64):
        program = program_of(key, functools.partial(solve_many, curve, shared))
        one = jax.tree.map(lambda a, same: a if same else a[0], x, shared[0])
        apart = keeps_apart(program, curve, one, given.start, pointwise)
        size = bucket(length) if apart else length
        x, y_padded, weights = jax.tree.map(lambda a: padded(a, size), (x, y, weights))
        by_fit = (
            jax.tree.map(lambda a, same: None if same else a, x, shared[0]),
            y_padded,
            None if shared[1] else weights,
            starts.astype(dtype),
        )

        def part(begin: int, end: int, capacity: int) -> Arguments:
            """Some of the fits. New numbers of them need not be compiled for, either."""

            def cut(a: Any) -> Any:
                missing = capacity - (end - begin)
                return np.concatenate([a[begin:end], np.repeat(a[:1], missing, axis=0)])

            some_x, some_y, some_weights, some_starts = jax.tree.map(cut, by_fit)
            data = Many(
                jax.tree.map(lambda a, same, one: a if same else one, x, shared[0], some_x),
                some_y,
                weights if shared[1] else some_weights,
                np.int32(length) if apart else None,
                checked_f_scale(f_scale, dtype),
                np.int32(end - begin),
            )
            return given._replace(data=data, start=some_starts)

        found = _solved(program, part, fits, listeners)
    kept = listeners.finish()
    few = points < (len(names) if method == "lm" else 1)
    found = found._replace(status=np.where(few, BAD, found.status))
    covariance = _covariances(found, points, absolute_sigma)
    structure = parameters.structure
    popt = found.x if structure is None else _by_fit(structure, found.x)
    return BatchFit(
        (popt, covariance),
        names=names,
        points=points,
        history=kept,
        **{name: getattr(found, name) for name in ("x", "cost", "optimality")},
        **{name: getattr(found, name) for name in ("nfev", "nit", "status")},
    )


def _solved(
    program: Program, part: Callable[[int, int, int], Arguments], fits: int, listeners: Listeners
) -> Solution:
    """Solve all fits, with as many threads as there are processors if that is where they run."""
    run = listeners.around(program.solve)
    if run is not program.solve or jax.config.jax_disable_jit:
        found = run(part(0, fits, bucket(fits)))
        return Solution(*(np.asarray(a)[:fits] for a in found))
    threads = max(1, min(processors(), fits // LANES)) if on_cpu() else 1
    size = -(-fits // threads)
    parts = [part(begin, min(begin + size, fits), bucket(size)) for begin in range(0, fits, size)]
    ready = program.ready(program.solve, parts[0])
    wide, default = jax.config.jax_enable_x64, jax.config.jax_default_device

    def solve(given: Arguments) -> list[Any]:
        with jax.enable_x64(wide), jax.default_device(default):  # Each thread has its own.
            return [np.asarray(a)[: int(given.data.fits)] for a in ready(given)]

    if threads == 1:
        return Solution(*solve(parts[0]))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return Solution(*map(np.concatenate, zip(*pool.map(solve, parts), strict=True)))


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked(
    xdata: Any, ydata: Any, sigma: Any, check: bool, policy: str | None, dtype: Any
) -> tuple[Any, Any, Any, Any]:
    """The data, weights (None: all are one), and how many points each fit has."""
    try:
        y = np.asarray(ydata, dtype)
        x = jax.tree.map(
            lambda a: np.asarray(a, dtype), dict(xdata) if isinstance(xdata, dict) else [xdata]
        )
        weights = None if sigma is None else np.asarray(sigma, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"Data are arrays of numbers: {error}") from error
    x = x if isinstance(xdata, dict) else x[0]
    if y.ndim != 2 or not y.size:
        raise LogValueError(
            f"`ydata` has the shape {y.shape}: it has one row for each fit. (For one fit alone, "
            "there is `curve_fit`.)"
        )
    see_lengths(x, y[0])
    if weights is not None:
        weights = 1 / (np.full(y.shape[1], weights) if weights.ndim == 0 else weights)
        if weights.shape not in (y.shape, y.shape[1:]):
            raise LogValueError(f"`sigma` has the shape {weights.shape}, but `ydata` {y.shape}.")
        if not np.all((weights > 0) & np.isfinite(weights)):
            raise LogValueError("All of `sigma` must be positive and finite.")
    points = np.full(len(y), y.shape[1])
    see_policy(policy)
    if policy == "omit" and np.isnan(y).any():
        bad = np.isnan(y)
        points = np.sum(~bad, axis=1)
        weights = np.where(bad, 0, 1 if weights is None else weights).astype(dtype)
        y = np.where(bad, 0, y)
    if check or policy is not None:
        see_finite(x, y)
    return x, y, weights, points


def _rows(p0: Any, fits: int, dtype: Any) -> Any:
    """The start of each fit, if they have their own."""
    if p0 is None or not isinstance(p0, (list, tuple, np.ndarray, jax.Array, str)):
        return None
    if hasattr(p0, "_fields"):
        return None
    try:
        rows = np.asarray(p0, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(
            f"`p0` are numbers, or a row of them for each fit (or one pytree for all): {error}"
        ) from error
    if rows.ndim < 2:
        return None
    if rows.ndim > 2 or len(rows) != fits:
        raise LogValueError(f"`p0` has the shape {rows.shape}, but there are {fits} fits.")
    if not np.isfinite(rows).all():
        raise LogValueError("`p0` must be finite.")
    return rows


def _is_by_fit(a: Any, y: Any) -> bool:
    """Whether an array has one part for each fit."""
    return a.ndim > 1 and len(a) == len(y)


def _by_fit(structure: Any, x: Any) -> Any:
    each = [structure.unflatten(row) for row in x]
    leaves = [jax.tree.leaves(one) for one in each]
    return jax.tree.unflatten(
        jax.tree.structure(each[0]), [np.stack(a) for a in zip(*leaves, strict=True)]
    )


def _covariances(found: Solution, points: Any, absolute: bool) -> Any:
    """The covariance of each fit; inf where the data do not determine all parameters."""
    n = found.x.shape[1]
    r = found.r[:, :n, :n]
    covariance, regular = regular_covariance_of(r, np.maximum(points, n))
    failed = found.status < 0
    loose = 0
    for i in np.flatnonzero(~regular & ~failed):
        covariance[i], free = covariance_of(r[i], max(points[i], n))
        if free:
            covariance[i], loose = np.inf, loose + 1
    if not absolute:
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = 2 * found.cost / np.maximum(points - n, 1)
            covariance *= factor[:, None, None]
        failed |= points <= n
    covariance[failed] = np.inf
    if loose:
        warn_of_covariance(f" for {loose} of the fits", 4)
    return covariance
