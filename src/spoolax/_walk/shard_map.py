"""How `shard_map` is built anew when there are logs in it.

An entry that differs between devices comes out with a leading axis of devices; one that is the
same on all of them comes out once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import arrays
from .._jax.anatomy import ShardMap
from .._jax.primitives import JaxprEqn, shard_map_p
from .._log.entry import Devices, Entry, Nodes, map_entries, map_ran
from .interpret import interpret, rule_for
from .meaning import Collect, Meaning, Outcome, State
from .places import Where


@rule_for(shard_map_p)
def _shard_map(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    construct = ShardMap.of(eqn)
    mesh, check_vma = construct.mesh, construct.check_vma
    inside = dataclasses.replace(where, path=())  # A loop around it runs alike on all devices.
    collect = Collect(meaning.repeated)

    def mapped(body: Callable[..., Any], out_specs: Any, *given: Any) -> Any:
        everywhere = (jax.sharding.PartitionSpec(),) * len(given)
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(*construct.in_specs, *everywhere),
            out_specs=out_specs,
            axis_names=construct.axes,
            check_vma=check_vma,
        )(*invals, *given)

    shards = meaning.in_shards(eqn, where)
    if shards is not None:

        def shard(*args: Any) -> Any:
            start = shards.begin(args[-1])
            outs, state, nodes = interpret(construct.programs[0], args[:-1], start, shards, inside)
            assert not nodes, "nothing comes out"
            return outs, *shards.end(state)

        state, given = shards.given(state, where)
        axes = tuple(name for name in mesh.axis_names if name in construct.axes)
        specs = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(axes)
        outs, common, own = mapped(shard, (list(construct.out_specs), *specs), given)
        return outs, shards.returned(state, common, own), ()

    def varying(value: Any) -> frozenset[str]:
        if check_vma:
            return arrays.varying_axes(value)
        return construct.axes

    def body(*args: Any) -> tuple[list[Any], Nodes]:
        outs, _, nodes = interpret(construct.programs[0], args, (), collect, inside)
        return outs, map_ran(told_by_each, map_entries(per_device, nodes))

    def told_by_each(ran: Any, depth: int) -> Any:
        differs = varying(ran)
        if not differs:
            return ran
        ran = arrays.vary(ran, differs) if check_vma else ran
        names = tuple(name for name in mesh.axis_names if name in differs)
        return _Placed(jnp.expand_dims(ran, depth), (*(None,) * depth, names))

    def per_device(entry: Entry) -> Entry:
        """Add a leading axis of devices to an entry that differs between them."""
        differs = frozenset().union(*map(varying, jax.tree.leaves(entry)))
        names = tuple(name for name in mesh.axis_names if name in differs)
        if not names:
            return entry
        front = len(entry.meta.times)

        def widen(leaf: Any) -> Any:
            leaf = arrays.vary(leaf, differs) if check_vma else leaf
            return _Placed(jnp.expand_dims(leaf, front), (*(None,) * front, names))

        lanes = (math.prod(mesh.shape[name] for name in names), *entry.meta.lanes)
        meta = dataclasses.replace(entry.meta, lanes=lanes, devices=devices_along(mesh, names))
        return jax.tree.map(widen, entry).replace(meta=meta)  # type: ignore[no-any-return]

    # The entries are known once the body has been traced; only then can it be said where each of
    # their arrays lives.
    found: list[Any] = []

    def survey(*args: Any) -> None:
        _, nodes = body(*args)
        found[:] = [jax.tree.map(_Placed.spec_of, nodes, is_leaf=_Placed.is_one)]

    jax.eval_shape(lambda: mapped(survey, None))
    specs = found[0]

    def run(*args: Any) -> tuple[list[Any], Nodes]:
        outs, nodes = body(*args)
        return outs, jax.tree.map(_Placed.value_of, nodes, is_leaf=_Placed.is_one)

    outs, nodes = mapped(run, (list(construct.out_specs), specs))
    # As with lanes, an iteration is one that any device makes.
    nodes = map_ran(lambda ran, depth: ran.any(depth) if ran.ndim > depth else ran, nodes)
    nodes, state = meaning.log(nodes, state, where) if nodes else (nodes, state)
    return outs, state, nodes


def devices_along(mesh: Any, names: tuple[str, ...]) -> Devices:
    """The devices along some axes of a mesh: the first ones, if others hold the same values."""
    axes = tuple((name, mesh.shape[name]) for name in names)
    mesh = arrays.concrete_mesh(mesh)
    if mesh is None:
        return Devices(axes, ())
    place = tuple(slice(None) if name in names else 0 for name in mesh.axis_names)
    return Devices(axes, tuple(map(str, mesh.devices[place].flat)))


@dataclasses.dataclass
class _Placed:
    """An array, and how its leading axes are laid out over the mesh."""

    value: Any
    axes: tuple[Any, ...]

    @staticmethod
    def is_one(leaf: Any) -> bool:
        return isinstance(leaf, _Placed)

    @staticmethod
    def value_of(leaf: Any) -> Any:
        return leaf.value if isinstance(leaf, _Placed) else leaf

    @staticmethod
    def spec_of(leaf: Any) -> jax.sharding.PartitionSpec:
        axes = leaf.axes if isinstance(leaf, _Placed) else ()
        return jax.sharding.PartitionSpec(*axes)
