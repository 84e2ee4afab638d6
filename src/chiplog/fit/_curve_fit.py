"""`curve_fit`: as in SciPy, compiled once per model, and in full view."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._host import flush
from .._spool import spool
from .._tap import tap
from ..errors import LogTypeError, LogValueError
from ..loggers._composite import is_logger
from ._bounds import Bounds
from ._loss import Loss, checked_loss
from ._model import as_flat, checked_model, identity, is_pointwise, parameter_names
from ._problem import blockwise, bucket, padded
from ._result import MESSAGES, Fit
from ._solve import Solution, Tolerances, descend
from ._verbose import printer

KEPT = 256  # Programs.


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
    structure, names, start = _start(f, p0, bounds, np.dtype(dtype))
    low, high = _checked_bounds(bounds, len(start))
    bounded = bool(np.any(np.isfinite(low)) or np.any(np.isfinite(high)))
    method = _checked_method(method, bounded)
    x, y = _data(xdata, ydata, np.dtype(dtype))
    x, y, sigma = _finite(x, y, sigma, check_finite, nan_policy)
    weights, whiten = _weights(sigma, len(y), y.dtype)
    if np.any((start < low) | (start > high)):
        raise LogValueError("`x0` is infeasible.")
    if method == "lm" and len(y) < len(start):
        raise LogTypeError(
            f"Improper input: func input vector length N={len(start)} must not exceed func output "
            f"vector length M={len(y)}"
        )
    model = as_flat(f, structure)
    slope = None if not callable(jac) else _as_flat_jacobian(jac, structure)
    scale = None if isinstance(x_scale, str) else np.broadcast_to(x_scale, start.shape)
    how = (identity(f), identity(jac), structure, identity(checked_loss(loss)), bounded)
    limits = [y.dtype.type(0.0 if tol is None else tol) for tol in (ftol, xtol, gtol)]
    most = max_nfev or 100 * len(start) * (1 if method == "trf" else 10)
    with _precision(y.dtype):
        program = _program(how, model, slope, checked_loss(loss), bounded)
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


class _Program:
    """The solver for a model, and what is known about it."""

    def __init__(
        self,
        model: Callable[[Any, Any], Any],
        slope: Callable[[Any, Any], Any] | None,
        loss: Loss,
        bounded: bool,
    ) -> None:
        self._model = model
        self._pointwise: dict[Any, bool] = {}  # By the kind of data.

        def solve(
            x: Any,
            y: Any,
            weights: Any,
            whiten: Any,
            start: Any,
            low: Any,
            high: Any,
            scale: Any,
            f_scale: Any,
            until: Tolerances,
        ) -> Solution:
            model_of, slope_of = model, slope
            if whiten is not None:

                def white(a: Any) -> Any:
                    return jax.scipy.linalg.solve_triangular(whiten, a, lower=True)

                y = white(y)

                def model_of(x: Any, p: Any) -> Any:
                    return white(model(x, p))

                if slope is not None:

                    def slope_of(x: Any, p: Any) -> Any:
                        return white(slope(x, p))

            problem = blockwise(model_of, x, y, weights, loss, f_scale, slope_of)
            bounds = Bounds(low, high) if bounded else None
            return descend(problem, start, bounds, None if scale is None else 1 / scale, until)

        self.solve = jax.jit(solve)

    def is_pointwise(self, x: Any, start: Any, shape: tuple[int, ...]) -> bool:
        """Whether data can be padded; the first time, see that the model fits the data."""
        kind = jax.tree.structure(x), tuple(a.shape[:-1] for a in jax.tree.leaves(x)), start.shape
        if not self._pointwise.get(kind):
            checked_model(self._model, x, start, shape)
        if kind not in self._pointwise:
            self._pointwise[kind] = is_pointwise(self._model, x, start)
        return self._pointwise[kind]


_programs: collections.OrderedDict[Any, _Program] = collections.OrderedDict()


def _program(how: Any, *about: Any) -> _Program:
    """The program of a model, made once."""
    if how not in _programs:
        _programs[how] = _Program(*about)
        if len(_programs) > KEPT:
            _programs.popitem(last=False)
    _programs.move_to_end(how)
    return _programs[how]


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


@contextlib.contextmanager
def _precision(dtype: Any) -> Iterator[None]:
    """Compute in 64 bits, if that is asked for, without changing the settings of JAX."""
    with jax.enable_x64(dtype == np.float64):
        yield


def _start(
    f: Callable[..., Any], p0: Any, bounds: Any, dtype: Any
) -> tuple[Any, tuple[str, ...], Any]:
    """The structure of the parameters, if they have one, their names, and where to begin."""
    if p0 is None:
        names = parameter_names(f)
        low, high = _checked_bounds(bounds, len(names))
        return None, tuple(names), _middle(low, high).astype(dtype)
    if isinstance(p0, (list, tuple, np.ndarray, jax.Array, float, int)):
        start = np.atleast_1d(np.asarray(p0, dtype))
        try:
            names = parameter_names(f)
        except LogValueError:
            names = []
        if len(names) != len(start):
            names = [f"p{i}" for i in range(len(start))]
        return None, tuple(names), start
    leaves, structure = jax.tree.flatten(p0)
    if any(np.ndim(leaf) for leaf in leaves):
        raise LogValueError("Parameters in a pytree are numbers; give arrays as one array.")
    paths = jax.tree_util.tree_leaves_with_path(p0)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    return structure, tuple(names), np.asarray(leaves, dtype)


def _middle(low: Any, high: Any) -> Any:
    """Ones, or else something between the bounds."""
    inside = np.ones_like(low)
    both = np.isfinite(low) & np.isfinite(high)
    inside[both] = 0.5 * (low[both] + high[both])
    above = np.isfinite(low) & ~np.isfinite(high)
    inside[above] = low[above] + 1
    below = np.isfinite(high) & ~np.isfinite(low)
    inside[below] = high[below] - 1
    return inside


def _checked_bounds(bounds: Any, n: int) -> tuple[Any, Any]:
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = bounds.lb, bounds.ub
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise LogValueError("`bounds` must contain 2 elements.")
    low, high = (np.asarray(b, float) for b in bounds)
    for b in (low, high):
        if b.ndim and b.shape != (n,):
            raise LogValueError(
                f"Inconsistent shapes between bounds and `x0`: there are {n} parameters, and "
                f"bounds of {b.shape}."
            )
    low, high = (np.broadcast_to(b, (n,)).copy() for b in (low, high))
    if np.any(low >= high):
        raise LogValueError("Each lower bound must be strictly less than each upper bound.")
    return low, high


def _checked_method(method: str | None, bounded: bool) -> str:
    if method is None:
        return "trf" if bounded else "lm"
    if method not in ("lm", "trf"):
        raise LogValueError(f"`method={method!r}` is not known: there are 'trf' and 'lm'.")
    if method == "lm" and bounded:
        raise LogValueError("Method 'lm' only works for unconstrained problems. Use 'trf'.")
    return method


def _data(xdata: Any, ydata: Any, dtype: Any) -> tuple[Any, Any]:
    """The data as arrays of floating-point numbers."""
    try:
        y = np.asarray(ydata, dtype).ravel()
        if isinstance(xdata, dict):
            x: Any = {key: np.asarray(value, dtype) for key, value in xdata.items()}
        else:
            x = np.asarray(xdata, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`xdata` and `ydata` are arrays of numbers: {error}") from error
    if not y.size:
        raise LogValueError("`ydata` must not be empty!")
    for leaf in jax.tree.leaves(x):
        if not leaf.ndim or leaf.shape[-1] != len(y):
            raise LogValueError(
                f"`xdata` has the shape {leaf.shape}, but there are {len(y)} points in `ydata`: "
                "its last axis must be that long."
            )
    return x, y


def _finite(x: Any, y: Any, sigma: Any, check: bool, policy: str | None) -> tuple[Any, Any, Any]:
    """Refuse or leave out what is not finite."""
    if policy not in (None, "raise", "omit"):
        raise LogValueError(f"`nan_policy={policy!r}` is not known: there are 'raise' and 'omit'.")
    if policy == "omit":
        bad = np.isnan(y)
        for leaf in jax.tree.leaves(x):
            bad |= np.isnan(leaf).reshape(-1, len(y)).any(0)
        if sigma is not None and bad.any():
            sigma = np.asarray(sigma)
            sigma = sigma[~bad] if sigma.ndim == 1 else sigma[~bad][:, ~bad]
        x, y = jax.tree.map(lambda a: a[..., ~bad], x), y[~bad]
    elif check or policy == "raise":
        for name, array in (("xdata", x), ("ydata", y)):
            if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(array)):
                raise LogValueError(f"`{name}`: array must not contain infs or NaNs.")
    return x, y, sigma


def _weights(sigma: Any, points: int, dtype: Any) -> tuple[Any, Any]:
    """The weights of the points, or the factor of their covariance matrix."""
    if sigma is None:
        return np.ones(points, dtype), None
    sigma = np.asarray(sigma, dtype)
    if sigma.size == 1:
        sigma = np.broadcast_to(sigma.ravel(), (points,))
    if sigma.shape == (points,):
        if not np.all(sigma > 0):
            raise LogValueError("All of `sigma` must be positive.")
        return 1 / sigma, None
    if sigma.shape == (points, points):
        try:
            return np.ones(points, dtype), np.linalg.cholesky(sigma)
        except np.linalg.LinAlgError as error:
            raise LogValueError("`sigma` must be positive definite.") from error
    raise LogValueError("`sigma` has incorrect shape.")


def _as_flat_jacobian(jac: Callable[..., Any], structure: Any) -> Callable[[Any, Any], Any]:
    if structure is not None:
        raise LogValueError("`jac` is for parameters that are given one by one.")
    return lambda x, p: jnp.asarray(jac(x, *p))


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
        _warn(names, loose)
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


def covariance_of(r: Any, rows: int) -> tuple[Any, list[int]]:
    """The inverse of R^T R, and which parameters it leaves undetermined."""
    norms = np.sqrt(np.sum(r**2, 0))
    scale = np.where(norms > 0, norms, 1)
    _, s, vt = np.linalg.svd(r / scale)  # So that units do not matter.
    kept = s > np.finfo(r.dtype).eps * rows * s[0]
    free = np.abs(vt[~kept]).max(0) if not kept.all() else np.zeros(len(s))
    inverse = (vt[kept].T / s[kept] ** 2) @ vt[kept]
    return inverse / np.outer(scale, scale), [int(i) for i in np.flatnonzero(free > 1e-3)]


def _warn(names: tuple[str, ...], loose: list[int]) -> None:
    from scipy.optimize import OptimizeWarning  # It takes a while to import.

    which = f": the data do not determine {', '.join(names[i] for i in loose)}" if loose else ""
    warnings.warn(
        f"Covariance of the parameters could not be estimated{which}.",
        OptimizeWarning,
        stacklevel=4,
    )
