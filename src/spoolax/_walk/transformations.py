"""Keep `log` right where JAX's own transformations would not.

JAX's rules assume that control flow has no side effects of ours: `vmap` turns a `cond` into a
select that runs both branches, partial evaluation hoists out of scans what does not depend on the
iteration, and checkpointing runs things twice. The rules below replace JAX's for equations that
log, and hand everything else through:

- before a `cond` or `while` is batched, its entries get a mask that says whether they happen;
- when a scan or a checkpointed function is differentiated, its entries are tied to a counter that
  changes with every iteration around them, so that nothing can be hoisted: the forward pass logs as
  it runs, and what a checkpointed function runs again is silent;
- where partial evaluation splits a while loop in two, it is run once more only to log.

When JAX compiles a program with entries that a `tap` inside it, or a block around it, has claimed,
that compiles it instead.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import arrays, rule_tables, tracing
from .._jax.anatomy import Cond, While
from .._jax.filtered import filtered_primitives, ignore_filtered
from .._jax.lowering import wrap_programs
from .._jax.primitives import (
    Jaxpr,
    JaxprEqn,
    Primitive,
    cond_p,
    equation,
    open_jaxpr,
    remat_p,
    scan_p,
    split,
    while_p,
)
from .._log.cotangents import mark_p, only_if
from .._log.entry import Entry, Nodes, map_entries, masked, restrict
from .._log.primitive import around_here, emit, listening, log_effect
from .counts import claimed_logs, logs, marks
from .interpret import interpret, logged_in, rules
from .meaning import Meaning, Silent, State
from .places import Where


class _Masked(Meaning):
    """Leaves entries where they are; they happen only if the state, a flag, is true."""

    in_place = True

    def enters(self, eqn: JaxprEqn) -> bool:
        return _can_log(eqn) and eqn.primitive is not mark_p

    def run(
        self, eqn: JaxprEqn, invals: Sequence[Any], state: State, where: Where
    ) -> tuple[list[Any], State]:
        if eqn.primitive is mark_p:
            return only_if(state, invals, **eqn.params), state
        return super().run(eqn, invals, state, where)

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        emit(masked(nodes, state))
        return (), state


def _can_log(eqn: JaxprEqn) -> bool:
    """Say whether an equation logs, or would in the backward pass."""
    return bool(logs(eqn) or marks(eqn))


class _Here(Meaning):
    """Leaves entries where they are."""

    linearizes = in_place = True

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        emit(nodes)
        return (), state


class _Tied(_Here):
    """Leaves entries where they are, tied to the state, a counter."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        nodes, _ = lax.optimization_barrier((nodes, state))
        return super().log(map_entries(_with_token, nodes), state, where)

    def iterated(self, state: State, where: Where) -> State:
        del where
        return state + 1


def _with_token(entry: Entry) -> Entry:
    if entry.meta.token is not None:
        return entry
    return entry.replace(meta=dataclasses.replace(entry.meta, token=next(_tokens)))


_tokens = itertools.count()


def _batch_cond(rule: Callable[..., Any]) -> Callable[..., Any]:
    def batch(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        index, *operands = args
        eqn = equation(cond_p, params)
        branches = Cond.of(eqn).programs
        if dims[0] is None or not _can_log(eqn):
            return rule(axis_data, args, dims, **params)

        def known(number: int) -> Any:
            # The index is an operand too, so that each branch can tell whether it was meant.
            def branch(index: Any, *operands: Any) -> list[Any]:
                outs, _, _ = interpret(
                    branches[number], operands, index == number, _Masked(), Where()
                )
                return outs

            invars = open_jaxpr(branches[number])[0].invars
            scalar = rule_tables.aval_at(index, dims[0])
            return tracing.trace(branch, [scalar, *(v.aval for v in invars)])

        new = Cond.with_branches(params, [known(number) for number in range(len(branches))])
        return rule(axis_data, (index, index, *operands), (dims[0], *dims), **new)

    return batch


def _batch_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def batch(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        eqn = equation(while_p, params)
        loop = While.of(eqn)
        if loop.is_batched or not _can_log(eqn):
            return rule(axis_data, args, dims, **params)
        n_test, n_consts = loop.test_consts, loop.test_consts + loop.body_consts
        selection = loop.selection

        # The test moves into the body, so that the entries of both can be masked by its outcome.
        test_consts, body_consts, init = split(args, n_test, loop.body_consts)
        consts_dims, init_dims = dims[:n_consts], dims[n_consts:]

        def ask(flag: Any, *args: Any) -> list[Any]:
            outs, _, _ = interpret(loop.test, args, flag, _Masked(), Where())
            return outs

        def advance(*args: Any) -> list[Any]:
            test_consts, body_consts, (flag, *carried) = split(args, n_test, loop.body_consts)
            goes_on = flag if selection is None else flag & carried[selection[0]]
            new, _, _ = interpret(loop.body, [*body_consts, *carried], goes_on, _Masked(), Where())
            return [*ask(flag, *test_consts, *new), *new]

        (flag,), (flag_dim,) = rule_tables.batch(
            ask,
            axis_data,
            [jnp.bool_(True), *test_consts, *init],
            [None, *dims[:n_test], *init_dims],
        )
        types = [rule_tables.aval_at(x, d) for x, d in zip(args, dims, strict=True)]
        carried = [rule_tables.aval_at(flag, flag_dim), *types[n_consts:]]
        test = tracing.trace(lambda flag, *carried: flag, carried)
        body = tracing.trace(advance, [*types[:n_consts], *carried])
        outs, out_dims = rule(
            axis_data,
            [*test_consts, *body_consts, flag, *init],
            [*consts_dims, flag_dim, *init_dims],
            **While((test, body), 0, n_consts).params(),
        )
        return outs[1:], out_dims[1:]

    return batch


def _jvp_tied(primitive: Primitive, rule: Callable[..., Any]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        if not logs(equation(primitive, params)):
            return rule(primals, tangents, **params)

        def run(closed: Jaxpr, args: Sequence[Any]) -> list[Any]:
            counter = jnp.int32(0)
            if primitive is scan_p:
                # Counted from what the loop begins with: else, counting would be hoisted out of a
                # loop around it, as a loop of its own.
                counter, _ = lax.optimization_barrier((counter, arrays.plain(primals)))
            outs, _, _ = interpret(closed, args, counter, _Tied(), Where())
            return outs

        return _pushed(rule, primals, tangents, params, run)

    return jvp


def _pushed(
    rule: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    params: dict[str, Any],
    run: Callable[[Jaxpr, Sequence[Any]], list[Any]],
) -> Any:
    """Apply a JVP rule by way of a program, which `run` evaluates."""
    zero = [rule_tables.is_zero(t) for t in tangents]
    out_zero: list[bool] = []

    def pushed(primals: Any, given: Any) -> Any:
        given = iter(given)
        full = [t if z else next(given) for t, z in zip(tangents, zero, strict=True)]
        outs, out_tangents = rule(primals, full, **params)
        out_zero[:] = map(rule_tables.is_zero, out_tangents)
        return list(outs), [t for t in out_tangents if not rule_tables.is_zero(t)]

    args = (list(primals), [t for t, z in zip(tangents, zero, strict=True) if not z])
    flat = run(jax.make_jaxpr(pushed)(*args), jax.tree.leaves(args))
    outs, given = flat[: len(out_zero)], iter(flat[len(out_zero) :])
    return outs, [
        rule_tables.symbolic_zero(out) if z else next(given)
        for out, z in zip(outs, out_zero, strict=True)
    ]


def _jvp_filtered(rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(closed: Jaxpr, args: Sequence[Any]) -> list[Any]:
        # Such a rule begins with the equation itself; what follows is the derivative.
        ignore_filtered(closed, start=1)
        return list(jax.core.eval_jaxpr(*open_jaxpr(closed), *args))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        if not listening.value:
            return rule(primals, tangents, **params)
        return _pushed(rule, primals, tangents, params, run)

    return jvp


def wrap_filtered() -> None:
    """Keep logs right in primitives of equinox, as far as there are any by now."""
    for primitive in filtered_primitives():
        if primitive not in _wrapped:
            _wrapped.add(primitive)
            rule_tables.wrap_jvp(primitive, _jvp_filtered, lambda _: False)


_wrapped: set[Primitive] = set()


def _split_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        unknown = [not t.is_known() for t in tracers]
        eqn = equation(while_p, params)
        known = rule_tables.known_parts(params, unknown) if logs(eqn) else []
        if not any(map(logs.within, known)):
            return rule(trace, *tracers, **params)
        # The loop is being linearized. Both halves that JAX would make of it would log. What is
        # logged depends on primal values, which are known; of the tangents, zeros do as well.
        with tracing.with_parent_trace(trace):
            rules[while_p](eqn, rule_tables.known_or_zero(tracers), (), _Here(), Where())
        with tracing.with_trace(trace):
            outs, _, _ = rules[while_p](eqn, list(tracers), (), _Gone(), Where())
        return outs

    return partial_eval


class _Gone(Silent):
    linearizes = True


def _without(known: Jaxpr, again: Jaxpr) -> Jaxpr:
    """The second program, without the entries that are in the first one as well."""
    tokens = {entry.meta.token for entry in logged_in(known)} - {None}
    types = [var.aval for var in again.invars]

    def rest(*args: Any) -> list[Any]:
        outs, _, _ = interpret(again, args, (), _Except(tokens), Where())
        return outs

    return tracing.trace(rest, types)


class _Except(_Here):
    """Leaves entries where they are, except those with some tokens."""

    def __init__(self, tokens: set[Any]) -> None:
        self._tokens = tokens

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        others = restrict(nodes, lambda key, entry: entry.meta.token not in self._tokens)
        return super().log(others, state, where)


def _is_wanted(jaxpr: Jaxpr) -> bool:
    """Say whether somebody has claimed entries in a program, or wants to put some into it."""
    return bool(claimed_logs.within(jaxpr)) or any(one.wants(jaxpr) for one in around_here())


def _compile(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Let those who have claimed entries in a program compile it."""
    for listener in around_here():
        if listener.wants(jaxpr):
            jaxpr = listener.instrumented(jaxpr)
    claimed = (listener for entry in logged_in(jaxpr) for listener in entry.meta.listeners)
    return next(claimed).compile(jaxpr, args)


rule_tables.wrap_batching(cond_p, _batch_cond)
rule_tables.wrap_batching(while_p, _batch_while)
rule_tables.wrap_partial_eval(while_p, _split_while)
rule_tables.wrap_repetition(logs, _without)
for _primitive in (scan_p, remat_p):
    rule_tables.wrap_jvp(_primitive, functools.partial(_jvp_tied, _primitive), logs)
wrap_programs(_is_wanted, _compile, log_effect)
tracing.wrap_rehearsals(lambda: listening(False))
