"""The arguments of a fit: what SciPy takes, checked as SciPy does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._jax import tracing
from ..errors import LogTypeError, LogValueError
from ._parameters import Parameters
from ._program import Arguments

METHODS = ("trf", "lm")


def outside_of_traces(function: str, *given: Any) -> None:
    """Refuse to be called by a function that is being traced."""
    known = [one for one in given if not hasattr(one, "__next__")]
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(known))
    if traced or not tracing.trace_is_clean():
        raise LogTypeError(
            f"`{function}` compiles and runs a program by itself, so it cannot be called inside of "
            "a function that is being traced (by `jit`, `vmap`, `spool`, ...). Use "
            f"`spoolax.fit.solve` there. To see its iterations, `spool({function})` or "
            f"`tap({function}, ...)` itself."
        )


def checked_dtype(dtype: Any) -> Any:
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise LogTypeError(f"`dtype` is float64 or float32, not {dtype!r}.") from error
    if dtype not in (np.float64, np.float32):
        raise LogTypeError(f"`dtype` is float64 or float32, not {dtype}.")
    return dtype


def checked_start(parameters: Parameters, bounds: Any) -> tuple[Any, Any, Any]:
    """Where to begin, and the bounds; without bounds, these are None."""
    start, names, structure = parameters.start, parameters.names, parameters.structure
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = bounds.lb, bounds.ub
    if not isinstance(bounds, (tuple, list, np.ndarray)) or len(bounds) != 2:
        raise LogValueError(
            "`bounds` must contain 2 elements: (lower, upper), each a number or a list of them."
        )
    n = len(names)
    if structure is not None:
        plain = (int, float, list, tuple, np.ndarray, jax.Array)
        bounds = [b if isinstance(b, plain) else structure.flatten(b, "bounds") for b in bounds]
    if all(isinstance(b, float) for b in bounds) and tuple(bounds) == (-np.inf, np.inf):
        low = high = None
    else:
        low, high = _limits(bounds, n, names)
    if start is not None:
        if not np.isfinite(start).all():
            raise LogValueError("`p0` must be finite.")
        if low is not None:
            see_inside(start, low, high, names)
    else:
        start = np.ones(n) if low is None else middle_of(low, high)
    if low is not None and np.isinf([low, high]).all():
        low = high = None
    return start, low, high


def see_inside(start: Any, low: Any, high: Any, names: Sequence[str]) -> None:
    """See that a start keeps to the bounds."""
    for i in map(int, np.flatnonzero((start < low) | (start > high))):
        raise LogValueError(
            f"`x0` is infeasible: {names[i]} begins at {start[i]:.6g}, outside of its bounds from "
            f"{low[i]:.6g} to {high[i]:.6g}."
        )


def _limits(bounds: Any, n: int, names: Sequence[str]) -> tuple[Any, Any]:
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
    for i in map(int, np.flatnonzero(~(low < high))):
        raise LogValueError(
            "Each lower bound must be strictly less than each upper bound; those of "
            f"{names[i]} are {low[i]:.6g} and {high[i]:.6g}."
        )
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
        scale = _numbers("x_scale", x_scale, dtype)
        if scale.ndim and scale.shape != start.shape:
            raise LogValueError("Inconsistent shapes between `x_scale` and `x0`.")
        if not np.all(np.isfinite(scale) & (scale > 0)):
            raise LogValueError("`x_scale` must be 'jac' or array_like with positive numbers.")
        scale = np.broadcast_to(scale, start.shape)
    if max_nfev is not None and not (
        isinstance(max_nfev, (int, float, np.number)) and max_nfev >= 1 and max_nfev % 1 == 0
    ):
        raise LogValueError("`max_nfev` must be None or positive integer.")
    most = int(max_nfev or 100 * len(start) * (1 if method == "trf" else 10))
    numbers = _numbers("ftol, xtol, gtol", [t or 0.0 for t in tolerances], dtype)
    if low is not None:
        low, high = low.astype(dtype), high.astype(dtype)
    return Arguments(data, start.astype(dtype), low, high, scale, numbers, np.int32(most))


def checked_f_scale(f_scale: Any, dtype: Any) -> Any:
    scale = _numbers("f_scale", f_scale, dtype)
    if scale.ndim or not (np.isfinite(scale) and scale > 0):
        raise LogValueError(f"`f_scale` must be a positive number, not {f_scale!r}.")
    return scale


def _numbers(name: str, value: Any, dtype: Any) -> Any:
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`{name}` must be numbers, not {value!r}.") from error


HINTS = {
    "maxfev": "Use `max_nfev`.",
    "epsfcn": "Derivatives are exact here.",
    "diff_step": "Derivatives are exact here.",
    "col_deriv": "`jac` has a row for each point.",
    "tr_solver": "There is one way to solve.",
    "jac_sparsity": "Derivatives are dense here.",
}


def refuse(function: str, unknown: dict[str, Any]) -> None:
    """Say what to do instead of keywords that are not known."""
    for name in unknown:
        hint = HINTS.get(name, "")
        raise LogTypeError(
            f"{function}() got an unexpected keyword argument {name!r}. {hint}".strip()
        )
