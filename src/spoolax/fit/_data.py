"""Data: arrays of all kinds, checked as SciPy does, and where they are."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..errors import LogTypeError, LogValueError


def checked_data(xdata: Any, ydata: Any, dtype: Any) -> tuple[Any, Any]:
    """The data as arrays of floating-point numbers."""
    if hasattr(xdata, "columns"):  # A table of pandas.
        xdata = {name: xdata[name] for name in xdata.columns}
    try:
        y = np.asarray(ydata, dtype).ravel()
        if isinstance(xdata, dict):
            x: Any = {key: np.asarray(value, dtype) for key, value in xdata.items()}
        else:
            x = np.asarray(xdata, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`xdata` and `ydata` are arrays of numbers: {error}") from error
    see_lengths(x, y)
    return x, y


def see_lengths(x: Any, y: Any) -> None:
    """See that there are as many points in x as in y."""
    for leaf in jax.tree.leaves(x):
        if not leaf.ndim or leaf.shape[-1] != len(y):
            raise LogValueError(
                f"`xdata` has the shape {leaf.shape}, but there are {len(y)} points in `ydata`: "
                "its last axis must be that long. (For grids, `ravel` all of them.)"
            )


def see_policy(policy: str | None) -> None:
    if policy not in (None, "raise", "omit"):
        raise LogValueError(f"`nan_policy={policy!r}` is not known: there are 'raise' and 'omit'.")


def finite(x: Any, y: Any, sigma: Any, check: bool, policy: str | None) -> tuple[Any, Any, Any]:
    """Refuse or leave out what is not finite."""
    see_policy(policy)
    if policy == "omit":
        bad = np.isnan(y)
        for leaf in jax.tree.leaves(x):
            bad |= np.isnan(leaf).reshape(-1, len(y)).any(0)
        if sigma is not None and bad.any():
            sigma = np.asarray(sigma)
            if sigma.ndim and sigma.size > 1:
                sigma = sigma[~bad] if sigma.ndim == 1 else sigma[~bad][:, ~bad]
        x, y = jax.tree.map(lambda a: a[..., ~bad], x), y[~bad]
    if check or policy is not None:
        see_finite(x, y)
    return x, y, sigma


def see_finite(x: Any, y: Any, numpy: Any = np) -> None:
    for name, array in (("xdata", x), ("ydata", y)):
        if not all(numpy.isfinite(leaf).all() for leaf in jax.tree.leaves(array)):
            raise LogValueError(
                f"`{name}`: array must not contain infs or NaNs. `nan_policy='omit'` leaves out "
                "NaNs, but not infs."
            )


def weights_of(sigma: Any, points: int, dtype: Any) -> tuple[Any, Any]:
    """The weights of the points (None: all are one), or the factor of their covariance matrix."""
    if sigma is None:
        return None, None
    try:
        sigma = np.asarray(sigma, dtype)
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`sigma` is an array of numbers: {error}") from error
    if sigma.size == 1:
        sigma = np.broadcast_to(sigma.ravel(), (points,))
    if sigma.shape == (points,):
        if not np.all((sigma > 0) & np.isfinite(sigma)):
            raise LogValueError("All of `sigma` must be positive and finite.")
        return 1 / sigma, None
    if sigma.shape == (points, points):
        if not np.isfinite(sigma).all():
            raise LogValueError("`sigma` must not contain infs or NaNs.")
        try:
            return None, np.linalg.cholesky(sigma)
        except np.linalg.LinAlgError as error:
            raise LogValueError("`sigma` must be positive definite.") from error
    raise LogValueError("`sigma` has incorrect shape.")


def device_of(*data: Any) -> Any:
    """The device that data are committed to, if there is one."""
    found = {
        device
        for leaf in jax.tree.leaves(data)
        if isinstance(leaf, jax.Array) and leaf.committed
        for device in leaf.devices()
    }
    if len(found) > 1:
        raise LogValueError(
            f"The data are on {len(found)} devices. Put them onto one, or shard `ydata` over a "
            "mesh, with `jax.device_put`."
        )
    return found.pop() if found else None


def on_cpu() -> bool:
    """Whether programs run on the processor, if nothing else is said."""
    device = jax.config.jax_default_device or jax.local_devices()[0]
    return bool(getattr(device, "platform", device) == "cpu")
