"""Data that are sharded over a mesh: each device reduces its own to a triangle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import LogValueError
from ._descent import Problem
from ._problem import BLOCK, Curve, Data
from ._triangular import factor


def put_on_mesh(data: Data, sharding: NamedSharding) -> Data:
    """Data with their points along the mesh, as those of y are."""
    if data.factor is not None:
        raise LogValueError("A covariance matrix of `sigma` is for data on one device.")

    def put(a: Any) -> Any:
        return jax.device_put(a, NamedSharding(sharding.mesh, _spec(a, sharding)))

    return data._replace(
        **{name: jax.tree.map(put, getattr(data, name)) for name in ("x", "y", "weights")}
    )


def on_mesh(curve: Curve, sharding: NamedSharding) -> Callable[[Data], Problem]:
    """The problem of data that are sharded."""
    axes = sharding.spec[-1] if sharding.spec else None

    def problem_of(data: Data) -> Problem:
        parts = data.x, data.y, data.weights
        specs = jax.tree.map(lambda a: _spec(a, sharding), parts)

        def local(p: Any, f_scale: Any, parts: Any) -> tuple[Any, Any]:
            points = jnp.int32(parts[1].shape[-1])
            mine = Data(*jax.tree.map(_filled, parts), points, None, f_scale)
            cost, r = curve.problem(mine)(p)
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
