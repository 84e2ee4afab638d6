"""How control flow is built anew when there are logs in it: `scan`, `while_loop`, `cond`.

Each rule goes through the public function that made the construct. It threads the state, and
returns the equation's outputs, the new state, and the entries that come out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import arrays
from .._jax.anatomy import Cond, Scan, While
from .._jax.primitives import Jaxpr, JaxprEqn, cond_p, open_jaxpr, scan_p, split, while_p
from .._log.entry import Node, Nodes, absent, alike, masked, stacked
from .chunks import PausingLoop, in_blocks, in_chunks
from .counts import logging_loops, logs
from .interpret import interpret, refusal, rule_for
from .meaning import MOST_UNROLLED, Body, Meaning, Outcome, State
from .places import Where, programs_at


@rule_for(scan_p)
def _scan(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    scan = Scan.of(eqn)
    n_carry, length = scan.carry, scan.length
    consts, init, xs = split(invals, scan.consts, n_carry)
    ((program, inside),) = programs_at(eqn, where)
    state = meaning.entered(state, inside)

    def iterate(carried: list[Any], x: list[Any], state: State) -> Outcome:
        args = [*consts, *carried, *x]
        outs, state, nodes = interpret(program, args, state, meaning, inside)
        body = Body(program, args, outs, n_carry, scan.consts)
        return outs, meaning.stepped(body, state, inside), nodes

    if meaning.rehearses and meaning.chunked(inside):
        return _rehearsed(eqn, [(program, inside)], state, meaning, where)

    if meaning.chunked(inside):

        def step(carry: Any, state: State) -> Any:
            carried, ys = carry
            i = meaning.iteration(state, inside)
            at = length - 1 - i if scan.reverse else i
            x = [lax.dynamic_index_in_dim(x, at, keepdims=False) for x in xs]
            outs, state, nodes = iterate(carried, x, state)
            ys = [
                lax.dynamic_update_index_in_dim(ys, y, at, 0)
                for ys, y in zip(ys, outs[n_carry:], strict=True)
            ]
            return (outs[:n_carry], ys), meaning.commit(nodes, state, inside)

        def more(carry: Any, state: State) -> Any:
            return meaning.iteration(state, inside) < length

        def ran(before: Any, after: Any, i: Any) -> Body:
            at = length - 1 - i if scan.reverse else i
            row = functools.partial(lax.dynamic_index_in_dim, index=at, keepdims=False)
            args, outs = [*consts, *before[0], *map(row, xs)], [*after[0], *map(row, after[1])]
            return Body(program, args, outs, n_carry, scan.consts)

        def rewound(before: Any, after: Any) -> Any:
            return before[0], after[1]  # Outputs will be written again, as they are.

        loop = PausingLoop(more, step, ran, rewound, program, _unrolled(scan))
        carry = init, [arrays.stand_in(var.aval) for var in eqn.outvars[n_carry:]]
        size = meaning.block_size(scan, inside)
        if size:
            carry, state = in_blocks(loop, carry, state, meaning, inside, length, size)
        if not size or length % size or meaning.noted(state, inside) is not None:
            carry, state = in_chunks(loop, carry, state, meaning, inside)
        carried, ys = carry
        outs = [
            arrays.retyped(out, var.aval)
            for out, var in zip([*carried, *ys], eqn.outvars, strict=True)
        ]
        return outs, meaning.left(state, where), ()

    def body(carry: Any, x: Any) -> Any:
        state, carried = carry
        outs, state, nodes = iterate(carried, x[: len(xs)], state)
        state = meaning.iterated(state, inside)
        return (state, outs[:n_carry]), (outs[n_carry:], nodes)

    rows = xs
    if not xs and not isinstance(length, int):  # JAX takes a symbolic one from what it scans over.
        rows = [jnp.zeros(length, jnp.bool_)]
    (state, carried), (ys, nodes) = lax.scan(
        body, (state, init), rows, None if rows else length, **scan.options
    )
    state = meaning.left(state, where)
    return [*carried, *ys], state, stacked(nodes, length, scan.reverse, str(inside.path[-1]))


def _rehearsed(
    eqn: JaxprEqn,
    programs: Sequence[tuple[Jaxpr, Where]],
    state: State,
    meaning: Meaning,
    where: Where,
) -> Outcome:
    """Find out what a loop that runs in chunks logs: once, and not as a loop."""
    for program, inside in programs:
        _, state, nodes = interpret(program, (), state, meaning, inside)
        state = meaning.commit(nodes, state, inside)
    state = meaning.left(meaning.iterated(state, inside), where)
    return [arrays.stand_in(var.aval) for var in eqn.outvars], state, ()


def _unrolled(scan: Scan) -> int:
    """How many iterations to unroll: as many as the user asked, if that divides the length."""
    asked = max(1, scan.unroll)
    return asked if asked <= MOST_UNROLLED and scan.length % asked == 0 else 1


@rule_for(while_p)
def _while(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    construct = While.of(eqn)
    test_consts, body_consts, init = split(invals, construct.test_consts, construct.body_consts)
    programs = programs_at(eqn, where)
    (test_program, in_test), (program, inside) = programs
    state = meaning.entered(state, inside)
    if meaning.rehearses:
        return _rehearsed(eqn, programs, state, meaning, where)
    chunked = meaning.chunked(inside)
    selection = construct.selection
    # If the test logs, too, or has to be told of, it runs in the body, where the state is.
    acts = logs.within(test_program) or any(
        map(meaning.commits_before, open_jaxpr(test_program)[0].eqns)
    )
    in_body = acts and (chunked or jax.tree.leaves(state))

    def committed(nodes: Nodes, state: State, there: Where) -> State:
        if chunked:
            return meaning.commit(nodes, state, there)
        assert not nodes, "entries cannot come out of a while loop"
        return state

    def test(carried: list[Any], state: State) -> tuple[Any, State]:
        (go_on,), state, nodes = interpret(
            test_program, [*test_consts, *carried], state, meaning, in_test
        )
        return go_on, committed(nodes, state, in_test)

    def advance(go_on: Any, carried: list[Any], state: State) -> tuple[list[Any], State]:
        args = [*body_consts, *carried]
        new, state, nodes = interpret(program, args, state, meaning, inside)
        if jnp.ndim(go_on):  # Under vmap: a lane whose loop has ended stays as it is.
            new = [_select(go_on, x, old) for x, old in zip(new, carried, strict=True)]
        body = Body(program, args, new, len(new), len(body_consts))
        state = meaning.stepped(body, state, inside)
        return new, committed(nodes, state, inside)

    def ran(before: Any, after: Any, _: Any) -> Body:
        old, new = (carry[1] if in_body else carry for carry in (before, after))
        return Body(program, [*body_consts, *old], new, len(new), len(body_consts))

    def loop(go_on: Any, step: Any, carry: Any, state: State) -> tuple[Any, State]:
        if chunked:
            chunks = PausingLoop(go_on, step, ran, lambda before, _: before, program)
            return in_chunks(chunks, carry, state, meaning, inside)

        def body(c: Any) -> Any:
            carry, state = step(*c)
            state = meaning.iterated(state, inside)
            return carry, state if selection is None else _unless_ended(selection, init, c, state)

        def more(c: Any) -> Any:
            return go_on(*c) & meaning.goes_on(c[1])

        return lax.while_loop(more, body, (carry, state))  # type: ignore[no-any-return]

    if in_body:

        def step(carry: Any, state: State) -> Any:
            go_on, carried = carry
            carried, state = advance(go_on, carried, state)
            again, state = test(carried, state)
            return (again & go_on, carried), state

        go_on, state = test(init, state)
        (_, carried), state = loop(lambda c, _: jnp.any(c[0]), step, (go_on, init), state)
    else:

        def plain_step(carried: list[Any], state: State) -> Any:
            go_on = test(carried, state)[0] if construct.is_batched else True
            return advance(go_on, carried, state)

        carried, state = loop(lambda c, state: jnp.any(test(c, state)[0]), plain_step, init, state)
    return carried, meaning.left(state, where), ()


def _unless_ended(selection: Any, carried: list[Any], before: Any, state: State) -> State:
    """The new state. Under `vmap`, a lane whose loop has ended by its own account keeps its old."""
    (number, select), (carry, old) = selection, before
    flag = jax.tree.leaves(carry)[number - len(carried)]  # The carried values come last.
    return jax.tree.map(lambda new, old: select.bind(flag, new, old), state, old)


@rule_for(cond_p)
def _cond(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    index, *operands = invals
    construct = Cond.of(eqn)
    if construct.by_platform:
        raise refusal(eqn, "jax.lax.platform_dependent")
    at_once = any(map(logging_loops.within, construct.programs)) or meaning.commits_before(eqn)
    deferred = None if at_once else meaning.deferred()
    given, inner = (state, meaning) if deferred is None else ((), deferred)

    # Trace the branches first: their outputs must have one type, so the entries of all of them
    # are laid out in common slots.
    traced = []
    for branch, place in programs_at(eqn, where):
        closed, shapes = jax.make_jaxpr(
            lambda state, *args, branch=branch, place=place: interpret(
                branch, args, state, inner, place
            ),
            return_shape=True,
        )(given, *operands)
        traced.append((closed, jax.tree.structure(shapes)))
    types = [jax.tree.unflatten(tree, closed.out_avals)[2] for closed, tree in traced]
    slots, assignment = _lay_out(types)
    varying = [
        arrays.varying_axes(index).union(
            *(
                arrays.varying_axes(leaf)
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
                [arrays.vary(leaf, axes) for leaf in jax.tree.leaves(_fitted(template, node))]
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
    if deferred is None:
        return outs, given, nodes
    maybe = dataclasses.replace(where, conditional=True)
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
    """Give a node the masks that its slot needs. None becomes a node that did not happen."""
    if node is None:
        return absent(template)  # type: ignore[no-any-return]
    has_masks = jax.tree.structure(node) == jax.tree.structure(template)
    return node if has_masks else masked([node], True)[0]


def _select(flag: Any, new: Any, old: Any) -> Any:
    return jnp.where(jnp.reshape(flag, flag.shape + (1,) * (jnp.ndim(new) - flag.ndim)), new, old)
