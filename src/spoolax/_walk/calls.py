"""How calls of functions are built anew when there are logs in them.

`jit`, `checkpoint`, custom derivatives and batching, linear solves and `shard_map`: each through
the public function that made it, as in `_control_rules.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import arrays, tracing
from .._jax.anatomy import manual_axes, subjaxprs
from .._jax.primitives import (
    Jaxpr,
    JaxprEqn,
    call_primitives,
    custom_jvp_call_p,
    custom_vjp_call_p,
    custom_vmap_p,
    hi_primitive_p,
    jit_p,
    linear_solve_p,
    remat_p,
    shard_map_p,
    split,
)
from .._log.entry import Entry, Nodes, map_entries
from .._log.primitive import listening
from .interpret import (
    Collect,
    Meaning,
    Outcome,
    Silent,
    State,
    Where,
    interpret,
    rule_for,
)


@rule_for(jit_p)
def _jit(eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where) -> Outcome:
    params = eqn.params

    def constrained(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        return [
            lax.with_sharding_constraint(value, sharding)
            if isinstance(sharding, jax.sharding.Sharding)
            else value
            for value, sharding in zip(values, shardings, strict=True)
        ]

    def call(state: State, *args: Any) -> Outcome:
        args = tuple(constrained(args, params["in_shardings"]))
        outs, state, nodes = interpret(params["jaxpr"], args, state, meaning, where)
        return constrained(outs, params["out_shardings"]), state, nodes

    call.__name__ = call.__qualname__ = params["name"]
    return jax.jit(call, inline=params["inline"])(state, *invals)  # type: ignore[no-any-return]


@rule_for(*call_primitives)
def _call(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    return interpret(eqn.params["call_jaxpr"], invals, state, meaning, where)


@rule_for(remat_p)
def _remat(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    params = eqn.params
    if params["differentiated"]:
        # The backward pass of a checkpointed function. Its inputs pass a barrier, or XLA would
        # share the recomputation with the forward pass and save no memory.
        args = lax.optimization_barrier(invals) if params["prevent_cse"] else invals
        return interpret(params["jaxpr"], args, state, meaning, where)

    def call(state: State, *args: Any) -> Outcome:
        return interpret(params["jaxpr"], args, state, meaning, where)

    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = any(prevent_cse)
    checkpointed = jax.checkpoint(call, prevent_cse=prevent_cse, policy=params["policy"])
    return checkpointed(state, *invals)  # type: ignore[no-any-return]


@rule_for(custom_jvp_call_p, hi_primitive_p)
def _custom_jvp(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    (jaxpr,) = subjaxprs(eqn)

    @jax.custom_jvp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(jaxpr, args, state, meaning, where)

    @call.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        # The user's rule is kept as it is: it runs when the original equation is differentiated.
        # What it logs would be logged twice.
        with listening(None):
            outs, out_tangents = jax.jvp(
                lambda *args: tracing.bind(eqn, args), primals[1:], tangents[1:]
            )
        _, state, nodes = call(*primals)
        return (outs, state, nodes), (out_tangents, *_zero_tangents((state, nodes)))

    return call(state, *invals)  # type: ignore[no-any-return]


@rule_for(custom_vjp_call_p)
def _custom_vjp(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    @jax.custom_vjp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(eqn.params["call_jaxpr"], args, state, meaning, where)

    def forward(state: State, *args: Any) -> Any:
        with listening(None):  # As above.
            outs, pull_back = jax.vjp(lambda *args: tracing.bind(eqn, args), *args)
        _, state, nodes = call(state, *args)
        return (outs, state, nodes), pull_back

    def backward(pull_back: Any, cotangents: Any) -> Any:
        return (None, *pull_back(cotangents[0]))

    call.defvjp(forward, backward)
    return call(state, *invals)  # type: ignore[no-any-return]


def _zero_tangents(tree: Any) -> Any:
    def zero(x: Any) -> Any:
        return arrays.zeros(jax.typeof(x).to_tangent_aval())

    return jax.tree.map(zero, tree)


@rule_for(custom_vmap_p)
def _custom_vmap(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    def plain(state: State, *args: Any) -> Outcome:
        return interpret(eqn.params["call"], args, state, meaning, where)

    call = jax.custom_batching.custom_vmap(plain)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, state: State, *args: Any) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        with listening(None):  # The user's rule is kept, and must not log a second time.
            outs = jax.vmap(lambda *args: tracing.bind(eqn, args), axes[1:], axis_size=axis_size)(
                *args
            )
        _, state, nodes = jax.vmap(plain, axes, axis_size=axis_size)(state, *args)
        result = (outs, state, nodes)
        return result, jax.tree.map(lambda _: True, result)

    return call(state, *invals)  # type: ignore[no-any-return]


@rule_for(linear_solve_p)
def _linear_solve(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    jaxprs, lengths = eqn.params["jaxprs"], eqn.params["const_lengths"]
    *consts, b = split(invals, *lengths)
    functions = [
        None if jaxpr is None else _with_consts(jaxpr, first)
        for jaxpr, first in zip(jaxprs, consts, strict=True)
    ]
    matvec, _, _, transpose_solve = functions
    assert matvec is not None

    def solve(_: Any, b: list[Any]) -> Any:
        outs, new_state, nodes = interpret(jaxprs.solve, [*consts[2], *b], state, meaning, where)
        return outs[: len(b)], (outs[len(b) :], new_state, nodes)

    def solve_transposed(_: Any, b: list[Any]) -> Any:
        assert transpose_solve is not None
        outs = transpose_solve(b)
        unused = jax.eval_shape(lambda b: solve(None, b)[1], b)
        return outs[: len(b)], jax.tree.map(arrays.zeros, unused)

    x, (aux, state, nodes) = lax.custom_linear_solve(
        matvec,
        b,
        solve,
        solve_transposed if transpose_solve else None,
        symmetric=jaxprs.matvec is jaxprs.vecmat,
        has_aux=True,
    )
    return [*x, *aux], state, nodes


def _with_consts(jaxpr: Jaxpr, consts: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    def call(args: list[Any]) -> list[Any]:
        outs, _, _ = interpret(jaxpr, [*consts, *args], None, Silent(), Where())
        return outs

    return call


@rule_for(shard_map_p)
def _shard_map(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    params = eqn.params
    mesh = params["mesh"]

    def mapped(body: Callable[..., Any], out_specs: Any) -> Any:
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=tuple(params["in_specs"]),
            out_specs=out_specs,
            axis_names=manual_axes(params),
            check_vma=params["check_vma"],
        )(*invals)

    def varying(value: Any) -> frozenset[str]:
        if params["check_vma"]:
            return arrays.varying_axes(value)
        return manual_axes(params)

    def body(*args: Any) -> tuple[list[Any], Nodes]:
        outs, _, nodes = interpret(params["jaxpr"], args, (), Collect(), where)
        return outs, map_entries(per_device, nodes)

    def per_device(entry: Entry) -> Entry:
        """Add a leading axis of devices to an entry that differs between them."""
        differs = frozenset().union(*map(varying, jax.tree.leaves(entry)))
        names = tuple(name for name in mesh.axis_names if name in differs)
        if not names:
            return entry
        front = len(entry.meta.times)

        def widen(leaf: Any) -> Any:
            leaf = arrays.vary(leaf, differs) if params["check_vma"] else leaf
            return _Placed(jnp.expand_dims(leaf, front), (*(None,) * front, names))

        lanes = (math.prod(mesh.shape[name] for name in names), *entry.meta.lanes)
        meta = dataclasses.replace(entry.meta, lanes=lanes, devices=_devices(mesh, names))
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

    outs, nodes = mapped(run, (list(params["out_specs"]), specs))
    nodes, state = meaning.log(nodes, state, where) if nodes else (nodes, state)
    return outs, state, nodes


def _devices(mesh: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """The devices along some axes of a mesh: the first ones, if others hold the same values."""
    if not hasattr(mesh, "devices"):
        return ()
    place = tuple(slice(None) if name in names else 0 for name in mesh.axis_names)
    return tuple(map(str, mesh.devices[place].flat))


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
