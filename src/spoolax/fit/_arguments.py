"""The arguments that all fits share, checked once and as SciPy does.

An entry point calls `check_call` and then `prepare`, and gets everything but its data in a `Setup`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._jax import tracing
from ..errors import LogTypeError, LogValueError
from ._model.parameters import Parameters, parameters_of
from ._program.program import Inputs
from ._solver.bounds import Bounds
from ._solver.solver import Solver, Tolerances

METHODS = ("trf", "lm")
HINTS = {
    "maxfev": "Use `max_nfev`.",
    "epsfcn": "Derivatives are exact here.",
    "diff_step": "Derivatives are exact here.",
    "col_deriv": "`jac` has a row for each point.",
    "tr_solver": "There is only one.",
    "jac_sparsity": "Derivatives are dense here.",
}


class Setup(NamedTuple):
    """A fit that is ready but for its data."""

    parameters: Parameters
    method: str
    jac: Callable[..., Any] | None
    f_scale: Any
    dtype: Any
    inputs: Inputs  # Without data.

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of the parameters, if there are any."""
        return self.inputs.solver.bounds

    def x64(self) -> Any:
        """Return a context in which JAX computes with the precision of the fit."""
        return jax.enable_x64(self.dtype == np.float64)

    def check_enough_points(self, points: int) -> None:
        """Check that there are not fewer points than parameters, which "lm" does not take."""
        count = len(self.parameters.names)
        if self.method == "lm" and points < count:
            raise LogTypeError(
                f"Improper input: func input vector length N={count} must not exceed func output "
                f"vector length M={points}"
            )


def check_call(function: str, unknown: dict[str, Any], *data: Any) -> None:
    """Refuse unknown keywords, with a hint, and calls from inside a trace."""
    for name in unknown:
        hint = HINTS.get(name, "")
        raise LogTypeError(
            f"{function}() got an unexpected keyword argument {name!r}. {hint}".strip()
        )
    known = [one for one in data if not hasattr(one, "__next__")]
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(known))
    if traced or not tracing.trace_is_clean():
        raise LogTypeError(
            f"`{function}` compiles and runs a program by itself, so it cannot be called inside a "
            "function that is being traced (by `jit`, `vmap`, `spool`, ...). Use "
            f"`spoolax.fit.solve` there. To see its iterations, call `spool({function})` or "
            f"`tap({function}, ...)` itself."
        )


def prepare(
    f: Callable[..., Any] | None,
    p0: Any,
    *,
    bounds: Any,
    method: str | None,
    jac: Any,
    f_scale: Any,
    x_scale: Any,
    ftol: float | None,
    xtol: float | None,
    gtol: float | None,
    max_nfev: int | None,
    dtype: Any,
) -> Setup:
    """Check the arguments that all fits share. `f` is the model, or None for residuals."""
    dtype = _checked_dtype(dtype)
    parameters = parameters_of(f, p0, dtype)
    start, limits = _start_and_bounds(parameters, bounds)
    method = _checked_method(method, limits is not None)
    tolerances = Tolerances(
        _numbers("ftol", ftol or 0.0, dtype),
        _numbers("xtol", xtol or 0.0, dtype),
        _numbers("gtol", gtol or 0.0, dtype),
        _checked_max_nfev(max_nfev, len(start), method),
    )
    if limits is not None:
        limits = Bounds(*(limit.astype(dtype) for limit in limits))
    solver = Solver(limits, _checked_x_scale(x_scale, start.shape, dtype), tolerances)
    scale = _checked_f_scale(f_scale, dtype)
    inputs = Inputs(None, start.astype(dtype), solver)
    return Setup(parameters, method, checked_jac(jac), scale, dtype, inputs)


def _checked_dtype(dtype: Any) -> Any:
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise LogTypeError(f"`dtype` must be float64 or float32, not {dtype!r}.") from error
    if dtype not in (np.float64, np.float32):
        raise LogTypeError(f"`dtype` must be float64 or float32, not {dtype}.")
    return dtype


def _start_and_bounds(parameters: Parameters, bounds: Any) -> tuple[Any, Bounds | None]:
    """Return where to start, and the bounds if there are any."""
    start, names, structure = parameters.start, parameters.names, parameters.structure
    bounds = bounds_pair(bounds)
    n = len(names)
    if structure is not None:
        plain = (int, float, list, tuple, np.ndarray, jax.Array)
        bounds = [b if isinstance(b, plain) else structure.flatten(b, "bounds") for b in bounds]
    if all(isinstance(b, float) for b in bounds) and tuple(bounds) == (-np.inf, np.inf):
        limits = None
    else:
        limits = _limits(bounds, n, names)
    if start is not None:
        if not np.isfinite(start).all():
            raise LogValueError("`p0` must be finite.")
        check_inside(start, limits, names)
    else:
        start = np.ones(n) if limits is None else _point_inside(limits)
    if limits is not None and np.isinf(limits).all():
        limits = None
    return start, limits


def bounds_pair(bounds: Any) -> Any:
    """Return the lower and the upper bounds, as they were given."""
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        return bounds.lb, bounds.ub
    if not isinstance(bounds, (tuple, list, np.ndarray)) or len(bounds) != 2:
        raise LogValueError(
            "`bounds` must contain 2 elements: (lower, upper), each a number or a list of them."
        )
    return bounds


def check_inside(start: Any, bounds: Bounds | None, names: Sequence[str]) -> None:
    """Check that a start is within the bounds."""
    if bounds is None:
        return
    low, high = bounds
    for i in map(int, np.flatnonzero((start < low) | (start > high))):
        raise LogValueError(
            f"`x0` is infeasible: {names[i]} begins at {start[i]:.6g}, outside its bounds from "
            f"{low[i]:.6g} to {high[i]:.6g}."
        )


def _limits(bounds: Any, n: int, names: Sequence[str]) -> Bounds:
    try:
        low, high = (np.asarray(b, float) for b in bounds)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`bounds` must be two lists of numbers: {error}") from error
    for b in (low, high):
        if b.ndim and b.shape != (n,):
            raise LogValueError(
                f"Inconsistent shapes between bounds and `x0`: there are {n} parameters, and "
                f"bounds of shape {b.shape}."
            )
    low, high = (np.broadcast_to(b, (n,)).copy() for b in (low, high))
    for i in map(int, np.flatnonzero(~(low < high))):
        raise LogValueError(
            "Each lower bound must be strictly less than each upper bound; those of "
            f"{names[i]} are {low[i]:.6g} and {high[i]:.6g}."
        )
    return Bounds(low, high)


def _point_inside(bounds: Bounds) -> Any:
    """Return ones, or where there are bounds, something between them."""
    low, high = bounds
    inside = np.ones_like(low)
    both = np.isfinite(low) & np.isfinite(high)
    inside[both] = 0.5 * (low[both] + high[both])
    above = np.isfinite(low) & ~np.isfinite(high)
    inside[above] = low[above] + 1
    below = np.isfinite(high) & ~np.isfinite(low)
    inside[below] = high[below] - 1
    return inside


def _checked_method(method: str | None, bounded: bool) -> str:
    if method is None:
        return "trf" if bounded else "lm"
    if method not in METHODS:
        raise LogValueError(f"`method={method!r}` is unknown. Use 'trf' or 'lm'.")
    if method == "lm" and bounded:
        raise LogValueError("Method 'lm' only works for unconstrained problems. Use 'trf'.")
    return method


def checked_jac(jac: Any) -> Any:
    """Return the user's Jacobian; SciPy's names for finite differences mean exact derivatives."""
    if callable(jac) or jac is None:
        return jac
    if jac not in ("2-point", "3-point", "cs"):
        raise LogValueError(f"`jac={jac!r}` is unknown. Pass a function, or nothing.")
    return None


def is_scale_from_jacobian(x_scale: Any) -> bool:
    """Return whether the scales of the parameters are to be taken from the Jacobian."""
    if isinstance(x_scale, str) and x_scale != "jac":
        raise LogValueError(f"`x_scale={x_scale!r}` is unknown. Use 'jac', or numbers.")
    return x_scale is None or isinstance(x_scale, str)


def _checked_x_scale(x_scale: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if is_scale_from_jacobian(x_scale):
        return None
    scale = _numbers("x_scale", x_scale, dtype)
    if scale.ndim and scale.shape != shape:
        raise LogValueError("Inconsistent shapes between `x_scale` and `x0`.")
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise LogValueError("`x_scale` must be 'jac' or array_like with positive numbers.")
    return np.broadcast_to(scale, shape)


def _checked_max_nfev(max_nfev: Any, count: int, method: str) -> Any:
    if max_nfev is None:
        return np.int32(100 * count * (1 if method == "trf" else 10))
    is_number = isinstance(max_nfev, (int, float, np.number))
    if not (is_number and max_nfev >= 1 and max_nfev % 1 == 0):
        raise LogValueError("`max_nfev` must be None or positive integer.")
    return np.int32(max_nfev)


def _checked_f_scale(f_scale: Any, dtype: Any) -> Any:
    scale = _numbers("f_scale", f_scale, dtype)
    if scale.ndim or not (np.isfinite(scale) and scale > 0):
        raise LogValueError(f"`f_scale` must be a positive number, not {f_scale!r}.")
    return scale


def _numbers(name: str, value: Any, dtype: Any) -> Any:
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`{name}` must be numeric, not {value!r}.") from error
