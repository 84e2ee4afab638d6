"""`curve_fit_batch`: thousands of fits of one model in one call."""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .._listen.drivers import driver
from .._log.primitive import around_here
from ..errors import LogTypeError, LogValueError
from ._arguments import Setup, check_call, check_inside, prepare
from ._data.arrays import (
    check_all_finite,
    check_lengths,
    check_nan_policy,
    default_device_is_cpu,
    float_arrays,
    float_sigma,
    inverse_errors,
)
from ._data.points import pad, padded_length
from ._model.function import curve_and_identity
from ._program.lanes import LANES, BatchData, solve_batch
from ._program.listeners import Listeners
from ._program.program import FitProgram, Inputs, program_of
from ._result import BatchFit, batch_result
from ._solver.losses import Loss
from ._solver.solver import Solution


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

    Options are those of `curve_fit`. A fit that fails does not stop the others: `.status` says for
    each why it ended, as in SciPy, and `.success` which ones have converged. Entries of `callback`,
    `logger` and `history` say how many fits are "done" and "running".

    Args:
        f: The model, as in `curve_fit`.
        xdata: The independent variable: the same for all fits, or one row for each.
        ydata: The measured values: one row for each fit.
        p0: Where to start: numbers, or an array with a row of them for each fit; or a pytree.
        sigma: The errors of `ydata`: one row for all fits, or one for each.
        absolute_sigma: As in `curve_fit`, like all that follow.
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
        nan_policy: As in `curve_fit`; "omit" leaves out points of single fits.
        verbose: 1 prints every 10th step, 2 all of them.
        callback: As in `curve_fit`.
        logger: As in `curve_fit`.
        history: As in `curve_fit`.
        pointwise: As in `curve_fit`.
        shared_x: Whether all fits have the same `xdata`. Without it, an array with several axes
            whose first one is as long as there are fits has one part for each of them.
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
    check_call("curve_fit_batch", unknown, xdata, ydata, p0, sigma)
    listeners = Listeners(verbose, callback, logger, history)
    rows = _start_rows(p0)
    setup = prepare(
        f,
        p0 if rows is None else rows[0],
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
    x, y, weights, points = _checked(xdata, ydata, sigma, check_finite, nan_policy, setup.dtype)
    fits, length = y.shape
    starts = _starts(rows, fits, setup)
    setup.check_enough_points(length)
    curve, key = curve_and_identity(f, setup.jac, loss, setup.parameters.structure)
    shared = _shared_x(x, y, shared_x), None if weights is None else weights.ndim == 1
    key = "batch", key, *map(str, jax.tree.leaves(shared)), jax.tree.structure(shared)
    with setup.x64():
        program = program_of(key, functools.partial(solve_batch, curve, shared))
        one = jax.tree.map(lambda a, same: a if same else a[0], x, shared[0])
        is_pointwise = program.is_pointwise(curve, one, setup.inputs.start, pointwise)
        size = padded_length(length) if is_pointwise else length
        x, y, weights = jax.tree.map(lambda a: pad(a, size), (x, y, weights))
        real = np.int32(length) if is_pointwise else None
        data = BatchData(x, y, weights, real, setup.f_scale, np.int32(fits))
        batch = _Batch(setup.inputs._replace(data=data, start=starts), shared)
        found = _solve(program, batch, listeners)
    kept = listeners.finish()
    return batch_result(found, setup.parameters, points, setup.method, absolute_sigma, kept)


class _Batch(NamedTuple):
    """All fits, of which any part can be solved by itself."""

    inputs: Inputs
    shared: Any  # As in `solve_batch`.

    @property
    def fits(self) -> int:
        """How many there are."""
        return int(self.inputs.data.fits)

    def part(self, begin: int, end: int, capacity: int) -> Inputs:
        """Return some of the fits, padded: another number of them is then no new program."""

        def cut(a: Any, is_shared: bool = False) -> Any:
            if is_shared:
                return a
            missing = capacity - (end - begin)
            return np.concatenate([a[begin:end], np.repeat(a[:1], missing, axis=0)])

        data: BatchData = self.inputs.data
        x, weights = jax.tree.map(cut, (data.x, data.weights), self.shared)
        some = data._replace(x=x, y=cut(data.y), weights=weights, fits=np.int32(end - begin))
        return self.inputs._replace(data=some, start=cut(self.inputs.start))


def _solve(program: FitProgram, batch: _Batch, listeners: Listeners) -> Solution:
    """Solve all fits; on the CPU, with as many threads as there are cores."""
    run, fits = listeners.around(program.solve), batch.fits
    if run is not program.solve or around_here() or jax.config.jax_disable_jit:
        found = run(batch.part(0, fits, padded_length(fits)))
        return Solution(*(np.asarray(a)[:fits] for a in found))
    threads = max(1, min(_cores(), fits // LANES)) if default_device_is_cpu() else 1
    size = -(-fits // threads)
    capacity = padded_length(size)
    parts = [batch.part(i, min(i + size, fits), capacity) for i in range(0, fits, size)]
    compiled = program.compiled(program.solve, parts[0])
    x64, device = jax.config.jax_enable_x64, jax.config.jax_default_device

    def solve(inputs: Inputs) -> list[Any]:
        with jax.enable_x64(x64), jax.default_device(device):  # Settings are those of a thread.
            return [np.asarray(a)[: int(inputs.data.fits)] for a in compiled(inputs)]

    if threads == 1:
        return Solution(*solve(parts[0]))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return Solution(*map(np.concatenate, zip(*pool.map(solve, parts), strict=True)))


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked(
    xdata: Any, ydata: Any, sigma: Any, check_finite: bool, nan_policy: str | None, dtype: Any
) -> tuple[Any, Any, Any, Any]:
    """Return the data, the weights (None: all are one), and how many points each fit has."""
    x, y = float_arrays(xdata, ydata, dtype)
    if y.ndim != 2 or not y.size:
        raise LogValueError(
            f"`ydata` has shape {y.shape}, but it must have one row for each fit. (For a single "
            "fit, use `curve_fit`.)"
        )
    check_lengths(x, y[0])
    weights = None if sigma is None else _weights(float_sigma(sigma, dtype), y)
    points = np.full(len(y), y.shape[1])
    check_nan_policy(nan_policy)
    if nan_policy == "omit" and np.isnan(y).any():
        bad = np.isnan(y)
        points = np.sum(~bad, axis=1)
        weights = np.where(bad, 0, 1 if weights is None else weights).astype(dtype)
        y = np.where(bad, 0, y)
    if check_finite or nan_policy is not None:
        check_all_finite(x, y)
    return x, y, weights, points


def _weights(sigma: Any, y: Any) -> Any:
    sigma = np.full(y.shape[1], sigma) if sigma.ndim == 0 else sigma
    if sigma.shape not in (y.shape, y.shape[1:]):
        raise LogValueError(f"`sigma` has shape {sigma.shape}, but `ydata` has {y.shape}.")
    return inverse_errors(sigma)


def _start_rows(p0: Any) -> Any:
    """Return the starts as an array with a row for each fit, if that is what they are."""
    plain = isinstance(p0, (list, tuple, np.ndarray, jax.Array, str))
    if not plain or hasattr(p0, "_fields"):
        return None
    try:
        rows = np.asarray(p0, float)
    except (TypeError, ValueError) as error:
        raise LogTypeError(
            f"`p0` must be numbers, or a row of them for each fit (or one pytree for all): {error}"
        ) from error
    return rows if rows.ndim == 2 and len(rows) else None


def _starts(rows: Any, fits: int, setup: Setup) -> Any:
    """Return where each fit starts."""
    start, names = setup.inputs.start, setup.parameters.names
    if rows is None:
        return np.broadcast_to(start, (fits, len(names)))
    if len(rows) != fits:
        raise LogValueError(f"`p0` has shape {rows.shape}, but there are {fits} fits.")
    if not np.isfinite(rows).all():
        raise LogValueError("`p0` must be finite.")
    rows = rows.astype(setup.dtype)
    if setup.bounds is not None:
        outside = np.any((rows < setup.bounds.low) | (rows > setup.bounds.high), axis=1)
        check_inside(rows[np.argmax(outside)], setup.bounds, names)
    return rows


def _shared_x(x: Any, y: Any, shared_x: bool | None) -> Any:
    """Return which leaves of x all fits share, as a pytree like x."""
    fits = len(y)
    rows = {a.shape[0] for a in jax.tree.leaves(x) if a.ndim > 1}
    if shared_x is False and rows != {fits}:
        found = " or ".join(map(str, sorted(rows))) or "no"
        raise LogValueError(f"`xdata` has {found} rows, but there are {fits} fits.")
    if shared_x is None:
        return jax.tree.map(lambda a: not (a.ndim > 1 and len(a) == fits), x)
    return jax.tree.map(lambda a: shared_x, x)
