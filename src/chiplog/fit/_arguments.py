"""The arguments of a fit: what SciPy takes, checked as SciPy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..errors import LogTypeError, LogValueError
from ._model import parameter_names


def start_of(f: Callable[..., Any], p0: Any, dtype: Any) -> tuple[Any, tuple[str, ...], Any]:
    """The structure of the parameters, their names, and where to begin, as far as it is known."""
    if p0 is None:
        return None, tuple(parameter_names(f)), None
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


def checked_bounds(bounds: Any, n: int) -> tuple[Any, Any]:
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


def checked_method(method: str | None, bounded: bool) -> str:
    if method is None:
        return "trf" if bounded else "lm"
    if method not in ("lm", "trf"):
        raise LogValueError(f"`method={method!r}` is not known: there are 'trf' and 'lm'.")
    if method == "lm" and bounded:
        raise LogValueError("Method 'lm' only works for unconstrained problems. Use 'trf'.")
    return method


def checked_data(xdata: Any, ydata: Any, dtype: Any) -> tuple[Any, Any]:
    """The data as arrays of floating-point numbers."""
    try:
        y = np.asarray(ydata, dtype).ravel()
        if isinstance(xdata, dict):
            x: Any = {key: np.asarray(value, dtype) for key, value in xdata.items()}
        else:
            x = np.asarray(xdata, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`xdata` and `ydata` are arrays of numbers: {error}") from error
    for leaf in jax.tree.leaves(x):
        if not leaf.ndim or leaf.shape[-1] != len(y):
            raise LogValueError(
                f"`xdata` has the shape {leaf.shape}, but there are {len(y)} points in `ydata`: "
                "its last axis must be that long."
            )
    return x, y


def finite(x: Any, y: Any, sigma: Any, check: bool, policy: str | None) -> tuple[Any, Any, Any]:
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
    if not y.size:
        raise LogValueError("`ydata` must not be empty!")
    return x, y, sigma


def weights_of(sigma: Any, points: int, dtype: Any) -> tuple[Any, Any]:
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
