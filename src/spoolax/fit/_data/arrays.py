"""Data as arrays: converted and checked as SciPy does, and the device they are on."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...errors import LogTypeError, LogValueError


def float_arrays(xdata: Any, ydata: Any, dtype: Any) -> tuple[Any, Any]:
    """Return x (an array, or a dictionary of them) and y as arrays of floating-point numbers."""

    def converted(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: converted(value) for key, value in data.items()}
        return np.asarray(data, dtype)

    if hasattr(xdata, "columns"):  # A DataFrame of pandas.
        xdata = {name: xdata[name] for name in xdata.columns}
    try:
        return converted(xdata), np.asarray(ydata, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`xdata` and `ydata` must be arrays of numbers: {error}") from error


def checked_arrays(xdata: Any, ydata: Any, dtype: Any) -> tuple[Any, Any]:
    """Return x and a flat y as arrays of floating-point numbers, of the same length."""
    x, y = float_arrays(xdata, ydata, dtype)
    y = y.ravel()
    check_lengths(x, y)
    return x, y


def check_lengths(x: Any, y: Any) -> None:
    """Check that x has as many points as y."""
    for leaf in jax.tree.leaves(x):
        if not leaf.ndim or leaf.shape[-1] != len(y):
            raise LogValueError(
                f"`xdata` has shape {leaf.shape}, but there are {len(y)} points in `ydata`: "
                "its last axis must be that long. (For grids, `ravel` all of them.)"
            )


def check_nan_policy(nan_policy: str | None) -> None:
    """Check that a policy is known."""
    if nan_policy not in (None, "raise", "omit"):
        raise LogValueError(f"`nan_policy={nan_policy!r}` is unknown. Use 'raise' or 'omit'.")


def apply_nan_policy(
    x: Any, y: Any, sigma: Any, check_finite: bool, nan_policy: str | None
) -> tuple[Any, Any, Any]:
    """Leave out points that are NaN, or refuse data that are not finite."""
    check_nan_policy(nan_policy)
    if nan_policy == "omit":
        bad = np.isnan(y)
        for leaf in jax.tree.leaves(x):
            bad |= np.isnan(leaf).reshape(-1, len(y)).any(0)
        if sigma is not None and bad.any():
            sigma = np.asarray(sigma)
            if sigma.ndim and sigma.size > 1:
                sigma = sigma[~bad] if sigma.ndim == 1 else sigma[~bad][:, ~bad]
        x, y = jax.tree.map(lambda a: a[..., ~bad], x), y[~bad]
    if check_finite or nan_policy is not None:
        check_all_finite(x, y)
    return x, y, sigma


def check_all_finite(x: Any, y: Any, numpy: Any = np) -> None:
    """Check that no number is inf or NaN."""
    for name, array in (("xdata", x), ("ydata", y)):
        if not all(numpy.isfinite(leaf).all() for leaf in jax.tree.leaves(array)):
            raise LogValueError(
                f"`{name}`: array must not contain infs or NaNs. `nan_policy='omit'` leaves out "
                "NaNs, but not infs."
            )


def float_sigma(sigma: Any, dtype: Any) -> Any:
    """Return errors as an array of floating-point numbers."""
    try:
        return np.asarray(sigma, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`sigma` must be an array of numbers: {error}") from error


def inverse_errors(sigma: Any) -> Any:
    """Return the weights of points with these errors."""
    if not np.all((sigma > 0) & np.isfinite(sigma)):
        raise LogValueError("All of `sigma` must be positive and finite.")
    return 1 / sigma


def weights_or_cholesky(sigma: Any, points: int, dtype: Any) -> tuple[Any, Any]:
    """Return the weights of the points, or the Cholesky factor of their covariance matrix.

    The other one is None. Both are if there is no `sigma`.
    """
    if sigma is None:
        return None, None
    sigma = float_sigma(sigma, dtype)
    if sigma.size == 1:
        sigma = np.broadcast_to(sigma.ravel(), (points,))
    if sigma.shape == (points,):
        return inverse_errors(sigma), None
    if sigma.shape == (points, points):
        if not np.isfinite(sigma).all():
            raise LogValueError("`sigma` must not contain infs or NaNs.")
        try:
            return None, np.linalg.cholesky(sigma)
        except np.linalg.LinAlgError as error:
            raise LogValueError("`sigma` must be positive definite.") from error
    raise LogValueError(
        f"`sigma` has incorrect shape {sigma.shape}: for {points} points, give as many errors or "
        "their covariance matrix."
    )


def device_of(*data: Any) -> Any:
    """Return the device that data are committed to, or None."""
    found = {
        device
        for leaf in jax.tree.leaves(data)
        if isinstance(leaf, jax.Array) and leaf.committed
        for device in leaf.devices()
    }
    if len(found) > 1:
        raise LogValueError(
            f"The data are on {len(found)} devices. Put them on one, or shard `ydata` over a mesh, "
            "with `jax.device_put`."
        )
    return found.pop() if found else None


def default_device_is_cpu() -> bool:
    """Return whether programs run on the CPU unless told otherwise."""
    device = jax.config.jax_default_device or jax.local_devices()[0]
    return bool(getattr(device, "platform", device) == "cpu")
