"""The only file that knows JAX's private or version-dependent parts.

Supported: JAX 0.10.0 to 0.12. When JAX moves something, the change belongs here and nowhere else.
The rest of spoolax sees the functions below and JAX's public API.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core.primitives as primitives
import numpy as np
from jax._src import ad_checkpoint, callback, config, core, hijax, source_info_util
from jax._src.custom_batching import custom_vmap_p as custom_vmap_p
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.shard_map import shard_map_p as shard_map_p
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive

# What the user did is never on one of our own lines.
source_info_util.register_exclusion(str(pathlib.Path(__file__).parent.parent))

Jaxpr = Any
JaxprEqn = Any

scan_p = loops.scan_p
while_p = loops.while_p
cond_p = conditionals.cond_p
linear_solve_p = solves.linear_solve_p
remat_p = ad_checkpoint.remat_p
custom_jvp_call_p = primitives.custom_jvp_call_p
custom_vjp_call_p = primitives.custom_vjp_call_p
jit_p = primitives.jit_p
hi_primitive_p = hijax.call_hi_primitive_p
# A plain call of a jaxpr; its name changed between the supported versions.
call_primitives: tuple[Primitive, ...] = tuple(
    getattr(core, name)
    for name in ("closed_call_p", "call_p", "eval_jaxpr_p")
    if hasattr(core, name)
)

trace_is_clean: Callable[[], bool] = core.trace_ctx.is_top_level
flatten: Callable[[Any], tuple[list[Any], Any]] = jax.tree_util.default_registry.flatten


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """Return the jaxpr proper and its constants, whichever kind of jaxpr is given."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def host_call(receive: Callable[..., Any], question: Any, *arrays: Any) -> Any:
    """Call `receive(question, *arrays)` on the host while the program runs, with NumPy arrays.

    The arrays are the callee's to keep. Returns its answer, which is of the type of `question`:
    what uses it waits for the call. Calls are not ordered otherwise, and one whose answer reaches
    no output may never be made.
    """
    return host_call_p.bind(question, *arrays, receive=receive)


def _call_from_host(question: Any, *arrays: Any, receive: Callable[..., Any]) -> Any:
    return jax.numpy.asarray(receive(*map(np.asarray, (question, *arrays))))


def _lower_host_call(ctx: Any, *operands: Any, receive: Callable[..., Any]) -> Any:
    def call(*arrays: Any) -> tuple[Any]:
        return (np.asarray(receive(*arrays)),)

    results, _, _ = callback.emit_python_callback(
        ctx,
        call,
        None,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=callback._callback_op_sharding(
            ctx.module_context.axis_context, None, ctx.avals_out
        ),
    )
    return results


host_call_p = Primitive("host_call")
host_call_p.def_impl(_call_from_host)
host_call_p.def_abstract_eval(lambda question, *arrays, receive: question)
mlir.register_lowering(host_call_p, _lower_host_call, cacheable=False)


def on_device(numbers: Any) -> Any:
    """Make an argument of numbers of our own, which JAX may be told not to transfer by itself."""
    guarded = config.transfer_guard_host_to_device.value not in (None, "allow")
    return jax.device_put(numbers) if guarded else numbers


def static_arguments(f: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions and names of the arguments that are static to a jitted function."""
    info = getattr(f, "_jit_info", None)
    if info is None:
        return (), ()
    return tuple(info.static_argnums), tuple(info.static_argnames)


def expanded(eqn: JaxprEqn) -> Jaxpr:
    """Return what a high-level primitive of JAX computes (`custom_root` is one since 0.12)."""
    primitive = eqn.params["_prim"]
    if primitive not in _expanded:

        def flat(*args: Any) -> list[Any]:
            out = primitive.expand(*jax.tree.unflatten(primitive.in_tree, args))
            return jax.tree.leaves(out)  # type: ignore[no-any-return]

        _expanded[primitive] = trace(flat, [atom.aval for atom in eqn.invars])
    return _expanded[primitive]


_expanded: weakref.WeakKeyDictionary[Any, Jaxpr] = weakref.WeakKeyDictionary()


def subjaxprs(eqn: JaxprEqn) -> Iterator[Any]:
    """Yield every jaxpr among the parameters of `eqn`."""
    if eqn.primitive is not hi_primitive_p:
        yield from jaxprs_in(eqn.params)
    elif eqn.effects:
        yield expanded(eqn)


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """Yield every jaxpr among the parameters of a primitive."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns"):
                yield item


def calls_host(eqn: JaxprEqn) -> bool:
    """Say whether an equation calls Python functions when it runs."""
    if str(eqn.primitive) in ("pure_callback", "io_callback", "debug_callback", "debug_print"):
        return True
    return any(calls_host(inner) for sub in subjaxprs(eqn) for inner in open_jaxpr(sub)[0].eqns)


def scan_parts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many of a scan's inputs are constants, and how many are carried."""
    if "ft_in" in params:  # Since 0.11.
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    return params["num_consts"], params["num_carry"]


def bind(eqn: JaxprEqn, invals: Sequence[Any]) -> list[Any]:
    """Run one equation as it is, with its source line and name scope kept."""
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    with at_source(eqn), eqn.ctx.manager:
        out = eqn.primitive.bind(*invals, **bind_params)
    return list(out) if eqn.primitive.multiple_results else [out]


def at_source(eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
    """Attribute what is traced in this context to the source line of `eqn`."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return source_info_util.user_context(  # type: ignore[no-any-return]
        eqn.source_info.traceback, name_stack=name_stack
    )


def source_line(eqn: JaxprEqn) -> str:
    """Say where in the user's code an equation was made."""
    return str(source_info_util.summarize(eqn.source_info))


def is_transposed(eqn: JaxprEqn) -> bool:
    """Say whether an equation was made by transposing a function, as in the backward pass."""
    return "transpose" in str(eqn.source_info.name_stack)


def trace(function: Callable[..., Any], avals: Sequence[Any]) -> Jaxpr:
    """Trace a function of arrays of the given types."""
    return jax.make_jaxpr(function)(*avals)


def aval_at(value: Any, dim: int | None) -> Any:
    """Return the type of a value inside of the batch whose axis is `dim`."""
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


class equation(NamedTuple):
    """As much of an equation as a rule looks at."""

    primitive: Primitive
    params: dict[str, Any]


def register(
    primitive: Primitive,
    *,
    batch: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
) -> None:
    """Register the rules of a primitive without results that compiles to nothing."""
    # The table of "fancy" rules is consulted even when no operand is mapped.
    batching.fancy_primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    mlir.register_lowering(primitive, lambda ctx, *operands, **params: [])


def register_identity(
    primitive: Primitive,
    evaluate: Callable[..., Any],
    *,
    batch: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
) -> None:
    """Register the rules of a primitive that returns some of its operands as they are."""
    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(evaluate)
    batching.fancy_primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    mlir.register_lowering(primitive, mlir.lower_fun(evaluate, multiple_results=True))


def instantiate(cotangent: Any) -> Any:
    """Return a cotangent as an array, also if it is symbolically zero."""
    return ad.instantiate_zeros(cotangent)


def wrap_batching(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(rule)` in the place of the batching rule of `primitive`."""
    table = batching.fancy_primitive_batchers
    table[primitive] = wrap(table[primitive])


def wrap_jvp(primitive: Primitive, wrap: Callable[[Any], Any], logs: Callable[[Any], bool]) -> None:
    """Put `wrap(rule)` in the place of the JVP rule of `primitive`.

    A primitive with a direct linearization rule falls back on its JVP when its parameters log.
    """
    ad.primitive_jvps[primitive] = wrap(ad.primitive_jvps[primitive])
    direct = ad.primitive_linearizations.get(primitive)
    if direct is None:
        return

    def linearize(*args: Any, **params: Any) -> Any:
        if logs(params):
            return ad.fallback_linearize_rule(primitive, *args, **params)
        return direct(*args, **params)

    ad.primitive_linearizations[primitive] = linearize


def wrap_partial_eval(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(rule)` in the place of the partial-evaluation rule of `primitive`."""
    table = pe.custom_partial_eval_rules
    table[primitive] = wrap(table[primitive])


def wrap_lowering(
    primitive: Primitive, wants: Callable[[Any], bool], evaluate: Callable[..., Any]
) -> None:
    """Compile equations whose jaxprs are wanted as `evaluate(jaxpr, args)` says.

    The jaxpr that it gets has just the one equation.
    """
    entry = mlir._lowerings[primitive]

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if not any(map(wants, jaxprs_in(params))):
            return entry.rule(ctx, *operands, **params)
        return lower_evaluated(ctx, operands, primitive, params, evaluate)

    mlir._lowerings[primitive] = dataclasses.replace(entry, rule=lower)


def set_lowering(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Say how a primitive is compiled."""
    mlir.register_lowering(primitive, rule)


def lower_evaluated(
    ctx: Any,
    operands: Sequence[Any],
    primitive: Primitive,
    params: dict[str, Any],
    evaluate: Callable[..., Any],
) -> Any:
    """Compile an equation as `evaluate(jaxpr, args)`, where the jaxpr has just that equation."""

    def bound(*args: Any) -> list[Any]:
        outs = primitive.bind(*args, **primitive.get_bind_params(params))
        return list(outs)

    def evaluated(*args: Any) -> list[Any]:
        outs: list[Any] = evaluate(trace(bound, ctx.avals_in), args)
        return outs

    return mlir.lower_fun(evaluated, multiple_results=True)(ctx, *operands)


def known_parts(params: dict[str, Any], unknown: Sequence[bool]) -> list[Jaxpr]:
    """Return what partial evaluation would run of the test and the body of a while loop.

    That is nothing if all is known already, or if the test is not.
    """
    if not any(unknown):
        return []
    test_consts, body_consts, carry = split(unknown, params["cond_nconsts"], params["body_nconsts"])
    while True:
        body, _, out, _ = pe.partial_eval_jaxpr_nounits(
            params["body_jaxpr"], [*body_consts, *carry], carry
        )
        if list(out) == carry:
            break
        carry = [a or b for a, b in zip(carry, out, strict=True)]
    test, _, (test_unknown,), _ = pe.partial_eval_jaxpr_nounits(
        params["cond_jaxpr"], [*test_consts, *carry], False
    )
    return [] if test_unknown else [test, body]


def known_or_zero(tracers: Sequence[Any]) -> list[Any]:
    """Return the values that partial evaluation knows, with zeros for the others."""
    return [t.pval.get_known() if t.is_known() else zeros(t.aval) for t in tracers]


def with_parent_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Trace on the level below `trace`."""
    return core.set_current_trace(trace.parent_trace)  # type: ignore[no-any-return]


def with_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Trace on the level of `trace`."""
    return core.set_current_trace(trace)  # type: ignore[no-any-return]


def is_zero(tangent: Any) -> bool:
    """Say whether a tangent is symbolically zero."""
    return type(tangent) is ad.Zero


def symbolic_zero(primal: Any) -> Any:
    """Return the symbolic zero tangent of a value."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def is_key(value: Any) -> bool:
    """Say whether an array (or a type of one) is of random keys."""
    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))


def as_key(data: Any, dtype: Any) -> Any:
    """Make random keys of the given type of the numbers behind them."""
    return jax.random.wrap_key_data(data, impl=key_impl(dtype))


def raw(value: Any) -> Any:
    """Return an array; of random keys, the numbers behind them."""
    return jax.random.key_data(value) if is_key(value) else value


def raw_type(aval: Any) -> Any:
    """Return the type of what `raw` would make of an array of the given type."""
    if is_key(aval):
        return jax.ShapeDtypeStruct((*aval.shape, *key_shape(aval.dtype)), np.uint32)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def key_shape(dtype: Any) -> tuple[int, ...]:
    """Return the shape of the numbers behind one random key of the given type."""
    return tuple(dtype._impl.key_shape)


def zeros(aval: Any) -> Any:
    """Return zeros of any type that JAX knows, random keys included."""
    if is_key(aval):
        shape = (*aval.shape, *key_shape(aval.dtype))
        return as_key(jax.numpy.zeros(shape, jax.numpy.uint32), aval.dtype)
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, jax.dtypes.float0)
    sharding = aval.sharding if is_sharded(aval) else None
    return jax.lax.full(aval.shape, 0, aval.dtype, sharding=sharding)


def retyped(value: Any, aval: Any) -> Any:
    """Return an array whose type is as weak as `aval` is, which decides about promotion."""
    if is_key(value) or value.weak_type == aval.weak_type:
        return value
    return lax_internal._convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


def is_sharded(value: Any) -> bool:
    """Say whether the type of an array says that it is spread over the devices of a mesh."""
    aval = value if isinstance(value, core.AbstractValue) else jax.typeof(value)
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and any(part is not None for part in sharding.spec)


def mesh_of(value: Any) -> Any:
    """Return the mesh over which the type of an array says that it is spread, or None."""
    aval = value if isinstance(value, core.AbstractValue) else jax.typeof(value)
    return aval.sharding.mesh if is_sharded(aval) else None


def gathered(value: Any, mesh: Any) -> Any:
    """Return an array whose type says that it is the same on all devices of a mesh."""
    if mesh is None:
        return value
    nowhere = jax.sharding.PartitionSpec(*(None,) * value.ndim)
    return jax.sharding.reshard(value, jax.sharding.NamedSharding(mesh, nowhere))


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` is over."""
    name = "manual_axes" if "manual_axes" in params else "newly_manual_axes"  # Since 0.10.1.
    return frozenset(params[name])


def vary(value: Any, axes: frozenset[str]) -> Any:
    """Say that a value inside `shard_map` may differ over mesh axes."""
    missing = tuple(axes - varying_axes(value))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def varying_axes(value: Any) -> frozenset[str]:
    """Return the mesh axes over which a value (or type) inside `shard_map` differs."""
    aval = value if isinstance(value, core.AbstractValue) else jax.typeof(value)
    manual = getattr(aval, "mat", None)
    return frozenset(manual.varying if manual is not None else aval.vma)


def split(values: Sequence[Any], *lengths: int) -> list[list[Any]]:
    """Cut a list into parts of the given lengths, and what is left."""
    parts, start = [], 0
    for length in lengths:
        parts.append(list(values[start : start + length]))
        start += length
    return [*parts, list(values[start:])]


def numbers_from_host(words: Any, receive: Callable[[Any], Any]) -> Any:
    """Return `receive(words)`: a number made on the host for each row of words, when this runs.

    Under `vmap` all rows come in one call. It is called once for each time that this is executed.
    """
    return numbers_p.bind(words, receive=receive)


def _numbers_type(words: Any, *, receive: Callable[[Any], Any]) -> Any:
    del receive
    lanes = words.sharding.spec[:-1]  # On a mesh, numbers are where their words are.
    sharding = words.sharding.update(spec=jax.sharding.PartitionSpec(*lanes))
    return words.update(shape=words.shape[:-1], dtype=np.dtype(np.int32), sharding=sharding)


def _batch_numbers(args: Any, axes: Any, *, receive: Callable[[Any], Any]) -> Any:
    (words,), (axis,) = args, axes
    return numbers_p.bind(jax.numpy.moveaxis(words, axis, 0), receive=receive), 0


numbers_p = Primitive("numbers_from_host")
numbers_p.def_impl(lambda words, receive: jax.numpy.asarray(receive(np.asarray(words))))
numbers_p.def_abstract_eval(_numbers_type)
mlir.register_lowering(numbers_p, _lower_host_call, cacheable=False)
batching.primitive_batchers[numbers_p] = _batch_numbers


def key_impl(dtype: Any) -> str:
    """The name of the implementation of keys of a type."""
    return str(dtype._impl.name)


def dump_program(compiled: Any) -> bytes:
    """A compiled program as bytes."""
    from jax.experimental import serialize_executable

    content: bytes = serialize_executable.serialize(compiled)[0]
    return content


def load_program(content: bytes, lowered: Any, device: Any) -> Any:
    """Load a compiled program: that of a function which has been lowered."""
    from jax.experimental import serialize_executable

    given = jax.tree.structure(lowered.args_info)
    return serialize_executable.deserialize_and_load(
        content, given, lowered.out_tree, backend=device.client, execution_devices=[device]
    )
