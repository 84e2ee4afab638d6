"""How calls of functions are built anew when there are logs in them.

`jit`, `checkpoint`, custom derivatives and batching, linear solves: each through the public
function that made it, as in `control.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from .._jax import arrays, derivatives, tracing
from .._jax.anatomy import Anatomy, Call, Checkpoint, Jit, LinearSolve
from .._jax.filtered import Filtered, ignore_filtered
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
    open_jaxpr,
    remat_p,
    split,
)
from .._log.primitive import listening, repeating
from .hushed import Hushed
from .interpret import interpret, rule_for
from .meaning import Meaning, Outcome, Silent, State
from .places import Where
from .repetitions import all_calls
from .survey import survey


@rule_for(jit_p)
def _jit(eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where) -> Outcome:
    jit = Jit.of(eqn)

    def constrained(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        return [
            lax.with_sharding_constraint(value, sharding)
            if isinstance(sharding, jax.sharding.Sharding)
            else value
            for value, sharding in zip(values, shardings, strict=True)
        ]

    def call(state: State, *args: Any) -> Outcome:
        args = tuple(constrained(args, jit.in_shardings))
        outs, state, nodes = interpret(jit.function, args, state, meaning, where)
        return constrained(outs, jit.out_shardings), state, nodes

    call.__name__ = call.__qualname__ = jit.name
    return jax.jit(call, inline=jit.inline)(state, *invals)  # type: ignore[no-any-return]


@rule_for(*call_primitives)
def _call(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    return interpret(Call.of(eqn).function, invals, state, meaning, where)


@rule_for(remat_p)
def _remat(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    checkpoint = Checkpoint.of(eqn)
    prevent_cse = checkpoint.prevent_cse
    if checkpoint.is_repeated and not meaning.linearizes:
        # The backward pass of a checkpointed function. Its inputs pass a barrier, or XLA would
        # share the recomputation with the forward pass and save no memory.
        args = lax.optimization_barrier(invals) if prevent_cse else invals
        return interpret(checkpoint.function, args, state, meaning, where)

    def call(state: State, *args: Any) -> Outcome:
        return interpret(checkpoint.function, args, state, meaning, where)

    if isinstance(prevent_cse, tuple):
        prevent_cse = any(prevent_cse)
    checkpointed = jax.checkpoint(call, prevent_cse=prevent_cse, policy=checkpoint.policy)
    return checkpointed(state, *invals)  # type: ignore[no-any-return]


@rule_for(custom_jvp_call_p, hi_primitive_p)
def _custom_jvp(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    (jaxpr,) = Anatomy.of(eqn).programs
    if _has_to_be_apart(meaning, where):
        interpret(jaxpr, lax.stop_gradient(invals), state, meaning, where)
        outs, _, _ = _custom_jvp(eqn, invals, (), Hushed(), where)
        return outs, state, ()

    @jax.custom_jvp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(jaxpr, args, state, meaning, where)

    def rule(primals: Any, tangents: Any) -> Any:
        # The user's rule is kept as it is: it runs when the original equation is differentiated.
        push = functools.partial(derivatives.jvp, lambda *args: tracing.bind(eqn, args))
        if meaning.in_place:
            pushed = _walked(push, (primals[1:], tangents[1:]), primals[0], meaning, where)
            outs, out_tangents = pushed
            state, nodes = primals[0], ()
        else:
            # What it logs would be logged twice.
            outs, out_tangents = _walked(push, (primals[1:], tangents[1:]), (), Hushed(), where)
            _, state, nodes = call(*primals)
        return (outs, state, nodes), (out_tangents, *derivatives.zero_tangents((state, nodes)))

    call.defjvp(rule, symbolic_zeros=True)
    # Differentiation has nothing to do with the state: without this, it would take the results
    # for something that depends on the variable.
    return call(lax.stop_gradient(state), *invals)  # type: ignore[no-any-return]


@rule_for(custom_vjp_call_p)
def _custom_vjp(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    function = Call.of(eqn).function
    if _has_to_be_apart(meaning, where):
        interpret(function, lax.stop_gradient(invals), state, meaning, where)
        outs, _, _ = _custom_vjp(eqn, invals, (), Hushed(), where)
        return outs, state, ()

    @jax.custom_vjp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(function, args, state, meaning, where)

    def forward(*given: Any) -> Any:
        state, *args = jax.custom_derivatives.custom_vjp_primal_tree_values(given)
        perturbed = [arg.perturbed for arg in given[1:]]

        def pull(args: list[Any]) -> Any:
            return derivatives.vjp(lambda *args: tracing.bind(eqn, args), args, perturbed)

        if meaning.in_place:
            outs, pull_back = _walked(pull, (args,), state, meaning, where)
            return (outs, state, ()), (pull_back, state)
        outs, pull_back = _walked(pull, (args,), (), Hushed(), where)  # As above.
        _, state, nodes = call(state, *args)
        return (outs, state, nodes), (pull_back, state)

    def backward(residuals: Any, cotangents: Any) -> Any:
        pull_back, state = residuals
        if meaning.in_place:
            pulled = lambda pull_back, cotangents: pull_back(cotangents)  # noqa: E731
            return (None, *_walked(pulled, (pull_back, cotangents[0]), state, meaning, where))
        # Somebody further out may listen to the backward pass.
        with repeating(repeating.value | all_calls(survey(function))):
            return (None, *pull_back(cotangents[0]))

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call(lax.stop_gradient(state), *invals)  # type: ignore[no-any-return]


def _has_to_be_apart(meaning: Meaning, where: Where) -> bool:
    """Say whether a function with rules must not log itself, so that it has to run once more.

    JAX keeps the results of whatever has effects for the backward pass of a checkpointed function,
    which it cannot do in a while loop. XLA sees that both do the same.
    """
    return meaning.in_place and meaning.linearizes and where.unbounded


def _walked(
    f: Callable[..., Any], args: tuple[Any, ...], state: State, meaning: Meaning, where: Where
) -> Any:
    """Call a function of pytrees. What it logs is left there, as the meaning says."""
    given, rebuild_args = derivatives.without_zeros(args)
    rebuild: Callable[..., Any] = rebuild_args

    def flat(*given: Any) -> list[Any]:
        nonlocal rebuild
        outs, rebuild = derivatives.without_zeros(f(*rebuild_args(given)))
        return outs

    with meaning.hearing():
        closed = jax.make_jaxpr(flat)(*given)
    outs, _, _ = interpret(closed, given, state, meaning, where)
    return rebuild(outs)


@rule_for(Filtered)
def _filtered(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    @jax.custom_jvp
    def call(state: State, *args: Any) -> Outcome:
        return interpret(Call.of(eqn).function, args, state, meaning, where)

    def rule(primals: Any, tangents: Any) -> Any:
        args, given = list(primals[1:]), tangents[1:]
        moving = [i for i, t in enumerate(given) if not isinstance(t, SymbolicZero)]

        def bound(*values: Any) -> list[Any]:
            for i, value in zip(moving, values, strict=True):
                args[i] = value
            return tracing.bind(eqn, args)

        # As above. Its own rule uses its functions again.
        derivative = jax.make_jaxpr(lambda *both: jax.jvp(bound, *both))
        both = [primals[1 + i] for i in moving], [given[i] for i in moving]
        closed = derivative(*both)
        ignore_filtered(closed)
        flat = jax.core.eval_jaxpr(*open_jaxpr(closed), *jax.tree.leaves(both))
        _, state, nodes = call(*primals)
        outs, out_tangents = split(flat, len(flat) // 2)
        return (outs, state, nodes), (out_tangents, *derivatives.zero_tangents((state, nodes)))

    call.defjvp(rule, symbolic_zeros=True)
    return call(lax.stop_gradient(state), *invals)  # type: ignore[no-any-return]


@rule_for(custom_vmap_p)
def _custom_vmap(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    (program,) = Anatomy.of(eqn).programs

    def plain(state: State, *args: Any) -> Outcome:
        return interpret(program, args, state, meaning, where)

    call = jax.custom_batching.custom_vmap(plain)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, state: State, *args: Any) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        with listening(False):  # The user's rule is kept, and must not log a second time.
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
    solver = LinearSolve.of(eqn)
    jaxprs = solver.jaxprs
    *consts, b = split(invals, *solver.const_lengths)
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
