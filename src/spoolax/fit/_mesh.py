"""Data that are sharded over a mesh: each device reduces its own to a triangle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..errors import LogValueError
from ._data import see_finite, see_lengths
from ._descent import Problem
from ._problem import BLOCK, Curve, Data
from ._triangular import factor


def sharding_of(ydata: Any) -> NamedSharding | None:
    """How data are sharded over a mesh, if they are."""
    sharding = getattr(ydata, "sharding", None)
    if not isinstance(sharding, NamedSharding) or len(sharding.device_set) < 2:
        return None
    # Their axes are handled here and by the compiler, whatever kind they are for the user.
    return NamedSharding(Mesh(sharding.mesh.devices, sharding.mesh.axis_names), sharding.spec)


def points_on_mesh(
    xdata: Any,
    ydata: Any,
    sigma: Any,
    f_scale: Any,
    check_finite: bool,
    nan_policy: str | None,
    sharding: NamedSharding,
) -> Data:
    """Data that never leave their devices, with the points along the mesh as those of y are."""
    if np.ndim(ydata) != 1 or np.ndim(sigma) > 1 or nan_policy == "omit":
        raise LogValueError(
            "Data on a mesh have one axis, `sigma` are the errors of their points, and "
            "`nan_policy` is not 'omit'."
        )

    def put(a: Any) -> Any:
        a = jnp.asarray(a, f_scale.dtype)
        return jax.device_put(a, NamedSharding(sharding.mesh, _spec(a, sharding)))

    x, y = jax.tree.map(put, (xdata, ydata))
    see_lengths(x, y)
    if check_finite or nan_policy == "raise":
        see_finite(x, y, jnp)
    weights = None if sigma is None else 1 / put(jnp.broadcast_to(jnp.asarray(sigma), y.shape))
    return Data(x, y, weights, np.int32(len(y)), None, f_scale)


def on_mesh(curve: Curve, sharding: NamedSharding) -> Callable[[Data], Problem]:
    """The problem of data that are sharded."""
    axes = sharding.spec[-1] if sharding.spec else None

    def problem_of(data: Data) -> Problem:
        parts = data.x, data.y, data.weights
        specs = jax.tree.map(lambda a: _spec(a, sharding), parts)

        def local(p: Any, f_scale: Any, parts: Any) -> tuple[Any, Any]:
            x, y, weights = parts
            mine = Data(x, y, weights, jnp.int32(y.shape[-1]), None, f_scale)
            cost, r = curve.problem(mine.mapped(_filled))(p)
            if axes is None:
                return cost, r
            triangles = lax.all_gather(r, axes, axis=0, tiled=True)
            return lax.psum(cost, axes), factor(triangles.T)

        everywhere = PartitionSpec()
        mapped = jax.shard_map(
            local,
            mesh=sharding.mesh,
            in_specs=(everywhere, everywhere, specs),
            out_specs=(everywhere, everywhere),
            check_vma=False,  # They are the same on all devices, once they have been gathered.
        )
        return lambda p: mapped(p, data.f_scale, parts)

    return problem_of


def _spec(a: Any, sharding: NamedSharding) -> PartitionSpec:
    last = sharding.spec[-1] if sharding.spec else None
    return PartitionSpec(*[None] * (a.ndim - 1), last)


def _filled(a: Any) -> Any:
    """An array of whole blocks."""
    missing = -a.shape[-1] % BLOCK if a.shape[-1] > BLOCK else 0
    if not missing:
        return a
    return jnp.concatenate([a, jnp.repeat(a[..., :1], missing, axis=-1)], axis=-1)
