"""Types of arrays: random keys, shardings, how values vary over a mesh, and where arrays are."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config, core
from jax._src.array import ArrayImpl
from jax._src.lax import lax as lax_internal
from jax._src.mesh import get_concrete_mesh
from jax.sharding import AxisType


def on_devices(numbers: Any, others: Iterable[Any]) -> Any:
    """Put our own numbers where other arrays are, if JAX must not transfer them implicitly."""
    if config.transfer_guard_host_to_device.value in (None, "allow"):
        return numbers
    arrays = (x for x in others if isinstance(x, jax.Array) and len(x.devices()) > 1)
    place = next((mesh_around(x.sharding) for x in arrays), None)
    everywhere = place and jax.sharding.NamedSharding(place, jax.sharding.PartitionSpec())
    return jax.device_put(numbers, everywhere)


def is_tiny(dtype: Any) -> bool:
    """Say whether numbers of a type have less than eight bits."""
    kind = jax.numpy.iinfo if jax.numpy.issubdtype(dtype, np.integer) else jax.numpy.finfo
    return bool(dtype != np.bool_ and np.dtype(dtype).itemsize == 1 and kind(dtype).bits < 8)


def is_key(value: Any) -> bool:
    """Say whether an array (or its type) holds random keys."""
    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))


def as_key(data: Any, dtype: Any) -> Any:
    """Make random keys of the given type from the numbers behind them."""
    return jax.random.wrap_key_data(data, impl=key_impl(dtype))


def raw(value: Any) -> Any:
    """Return an array, or the numbers behind an array of random keys."""
    return jax.random.key_data(value) if is_key(value) else value


def raw_type(aval: Any) -> Any:
    """Return the type that `raw` would give an array of the given type."""
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
        value = as_key(jax.numpy.zeros(shape, jax.numpy.uint32), aval.dtype)
    elif aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, jax.dtypes.float0)
    else:
        value = jax.numpy.zeros(aval.shape, aval.dtype)
    # Given a sharding, `zeros` ignores it where no mesh is set.
    return jax.sharding.reshard(value, aval.sharding) if mesh_of(aval) is not None else value


def retyped(value: Any, aval: Any) -> Any:
    """Make an array weakly typed exactly if `aval` is: that decides how it is promoted."""
    if is_key(value) or value.weak_type == aval.weak_type:
        return value
    return lax_internal._convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


def stand_in(aval: Any) -> Any:
    """Return something of the given type."""
    return vary(zeros(aval), varying_axes(aval))


def has_stand_in(var: Any) -> bool:
    """Say whether there can be a stand-in for a variable of a program: unless it is a reference."""
    return isinstance(var.aval, core.ShapedArray)


def plain(values: Sequence[Any]) -> list[Any]:
    """Those arrays that everything can be done to: neither references, nor keys."""
    return [x for x in values if not (isinstance(x, jax.Ref) or is_key(jax.typeof(x)))]


def after(number: Any, values: Sequence[Any]) -> list[Any]:
    """Return the same arrays; what uses all of them waits for a number, which is not the least."""
    smallest = min(plain(values), key=np.size, default=None)
    if smallest is None:
        return list(values)
    # Not an `optimization_barrier`: that is gone when the order of execution is chosen.
    x, never = jax.numpy.asarray(smallest), number == np.iinfo(np.int32).min
    # Something else than `x`, or the compiler would know that both are the same.
    other = ~x if x.dtype == bool else x + jax.numpy.ones_like(x)
    later = retyped(jax.numpy.where(never, other, x), jax.typeof(x))
    return [later if value is smallest else value for value in values]


def _type_of(value: Any) -> Any:
    """The type of an array, or the type that was given."""
    return value if isinstance(value, core.AbstractValue) else jax.typeof(value)


def is_sharded(value: Any) -> bool:
    """Say whether an array is sharded over a mesh, by its type."""
    aval = _type_of(value)
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and any(part is not None for part in sharding.spec)


def is_spread(value: Any) -> bool:
    """Say whether an array that has been computed is on several devices."""
    value = base(value)
    return isinstance(value, ArrayImpl) and len(value.sharding.device_set) > 1


def without_first_axis(sharding: Any) -> Any:
    """The same sharding, for arrays with any number of rows: these are not divided."""
    spec = sharding.spec[1:] if isinstance(sharding, jax.sharding.NamedSharding) else ()
    return jax.sharding.NamedSharding(
        mesh_around(sharding), jax.sharding.PartitionSpec(None, *spec)
    )


def mesh_around(sharding: Any) -> jax.sharding.Mesh:
    """A mesh of the devices of a sharding, in their order."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return sharding.mesh
    return jax.sharding.Mesh(np.array(sharding._device_assignment), ("device",))


def concrete_mesh(mesh: Any) -> jax.sharding.Mesh | None:
    """The mesh of devices that an abstract one stands for, if it has been set."""
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    around = get_concrete_mesh()
    return around if around.abstract_mesh == mesh else None


def mesh_of(value: Any) -> Any:
    """Return the mesh that an array is on, by its type, or None.

    Of two types that are not sharded, one may be on a mesh with explicit axes, and the other not.
    """
    sharding = getattr(_type_of(value), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding.mesh


def spec_of(value: Any) -> tuple[Any, ...]:
    """Return how the axes of an array are sharded over its mesh, by its type."""
    return tuple(_type_of(value).sharding.spec)


def raw_spec(value: Any) -> tuple[Any, ...]:
    """Return how the axes of `raw(value)` are sharded over a mesh, if they are."""
    spec = spec_of(value) if is_sharded(value) else (None,) * np.ndim(value)
    return (*spec, *(None,) * len(key_shape(value.dtype))) if is_key(value) else spec


def gathered(value: Any, mesh: Any) -> Any:
    """Return an array that is replicated over a mesh, by its type."""
    return value if mesh is None else spread_over(value, mesh, (None,) * value.ndim)


def copied_over(value: Any, mesh: Any) -> Any:
    """Return an array of which every device of a mesh has a copy. Its type says nothing of it."""
    return jax.lax.with_sharding_constraint(
        value, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )


def spread_over(value: Any, mesh: Any, spec: Iterable[Any]) -> Any:
    """Return an array that is sharded over a mesh, by its type."""
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.sharding.reshard(value, place)


def rows_at(x: Any, places: Any) -> Any:
    """Return some rows of an array, which stay sharded as they are."""
    if not is_sharded(x):
        return x[places]
    return x.at[places].get(out_sharding=jax.typeof(x).sharding)


def vary(value: Any, axes: frozenset[str]) -> Any:
    """Say that a value inside `shard_map` may differ over mesh axes."""
    missing = tuple(axes - varying_axes(value))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def varying_axes(value: Any) -> frozenset[str]:
    """Return the mesh axes over which a value (or type) inside `shard_map` differs."""
    aval = _type_of(value)
    manual = getattr(aval, "mat", None)
    return frozenset(manual.varying if manual is not None else aval.vma)


def key_impl(dtype: Any) -> str:
    """Return the name of the PRNG implementation of a key type."""
    return str(dtype._impl.name)


def type_text(value: Any) -> str:
    """Write the type of an array (or a type) as text, such as `float32[3,4]`."""
    if not hasattr(value, "dtype"):  # A token, say.
        return str(value)
    name = "float0" if value.dtype == jax.dtypes.float0 else value.dtype
    return f"{name}[{','.join(map(str, np.shape(value)))}]"


def base(x: Any) -> Any:
    """Return an array, or the numbers that random keys consist of, without computing anything."""
    return getattr(x, "_base_array", x)


def is_ready(x: Any) -> bool:
    """Say whether an array has been computed."""
    try:
        return bool(base(x).is_ready())
    except RuntimeError:  # It failed, or was deleted: whoever uses it is told so.
        return True


# Looking these up for each array would take as long as calling them.
_ready, _type = ArrayImpl.is_ready, operator.attrgetter("aval")


def are_concrete(values: Iterable[Any]) -> bool:
    """Say whether these are arrays of JAX, none of which is traced."""
    # `isinstance` for each of them takes longer, as it goes through a metaclass.
    others = set(map(type, values)) - {ArrayImpl}
    return all(issubclass(k, jax.Array) and not issubclass(k, core.Tracer) for k in others)


def types_of(arrays: Iterable[Any]) -> list[Any]:
    """Return the types of arrays. What one program returns again and again has the same ones."""
    return list(map(_type, arrays))


def are_there(arrays: Iterable[ArrayImpl]) -> bool:
    """Say whether all of these have been computed, and none of them was deleted."""
    try:
        return all(map(_ready, arrays))
    except RuntimeError:
        return False


def is_in_host_memory(x: ArrayImpl) -> bool:
    """Say whether an array is in the memory of the host, in one piece."""
    (first, *others) = x.devices()
    return not others and first.platform == "cpu"


def start_transfer(arrays: Iterable[Any]) -> None:
    """Start to copy arrays to the host, so that their devices can free them soon."""
    for x in arrays:
        if any(device.platform != "cpu" for device in x.devices()):
            x.copy_to_host_async()
