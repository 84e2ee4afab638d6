"""The problem of data on a mesh: each device reduces its own points to a triangular factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from .._data.mesh import spec_along_points
from .._data.points import Data
from .._solver.solver import Problem
from .._solver.triangular import triangular_factor
from .curve import Curve


def sharded_problem(curve: Curve, sharding: NamedSharding) -> Callable[[Data], Problem]:
    """Return a function that makes the problem of a curve and of sharded data."""
    axes = sharding.spec[-1] if sharding.spec else None

    def problem_of(data: Data) -> Problem:
        arrays = data.x, data.y, data.weights
        specs = jax.tree.map(lambda a: spec_along_points(a, sharding), arrays)

        def local(p: Any, f_scale: Any, arrays: Any) -> tuple[Any, Any]:
            x, y, weights = arrays
            shard = Data(x, y, weights, jnp.int32(y.shape[-1]), None, f_scale)
            cost, r = curve.problem(shard.padded_to_blocks())(p)
            if axes is None:
                return cost, r
            factors = lax.all_gather(r, axes, axis=0, tiled=True)
            return lax.psum(cost, axes), triangular_factor(factors.T)

        replicated = PartitionSpec()
        mapped = jax.shard_map(
            local,
            mesh=sharding.mesh,
            in_specs=(replicated, replicated, specs),
            out_specs=(replicated, replicated),
            check_vma=False,  # The outputs are replicated, as all factors have been gathered.
        )
        return lambda p: mapped(p, data.f_scale, arrays)

    return problem_of
