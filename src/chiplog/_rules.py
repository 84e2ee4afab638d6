"""How each of JAX's higher-order primitives is built anew when there are logs in it.

Each rule goes through the public function that made the construct. It threads the state, and
returns the equation's outputs, the new state, and the entries that come out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _jax_compat as compat
from ._entry import Entry, Node, Nodes, absent, alike, entries, map_entries, masked, stacked
from ._interpret import (
    Collect,
    Meaning,
    Outcome,
    Silent,
    State,
    Where,
    has_logging_loop,
    interpret,
    jaxpr_logs,
    rule_for,
)
from ._jax_compat import Jaxpr, JaxprEqn, open_jaxpr, split, subjaxprs
from ._log import listening
from .errors import UnsupportedError


@rule_for(compat.scan_p)
def _scan(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    params = eqn.params
    n_consts, n_carry = compat.scan_parts(params)
    consts, init, xs = split(invals, n_consts, n_carry)
    inside = where.enter("scan", params["length"])

    def body(carry: Any, x: Any) -> Any:
        state, carried = carry
        outs, state, nodes = interpret(
            params["jaxpr"], [*consts, *carried, *x], state, meaning, inside
        )
        state = meaning.iterated(state, inside)
        return (state, outs[:n_carry]), (outs[n_carry:], nodes)

    options = {
        name: params[name]
        for name in ("length", "reverse", "unroll", "_split_transpose")
        if name in params
    }
    (state, carried), (ys, nodes) = lax.scan(body, (state, init), xs, **options)
    state = meaning.left(state, where)
    return (
        [*carried, *ys],
        state,
        stacked(nodes, params["length"], params["reverse"], str(inside.path[-1])),
    )


@rule_for(compat.while_p)
def _while(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    params = eqn.params
    test_consts, body_consts, init = split(invals, params["cond_nconsts"], params["body_nconsts"])
    in_test = where.enter("while", None)
    inside = in_test.after(*open_jaxpr(params["cond_jaxpr"])[0].eqns)

    def test(carried: list[Any], state: State) -> tuple[Any, State]:
        (go_on,), state, nodes = interpret(
            params["cond_jaxpr"], [*test_consts, *carried], state, meaning, in_test
        )
        assert not nodes, "entries cannot come out of a while loop"
        return go_on, state

    def advance(go_on: Any, carried: list[Any], state: State) -> tuple[list[Any], State]:
        new, state, nodes = interpret(
            params["body_jaxpr"], [*body_consts, *carried], state, meaning, inside
        )
        assert not nodes, "entries cannot come out of a while loop"
        if jnp.ndim(go_on):  # Under vmap: a lane whose loop has ended stays as it is.
            new = [_select(go_on, x, old) for x, old in zip(new, carried, strict=True)]
        return new, meaning.iterated(state, inside)

    if jaxpr_logs(params["cond_jaxpr"]):
        # The test logs too, so it runs in the body, where the state is.
        def body(carry: Any) -> Any:
            go_on, carried, state = carry
            carried, state = advance(go_on, carried, state)
            again, state = test(carried, state)
            return again & go_on, carried, state

        go_on, state = test(init, state)
        _, carried, state = lax.while_loop(lambda c: jnp.any(c[0]), body, (go_on, init, state))
    else:
        batched = bool(open_jaxpr(params["cond_jaxpr"])[0].outvars[0].aval.shape)

        def plain_body(carry: Any) -> Any:
            go_on = test(carry[0], carry[1])[0] if batched else True
            return advance(go_on, *carry)

        carried, state = lax.while_loop(lambda c: jnp.any(test(*c)[0]), plain_body, (init, state))
    return carried, meaning.left(state, where), ()


@rule_for(compat.cond_p)
def _cond(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    index, *operands = invals
    branches = eqn.params["branches"]
    if "branches_platforms" in eqn.params:
        raise UnsupportedError(
            f"There is a `chiplog.log` inside `jax.lax.platform_dependent` at "
            f"{compat.source_line(eqn)}. Move the `log` call outside of it: return the value and "
            "log it there."
        )
    maybe = dataclasses.replace(where, conditional=True)
    later = None if any(map(has_logging_loop, branches)) else meaning.later()
    given, inner = (state, meaning) if later is None else ((), later)

    # Trace the branches first: their outputs must have one type, so the entries of all of them
    # are laid out in common slots.
    traced, place = [], maybe
    for branch in branches:
        closed, shapes = jax.make_jaxpr(
            lambda state, *args, branch=branch, place=place: interpret(
                branch, args, state, inner, place
            ),
            return_shape=True,
        )(given, *operands)
        traced.append((closed, jax.tree.structure(shapes)))
        place = place.after(*open_jaxpr(branch)[0].eqns)
    types = [jax.tree.unflatten(tree, closed.out_avals)[2] for closed, tree in traced]
    slots, assignment = _lay_out(types)
    varying = [
        compat.varying_axes(index).union(
            *(
                compat.varying_axes(leaf)
                for nodes, taken in zip(types, assignment, strict=True)
                for node, its_slot in zip(nodes, taken, strict=True)
                if its_slot == slot
                for leaf in jax.tree.leaves(node)
            )
        )
        for slot in range(len(slots))
    ]

    def filling(number: int) -> Callable[..., Any]:
        closed, tree = traced[number]

        def run(state: State, *args: Any) -> Any:
            flat = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves((state, args)))
            outs, state, nodes = jax.tree.unflatten(tree, flat)
            made: list[Any] = [None] * len(slots)
            for node, slot in zip(nodes, assignment[number], strict=True):
                made[slot] = node
            filled = [
                [compat.vary(leaf, axes) for leaf in jax.tree.leaves(_fitted(template, node))]
                for template, node, axes in zip(slots, made, varying, strict=True)
            ]
            return outs, state, filled

        return run

    outs, given, filled = lax.switch(
        index, [filling(number) for number in range(len(traced))], given, *operands
    )
    nodes = tuple(
        jax.tree.unflatten(jax.tree.structure(template), leaves)
        for template, leaves in zip(slots, filled, strict=True)
    )
    if later is None:
        return outs, given, nodes
    nodes, state = meaning.log(nodes, state, maybe) if nodes else ((), state)
    return outs, state, nodes


def _lay_out(branches: Sequence[Nodes]) -> tuple[list[Node], list[list[int]]]:
    """Find slots for the entries of all branches, sharing those of the same type and order.

    Returns a template for each slot, and for each branch the slot of each of its entries. A slot
    that every branch fills needs no mask.
    """
    slots: list[Node] = []
    users: list[int] = []
    assignment: list[list[int]] = []
    for nodes in branches:
        taken, first = [], 0
        for node in nodes:
            matches = (i for i in range(first, len(slots)) if alike(slots[i], node))
            slot = next(matches, None)
            if slot is None:
                slot = first
                slots.insert(slot, node)
                users.insert(slot, 0)
                for earlier in assignment:
                    earlier[:] = [i + (i >= slot) for i in earlier]
            users[slot] += 1
            taken.append(slot)
            first = slot + 1
        assignment.append(taken)
    templates = [
        node if used == len(branches) else jax.eval_shape(lambda node=node: absent(node))
        for node, used in zip(slots, users, strict=True)
    ]
    return templates, assignment


def _fitted(template: Node, node: Node | None) -> Node:
    """Give a node the mask that its slot calls for; make one that did not happen of None."""
    if node is None:
        return absent(template)  # type: ignore[no-any-return]
    wants_mask = any(entry.mask is not None for entry in entries([template]))
    has_mask = all(entry.mask is not None for entry in entries([node]))
    return masked([node], True)[0] if wants_mask and not has_mask else node


@rule_for(compat.jit_p)
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


@rule_for(*compat.call_primitives)
def _call(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    return interpret(eqn.params["call_jaxpr"], invals, state, meaning, where)


@rule_for(compat.remat_p)
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


@rule_for(compat.custom_jvp_call_p, compat.hi_primitive_p)
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
                lambda *args: compat.bind(eqn, args), primals[1:], tangents[1:]
            )
        _, state, nodes = call(*primals)
        return (outs, state, nodes), (out_tangents, *_zero_tangents((state, nodes)))

    return call(state, *invals)  # type: ignore[no-any-return]


@rule_for(compat.custom_vjp_call_p)
def _custom_vjp(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    @jax.custom_vjp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(eqn.params["call_jaxpr"], args, state, meaning, where)

    def forward(state: State, *args: Any) -> Any:
        with listening(None):  # As above.
            outs, pull_back = jax.vjp(lambda *args: compat.bind(eqn, args), *args)
        _, state, nodes = call(state, *args)
        return (outs, state, nodes), pull_back

    def backward(pull_back: Any, cotangents: Any) -> Any:
        return (None, *pull_back(cotangents[0]))

    call.defvjp(forward, backward)
    return call(state, *invals)  # type: ignore[no-any-return]


def _zero_tangents(tree: Any) -> Any:
    def zero(x: Any) -> Any:
        return compat.zeros(jax.typeof(x).to_tangent_aval())

    return jax.tree.map(zero, tree)


@rule_for(compat.custom_vmap_p)
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
            outs = jax.vmap(lambda *args: compat.bind(eqn, args), axes[1:], axis_size=axis_size)(
                *args
            )
        _, state, nodes = jax.vmap(plain, axes, axis_size=axis_size)(state, *args)
        result = (outs, state, nodes)
        return result, jax.tree.map(lambda _: True, result)

    return call(state, *invals)  # type: ignore[no-any-return]


@rule_for(compat.linear_solve_p)
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
        return outs[: len(b)], jax.tree.map(compat.zeros, unused)

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


@rule_for(compat.shard_map_p)
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
            axis_names=compat.manual_axes(params),
            check_vma=params["check_vma"],
        )(*invals)

    def varying(value: Any) -> frozenset[str]:
        if params["check_vma"]:
            return compat.varying_axes(value)
        return compat.manual_axes(params)

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
            leaf = compat.vary(leaf, differs) if params["check_vma"] else leaf
            return _Placed(jnp.expand_dims(leaf, front), (*(None,) * front, names))

        lanes = (math.prod(mesh.shape[name] for name in names), *entry.meta.lanes)
        entry = jax.tree.map(widen, entry)
        return entry.replace(meta=dataclasses.replace(entry.meta, lanes=lanes))

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


def _select(flag: Any, new: Any, old: Any) -> Any:
    return jnp.where(jnp.reshape(flag, flag.shape + (1,) * (jnp.ndim(new) - flag.ndim)), new, old)
