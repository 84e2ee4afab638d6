"""The tables of rules for JAX's transformations: adding to them, and wrapping what is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe

from .anatomy import While
from .arrays import zeros
from .primitives import Jaxpr, Primitive, equation, remat_p, split, while_p
from .tracing import trace


def aval_at(value: Any, dim: int | None) -> Any:
    """Return the type of a value inside the batch whose axis is `dim`."""
    aval = jax.typeof(value)
    return aval if dim is None else core.mapped_aval(aval.shape[dim], dim, aval)


def batch(
    function: Callable[..., Any], axis_data: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], list[int | None]]:
    """Batch a function of arrays, as a batching rule does."""
    closed = trace(function, [aval_at(x, d) for x, d in zip(args, dims, strict=True)])
    batched, mapped = batching.batch_jaxpr(closed, axis_data, [d is not None for d in dims], False)
    front = [
        x if d is None else jax.numpy.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)
    ]
    outs = core.jaxpr_as_fun(batched)(*front)
    return list(outs), [0 if is_mapped else None for is_mapped in mapped]


def register(
    primitive: Primitive,
    *,
    batch: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    lower: Callable[..., Any],
) -> None:
    """Register what the transformations of JAX do to a primitive, and how it is compiled."""
    # The table of "fancy" rules is consulted even when no operand is mapped.
    batching.fancy_primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    mlir.register_lowering(primitive, lower)


def register_jet(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register what `jax.experimental.jet` does to a primitive, if anybody has imported it."""
    jet: Any = sys.modules.get("jax.experimental.jet")
    if jet is not None:
        jet.jet_rules.setdefault(primitive, rule)


def lowered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a primitive with several results as a function of its operands."""
    return mlir.lower_fun(function, multiple_results=True)  # type: ignore[no-any-return]


def instantiate(cotangent: Any) -> Any:
    """Return a cotangent as an array, also if it is symbolically zero."""
    return ad.instantiate_zeros(cotangent)


def wrap_batching(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(rule)` in the place of the batching rule of `primitive`."""
    table = batching.fancy_primitive_batchers
    table[primitive] = wrap(table[primitive])


def wrap_jvp(primitive: Primitive, wrap: Callable[[Any], Any], wants: Callable[[Any], Any]) -> None:
    """Put `wrap(rule)` in the place of the JVP rule of `primitive`.

    A primitive with a direct linearization rule falls back on its JVP for equations that are
    wanted.
    """
    ad.primitive_jvps[primitive] = wrap(ad.primitive_jvps[primitive])
    direct = ad.primitive_linearizations.get(primitive)
    if direct is None:
        return

    def linearize(*args: Any, **params: Any) -> Any:
        if wants(equation(primitive, params)):
            return ad.fallback_linearize_rule(primitive, *args, **params)
        return direct(*args, **params)

    ad.primitive_linearizations[primitive] = linearize


def wrap_partial_eval(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(rule)` in the place of the partial-evaluation rule of `primitive`."""
    table = pe.custom_partial_eval_rules
    table[primitive] = wrap(table[primitive])


def wrap_repetition(wants: Callable[[Any], Any], change: Callable[[Jaxpr, Jaxpr], Jaxpr]) -> None:
    """Change what checkpointed functions that are wanted run again, when they are linearized.

    `change(known, again)` returns a program like the second. The first is what runs at once.
    """
    table, in_jaxprs = pe.custom_partial_eval_rules, pe.partial_eval_jaxpr_custom_rules
    split_traced, split_equation = table[remat_p], in_jaxprs[remat_p]

    def changed(known: Jaxpr, params: dict[str, Any]) -> dict[str, Any]:
        closed = change(known, params["jaxpr"])
        assert not closed.consts, "there were none before"
        return {"params": {**params, "jaxpr": closed.jaxpr}, "effects": closed.effects}

    def partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        outs = split_traced(trace, *tracers, **params)
        recipes = [t.recipe for t in outs if isinstance(t, pe.JaxprTracer) and not t.is_known()]
        if recipes and wants(equation(remat_p, params)):
            unknown = [not t.is_known() for t in tracers]
            policy = params["policy"] or jax.checkpoint_policies.nothing_saveable
            known, *_ = pe.partial_eval_jaxpr_custom(
                params["jaxpr"], unknown, [True] * len(unknown), False, False, policy
            )
            recipe = recipes[0]._replace(**changed(known, recipes[0].params))
            for t in outs:
                if isinstance(t, pe.JaxprTracer) and t.recipe is recipes[0]:
                    t.recipe = recipe
        return outs

    def partial_eval_equation(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, again, *rest = split_equation(saveable, unknown, instantiated, eqn)
        if wants(eqn):
            again = again.replace(**changed(known.params["jaxpr"], again.params))
        return known, again, *rest

    table[remat_p], in_jaxprs[remat_p] = partial_eval, partial_eval_equation


def known_parts(params: dict[str, Any], unknown: Sequence[bool]) -> list[Jaxpr]:
    """Return what partial evaluation would run of the test and the body of a while loop.

    That is nothing if all is known already, or if the test is not.
    """
    if not any(unknown):
        return []
    loop = While.of(equation(while_p, params))
    test_consts, body_consts, carry = split(unknown, loop.test_consts, loop.body_consts)
    while True:
        body, _, out, _ = pe.partial_eval_jaxpr_nounits(loop.body, [*body_consts, *carry], carry)
        if list(out) == carry:
            break
        carry = [a or b for a, b in zip(carry, out, strict=True)]
    test, _, (test_unknown,), _ = pe.partial_eval_jaxpr_nounits(
        loop.test, [*test_consts, *carry], False
    )
    return [] if test_unknown else [test, body]


def known_or_zero(tracers: Sequence[Any]) -> list[Any]:
    """Return the values that partial evaluation knows, with zeros for the others."""
    return [t.pval.get_known() if t.is_known() else zeros(t.aval) for t in tracers]


def is_zero(tangent: Any) -> bool:
    """Say whether a tangent is symbolically zero."""
    return type(tangent) is ad.Zero


def symbolic_zero(primal: Any) -> Any:
    """Return the symbolic zero tangent of a value."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())
