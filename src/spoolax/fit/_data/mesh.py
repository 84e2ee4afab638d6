"""Data that are sharded over a mesh, and never leave their devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...errors import LogValueError
from .arrays import check_all_finite, check_lengths
from .points import Data


def sharding_of(ydata: Any) -> NamedSharding | None:
    """Return how data are sharded over a mesh, if they are."""
    sharding = getattr(ydata, "sharding", None)
    if not isinstance(sharding, NamedSharding) or len(sharding.device_set) < 2:
        return None
    # The mesh axes are handled by `shard_map` and the compiler, whatever type the user gave them.
    return NamedSharding(Mesh(sharding.mesh.devices, sharding.mesh.axis_names), sharding.spec)


def spec_along_points(a: Any, sharding: NamedSharding) -> PartitionSpec:
    """Return how an array is sharded whose last axis is sharded as the points of y are."""
    last = sharding.spec[-1] if sharding.spec else None
    return PartitionSpec(*[None] * (a.ndim - 1), last)


def checked_points_on_mesh(
    xdata: Any,
    ydata: Any,
    sigma: Any,
    f_scale: Any,
    check_finite: bool,
    nan_policy: str | None,
    sharding: NamedSharding,
) -> Data:
    """Return the data as arrays on the mesh, all sharded as the points of y are."""
    if np.ndim(ydata) != 1 or np.ndim(sigma) > 1 or nan_policy == "omit":
        raise LogValueError(
            "On a mesh, `ydata` must have one axis, `sigma` must be the errors of the points, and "
            "`nan_policy` cannot be 'omit'."
        )

    def put(a: Any) -> Any:
        a = jnp.asarray(a, f_scale.dtype)
        return jax.device_put(a, NamedSharding(sharding.mesh, spec_along_points(a, sharding)))

    x, y = jax.tree.map(put, (xdata, ydata))
    check_lengths(x, y)
    if check_finite or nan_policy == "raise":
        check_all_finite(x, y, jnp)
    weights = None if sigma is None else 1 / put(jnp.broadcast_to(jnp.asarray(sigma), y.shape))
    return Data(x, y, weights, np.int32(len(y)), None, f_scale)
