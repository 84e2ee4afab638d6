"""Calls to the host while a program runs, with plain NumPy arrays that stay on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax._src import callback
from jax._src.interpreters import batching, mlir
from jax.experimental import io_callback

from .arrays import copied_over, gathered, is_tiny, mesh_of
from .platforms import caller, has_fast_calls, platforms
from .primitives import Primitive, lower_by_device
from .spread_call import can_call_apart, devices_that_call, lower_spread_call


def host_call(
    receive: Callable[..., Any],
    question: Any,
    *arrays: Any,
    each: Callable[..., Any] | None = None,
    common: int = 0,
) -> Any:
    """Call `receive(is_alone, question, *arrays)` on the host while the program runs.

    What it raises ends the program. Unless `is_alone`, the other devices of the program would be
    left waiting then. The arrays are NumPy's, and the callee's to keep. Returns its answer, which
    is of the type of `question`: what uses it waits for the call. Calls are not ordered otherwise,
    and one whose answer reaches no output may never be made.

    One device calls for all, and has to be sent what is spread over them. If it is possible, all of
    them call `each(device, places, question, *arrays)` instead, with their pieces of arrays, and
    the whole of the first `common` ones. Its answers must be the same for all.
    """
    if each is None or not can_call_apart(platforms()):
        # Those whose types say where they are; others when this is lowered.
        arrays = tuple(gathered(x, mesh_of(x)) for x in arrays)
    dtypes = [x.dtype for x in arrays]
    wide = [_widened(x) for x in arrays]
    if [x.dtype for x in wide] != dtypes:
        receive = _narrowing(receive, dtypes)
        each = each and _narrowing(each, dtypes)
    return host_call_p.bind(question, *wide, receive=receive, each=each, common=common)


def _widened(x: Any) -> Any:
    """An array with at least a byte for each number: JAX 0.10.0 loses the last half of a byte."""
    if not is_tiny(x.dtype):
        return x
    return x.astype(np.int8 if jax.numpy.issubdtype(x.dtype, np.integer) else np.float16)


def _narrowing(call: Callable[..., Any], dtypes: Sequence[Any]) -> Callable[..., Any]:
    """A function that gives a call arrays of these types, which come last."""

    def narrowed(*args: Any) -> Any:
        given = zip(args[-len(dtypes) :], dtypes, strict=True)
        return call(*args[: -len(dtypes)], *(x.astype(dtype, copy=False) for x, dtype in given))

    return narrowed


def in_host_call(frame: FrameType | None, outermost: FrameType | None) -> bool:
    """Say whether a program that `outermost` has started called a Python function here."""
    while frame is not None and frame is not outermost:
        code = frame.f_code
        if code.co_name == "_wrapped_callback" and code.co_filename == callback.__file__:
            return True
        frame = frame.f_back
    return False


def _call_from_host(question: Any, *arrays: Any, receive: Callable[..., Any], **_: Any) -> Any:
    return jax.numpy.asarray(receive(True, *map(np.asarray, (question, *arrays))))


def _lower_host_call(
    ctx: Any,
    *operands: Any,
    receive: Callable[..., Any],
    each: Callable[..., Any] | None,
    common: int,
) -> Any:
    if each is not None and devices_that_call(ctx):
        return lower_spread_call(ctx, each, operands, 1 + common)
    is_alone = getattr(ctx.module_context.axis_context, "num_devices", None) == 1

    def call(*arrays: Any) -> tuple[Any]:
        return (np.asarray(receive(is_alone, *arrays)),)

    return _emit(ctx, call, _brought_together(ctx, operands))


def _brought_together(ctx: Any, operands: Sequence[Any]) -> list[Any]:
    """Have what is spread over devices copied to all of them, for one to call the host with it.

    XLA would do the same, and print a warning.
    """
    devices = _devices(ctx)
    if len(devices) < 2:
        return list(operands)
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    made = []
    for x, aval in zip(operands, ctx.avals_in, strict=True):
        if mesh_of(aval) is None:
            where = ctx.replace(avals_in=[aval], avals_out=[aval])
            (x,) = mlir.lower_fun(lambda x: [copied_over(x, mesh)])(where, x)
        made.append(x)
    return made


def _emit(ctx: Any, call: Callable[..., Any], operands: Sequence[Any]) -> Any:
    if not has_fast_calls(ctx.module_context.platforms):
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out]

        def slowly(*arrays: Any) -> Any:
            return io_callback(lambda *given: call(*map(np.asarray, given)), tuple(types), *arrays)

        return mlir.lower_fun(slowly, multiple_results=True)(ctx, *operands)
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
            ctx.module_context.axis_context, _place(ctx), ctx.avals_out
        ),
    )
    return results


def _place(ctx: Any) -> jax.sharding.Sharding | None:
    """Where a call is made: by the first device that a program runs on, if that is None."""
    devices = _devices(ctx)
    return jax.sharding.SingleDeviceSharding(devices[caller(devices)]) if devices else None


def _devices(ctx: Any) -> Sequence[Any]:
    """The devices that a program will run on, if it does not say what each of them does."""
    return getattr(ctx.module_context.axis_context, "device_assignment", None) or ()


host_call_p = Primitive("host_call")
host_call_p.def_impl(_call_from_host)
host_call_p.def_abstract_eval(lambda question, *arrays, **about: question)
mlir.register_lowering(host_call_p, _lower_host_call, cacheable=False)
lower_by_device(host_call_p)


def tell_hosts(receive: Callable[[Any], None], number: Any, devices: int) -> None:
    """Call `receive(number)` on the host of every device that the program runs on."""
    if devices == 1:
        tell_host_p.bind(number, receive=receive)
        return
    mesh = jax.typeof(number).sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.AbstractMesh((devices,), ("device",))
    everywhere = jax.sharding.PartitionSpec()
    jax.shard_map(
        lambda number: tell_host_p.bind(number, receive=receive),
        mesh=mesh,
        in_specs=everywhere,
        out_specs=everywhere,
        check_vma=False,
    )(number)


def _lower_tell_host(ctx: Any, number: Any, *, receive: Callable[[Any], None]) -> Any:
    def call(number: Any) -> tuple[()]:
        receive(number)
        return ()

    return _emit(ctx, call, [number])


tell_host_p = Primitive("tell_host")
tell_host_p.multiple_results = True
tell_host_p.def_abstract_eval(lambda number, **params: [])
mlir.register_lowering(tell_host_p, _lower_tell_host, cacheable=False)


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


def _lower_numbers(ctx: Any, words: Any, *, receive: Callable[[Any], Any]) -> Any:
    return _emit(ctx, lambda words: (np.asarray(receive(words)),), [words])


numbers_p = Primitive("numbers_from_host")
numbers_p.def_impl(lambda words, receive: jax.numpy.asarray(receive(np.asarray(words))))
numbers_p.def_abstract_eval(_numbers_type)
mlir.register_lowering(numbers_p, _lower_numbers, cacheable=False)
batching.primitive_batchers[numbers_p] = _batch_numbers
