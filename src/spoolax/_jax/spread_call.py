"""A call to the host that every device of a program makes, with the pieces that it has of arrays.

How arrays are spread is not known before XLA divides the program among its devices. So XLA is given
a call that it does not know: when it gets there, it says how the arrays are spread, and is answered
with what each device is to run instead. Nothing is gathered, and devices exchange nothing.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax._src import config, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.sharding_impls import ShardingContext

Array: TypeAlias = np.ndarray[Any, Any]
Index: TypeAlias = tuple[slice, ...]

_NAME = "spoolax_spread_call"
_TARGETS = {
    "cpu": "xla_ffi_python_cpu_callback",
    "cuda": "xla_ffi_python_gpu_callback",
    "rocm": "xla_ffi_python_gpu_callback",
}


class Places(NamedTuple):
    """Where the pieces of arrays belong that devices have."""

    devices: int
    shapes: Sequence[tuple[int, ...]]
    indices: Sequence[Sequence[Index] | None]  # By array and device. None: each has the whole.

    def are_covered_by(self, devices: Collection[int]) -> bool:
        """Say whether these devices have all there is of the arrays."""
        return all(
            indices is None or {*map(str, indices)} == {str(indices[n]) for n in devices}
            for indices in self.indices
        )

    def whole(self, given: Mapping[int, Sequence[Array]]) -> list[Array]:
        """Put arrays together, given the pieces that devices have."""
        return [self._joined(number, given) for number in range(len(self.shapes))]

    def _joined(self, number: int, given: Mapping[int, Sequence[Array]]) -> Array:
        indices, first = self.indices[number], next(iter(given.values()))[number]
        if indices is None:
            return first
        whole = np.empty(self.shapes[number], first.dtype)
        for device, pieces in given.items():
            room = whole[indices[device]]  # The last pieces may be padded.
            room[...] = pieces[number][tuple(map(slice, room.shape))]
        return whole


def devices_that_call(ctx: Any) -> int:
    """How many devices make a call that is being lowered each by itself; 0 if they cannot."""
    around = ctx.module_context.axis_context
    divided = isinstance(around, ShardingContext) and around.num_devices > 1
    return around.num_devices if divided and can_call_apart(ctx.module_context.platforms) else 0


def can_call_apart(platforms: Sequence[str]) -> bool:
    """Say whether programs for these platforms can call the host from each device by itself."""
    # Devices of several processes would not get the same answer.
    return (
        len(platforms) == 1
        and platforms[0] in _TARGETS
        and jax.process_count() == 1
        and config.use_shardy_partitioner.value  # The older one asks for more than we know.
    )


def lower_spread_call(
    ctx: Any, call: Callable[..., Any], operands: Sequence[Any], common: int
) -> Any:
    """Lower `call(device, places, *operands)`, which returns a value like the first operand.

    Every device has the whole of the first `common` operands.
    """
    module = ctx.module_context
    spread = _Spread(call, common, devices_that_call(ctx), _TARGETS[module.platforms[0]])
    module.add_host_callback(spread)
    spread.number = len(module.host_callbacks) - 1
    module.add_keepalive(spread)
    key = f"{next(_numbers)}"
    _spread[key.encode()] = spread
    made = mlir.custom_call(
        _NAME,
        result_types=[operands[0].type],
        operands=operands,
        backend_config=key,
        has_side_effect=True,
    )
    return made.results


class _Spread:
    """One call, wherever in a program XLA finds it: it may make copies of it."""

    number = 0  # Among the callbacks of the program.

    def __init__(self, call: Callable[..., Any], common: int, devices: int, target: str) -> None:
        self._call, self._common, self._devices, self._target = call, common, devices, target
        self._places: list[Places] = []

    def __call__(self, device: Array, copy: Array, *arrays: Array) -> tuple[Array]:
        return (np.asarray(self._call(int(device), self._places[int(copy)], *arrays)),)

    def divided(self, shapes: Sequence[Any], shardings: Sequence[Any]) -> Any:
        """What each device is to run, and how what it is given is to be spread."""
        used = [
            sharding if n >= self._common and _is_known(sharding) else _EVERYWHERE
            for n, sharding in enumerate(shardings)
        ]
        sizes = [tuple(shape.dimensions()) for shape in shapes]
        indices = [
            None if sharding is _EVERYWHERE else _indices(sharding, size)
            for sharding, size in zip(used, sizes, strict=True)
        ]
        copy = len(self._places)
        self._places.append(Places(self._devices, sizes, indices))
        pieces = [sharding.tile(shape) for sharding, shape in zip(used, shapes, strict=True)]
        return self._program(pieces, copy), used, _EVERYWHERE

    def _program(self, pieces: Sequence[Any], copy: int) -> bytes:
        with mlir.make_ir_context(), ir.Location.unknown():
            types = [
                str(ir.RankedTensorType.get(x.dimensions(), mlir.dtype_to_ir_type(x.numpy_dtype())))
                for x in pieces
            ]
        ranks = [0, 0, *(len(x.dimensions()) for x in pieces)]
        layouts = ", ".join(_layout(rank) for rank in ranks)
        given = [f"%{n}" for n in range(len(types))]
        parameters = ", ".join(f"{x}: {kind}" for x, kind in zip(given, types, strict=True))
        operands = ", ".join(["%device", "%copy", *given])
        kinds = ", ".join(["tensor<ui32>", "tensor<ui32>", *types])
        return f"""
            func.func public @main({parameters}) -> {types[0]} {{
              %device = stablehlo.partition_id : tensor<ui32>
              %copy = stablehlo.constant dense<{copy}> : tensor<ui32>
              %answer = "stablehlo.custom_call"({operands}) {{
                api_version = 4 : i32,
                backend_config = {{index = {self.number} : ui64}},
                call_target_name = "{self._target}",
                has_side_effect = true,
                operand_layouts = [{layouts}],
                result_layouts = [{_layout(ranks[2])}]
              }} : ({kinds}) -> {types[0]}
              return %answer : {types[0]}
            }}""".encode()


def _layout(rank: int) -> str:
    if not rank:
        return "dense<> : tensor<0xindex>"
    return f"dense<[{', '.join(map(str, reversed(range(rank))))}]> : tensor<{rank}xindex>"


_numbers = itertools.count()
_spread: weakref.WeakValueDictionary[bytes, _Spread] = weakref.WeakValueDictionary()
_EVERYWHERE = xla_client.HloSharding.replicate()


def _is_known(sharding: Any) -> bool:
    """Say whether pieces are parts of a grid, of which several devices may have the same one."""
    replicated = xla_client.OpSharding.Type.REPLICATED
    return (
        sharding is not None
        and sharding.is_tiled()
        and all(kind == replicated for kind in sharding.subgroup_types())
    )


def _indices(sharding: Any, shape: Sequence[int]) -> list[Index]:
    """Which part of an array each device has."""
    grid = sharding.tile_assignment_dimensions()
    devices = np.reshape(sharding.tile_assignment_devices(), grid)
    found: list[Index] = [()] * devices.size
    for place, device in np.ndenumerate(devices):
        index = []
        for size, parts, part in zip(shape, grid, place, strict=False):  # The rest are copies.
            width = -(-size // parts)
            index.append(slice(min(part * width, size), min((part + 1) * width, size)))
        found[device] = tuple(index)
    return found


def _divide(
    shapes: Sequence[Any], shardings: Sequence[Any], result: Any, sharding: Any, key: bytes
) -> Any:
    del result, sharding  # It is like the first operand, which every device has.
    return _spread[key].divided(shapes, shardings)


def _everywhere(*_: Any) -> Any:
    return _EVERYWHERE


_register = functools.partial(
    xla_client.register_custom_call_partitioner,
    name=_NAME,
    prop_user_sharding=_everywhere,
    partition=_divide,
    infer_sharding_from_operands=_everywhere,
    can_side_effecting_have_replicated_sharding=True,
)
_register()
xla_bridge.register_plugin_callbacks(_register)
