"""The arguments of a fit: what SciPy takes, checked as SciPy does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .. import _jax_compat as compat
from ..errors import LogTypeError, LogValueError
from ._program import Arguments

METHODS = ("trf", "lm")


def outside_of_traces(function: str, *given: Any) -> None:
    """Refuse to be called by a function that is being traced."""
    known = [one for one in given if not hasattr(one, "__next__")]
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(known))
    if traced or not compat.trace_is_clean():
        raise LogTypeError(
            f"`{function}` compiles and runs a program by itself, so it cannot be called inside of "
            "a function that is being traced (by `jit`, `vmap`, `spool`, ...). Use "
            f"`chiplog.fit.solve` there. To see its iterations, `spool({function})` or "
            f"`tap({function}, ...)` itself."
        )


def checked_dtype(dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype not in (np.float64, np.float32):
        raise LogTypeError(f"`dtype` is float64 or float32, not {dtype}.")
    return dtype


def checked_start(start: Any, bounds: Any) -> tuple[Any, Any, Any]:
    """Where to begin, and the bounds; without bounds, these are None."""
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = bounds.lb, bounds.ub
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise LogValueError("`bounds` must contain 2 elements.")
    n, known = (start, False) if isinstance(start, int) else (len(start), True)
    if all(isinstance(b, float) for b in bounds) and tuple(bounds) == (-np.inf, np.inf):
        low = high = None
    else:
        low, high = _limits(bounds, n)
    if known:
        if not np.isfinite(start).all():
            raise LogValueError("`p0` must be finite.")
        if low is not None and ((start < low) | (start > high)).any():
            raise LogValueError("`x0` is infeasible: it is outside of the bounds.")
    else:
        start = np.ones(n) if low is None else middle_of(low, high)
    if low is not None and np.isinf([low, high]).all():
        low = high = None
    return start, low, high


def _limits(bounds: Any, n: int) -> tuple[Any, Any]:
    try:
        low, high = (np.asarray(b, float) for b in bounds)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`bounds` are two lists of numbers: {error}") from error
    for b in (low, high):
        if b.ndim and b.shape != (n,):
            raise LogValueError(
                f"Inconsistent shapes between bounds and `x0`: there are {n} parameters, and "
                f"bounds of {b.shape}."
            )
    low, high = (np.broadcast_to(b, (n,)).copy() for b in (low, high))
    if not np.all(low < high):
        raise LogValueError("Each lower bound must be strictly less than each upper bound.")
    return low, high


def middle_of(low: Any, high: Any) -> Any:
    """Ones, or else something between the bounds."""
    inside = np.ones_like(low)
    both = np.isfinite(low) & np.isfinite(high)
    inside[both] = 0.5 * (low[both] + high[both])
    above = np.isfinite(low) & ~np.isfinite(high)
    inside[above] = low[above] + 1
    below = np.isfinite(high) & ~np.isfinite(low)
    inside[below] = high[below] - 1
    return inside


def checked_method(method: str | None, bounded: bool, default: str) -> str:
    if method is None:
        return "trf" if bounded else default
    if method not in METHODS:
        raise LogValueError(f"`method={method!r}` is not known: there are 'trf' and 'lm'.")
    if method == "lm" and bounded:
        raise LogValueError("Method 'lm' only works for unconstrained problems. Use 'trf'.")
    return method


def checked_jac(jac: Any) -> Any:
    """The user's Jacobian; SciPy's names for finite differences stand for exact derivatives."""
    if callable(jac) or jac is None:
        return jac
    if jac not in ("2-point", "3-point", "cs"):
        raise LogValueError(f"`jac={jac!r}` is not known: give a function, or nothing.")
    return None


def arguments_of(
    data: Any,
    start: Any,
    low: Any,
    high: Any,
    x_scale: Any,
    tolerances: tuple[float | None, ...],
    max_nfev: int | None,
    method: str,
    dtype: Any,
) -> Arguments:
    """What a program is called with."""
    scale = None
    if isinstance(x_scale, str) or x_scale is None:
        if x_scale not in ("jac", None):
            raise LogValueError(f"`x_scale={x_scale!r}` is not known: it is 'jac', or numbers.")
    else:
        scale = np.asarray(x_scale, dtype)
        if scale.ndim and scale.shape != start.shape:
            raise LogValueError("Inconsistent shapes between `x_scale` and `x0`.")
        if not np.all(np.isfinite(scale) & (scale > 0)):
            raise LogValueError("`x_scale` must be 'jac' or array_like with positive numbers.")
        scale = np.broadcast_to(scale, start.shape)
    if max_nfev is not None and (isinstance(max_nfev, bool) or int(max_nfev) < 1):
        raise LogValueError("`max_nfev` must be None or positive integer.")
    most = int(max_nfev or 100 * len(start) * (1 if method == "trf" else 10))
    numbers = np.array([0.0 if tol is None else tol for tol in tolerances], dtype)
    if low is not None:
        low, high = low.astype(dtype), high.astype(dtype)
    return Arguments(data, start.astype(dtype), low, high, scale, numbers, np.int32(most))
