"""The processes of `jax.distributed`: which of them this is, and what they tell each other.

They talk through JAX's coordination service, which needs no device. Nothing here starts a backend,
so that `jax.distributed.initialize` can still be called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import distributed

from .arrays import concrete_mesh, mesh_around
from .platforms import caller


def count() -> int:
    """How many there are."""
    return int(distributed.global_state.num_processes or 1) if _client() else 1


def index() -> int:
    """Which of them this is."""
    return int(distributed.global_state.process_id or 0) if _client() else 0


def tell(key: str, text: str) -> None:
    """Tell the others something. Every key can be used once."""
    _client().key_value_set(key, text)


def hear(key: str, seconds: float) -> str | None:
    """What another process has told, or will within a time; None if it has not."""
    return _unless("DEADLINE_EXCEEDED", _client().blocking_key_value_get, key, _ms(seconds))


def post(key: str, text: str) -> None:
    """Tell the others something in the place of what was told under the same key before."""
    _client().key_value_set(key, text, allow_overwrite=True)


def posted(folder: str) -> dict[str, str]:
    """What was told last under all keys in a folder, which is asked for at once."""
    found = _client().key_value_dir_get(folder)
    return {key.removeprefix(folder): text for key, text in found}


def wait_for_all(name: str, seconds: float) -> bool:
    """Wait until all processes have come to the same place, which can be used once.

    Returns whether they have, within a time.
    """

    def wait() -> str:
        _client().wait_at_barrier(name, _ms(seconds))
        return name

    return _unless("DEADLINE_EXCEEDED", wait) is not None


def _unless(code: str, ask: Callable[..., str], *args: Any) -> str | None:
    """Ask the coordination service; None if it answers with an error of this kind."""
    try:
        return ask(*args)
    except jax.errors.JaxRuntimeError as error:
        if code in str(error):
            return None
        raise


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _client() -> Any:
    return distributed.global_state.client


def shared(values: Iterable[Any]) -> list[jax.Array]:
    """Those arrays that are on devices of several processes."""
    if count() == 1:
        return []
    arrays = (x for x in values if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer))
    return [x for x in arrays if not x.is_fully_addressable]


def divided(values: Iterable[Any]) -> list[jax.Array]:
    """Those of which no process has the whole, so that none can just read them."""
    return [x for x in shared(values) if not x.is_fully_replicated]


def spans_processes(mesh: Any) -> bool:
    """Say whether the devices of a mesh belong to several processes, as far as that is known."""
    if count() == 1:
        return False
    mesh = concrete_mesh(mesh)
    return mesh is None or len({device.process_index for device in mesh.devices.flat}) > 1


def calls_me(result: jax.Array) -> bool:
    """Say whether a program that has returned an array calls the host in this process."""
    devices = result.sharding._device_assignment
    return bool(devices[caller(devices)].process_index == index())


def local(state: Any) -> Any:
    """A pytree with this process's own copies of arrays that each process has a copy of."""
    if count() == 1:
        return state

    def own(x: Any) -> Any:
        return x.addressable_data(0) if shared([x]) and x.is_fully_replicated else x

    return jax.tree.map(own, state)


def readable(arrays: Sequence[Any]) -> list[Any]:
    """The same arrays, as a whole on every process. All processes that have them call this."""
    apart = {n: x for n, x in enumerate(arrays) if divided([x])}
    if not apart:
        return list(local(list(arrays)))
    whole = dict(zip(apart, _replicated(list(apart.values())), strict=True))
    return list(local([whole.get(n, x) for n, x in enumerate(arrays)]))


def _replicated(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    by_place: dict[Any, list[int]] = {}
    for number, x in enumerate(arrays):
        by_place.setdefault(_everywhere(x), []).append(number)
    made: dict[int, jax.Array] = {}
    for place, numbers in by_place.items():
        made |= zip(numbers, _copied(place)([arrays[n] for n in numbers]), strict=True)
    return [made[number] for number in range(len(arrays))]


def _everywhere(x: jax.Array) -> jax.sharding.NamedSharding:
    """On all devices that have a part of an array."""
    return jax.sharding.NamedSharding(mesh_around(x.sharding), jax.sharding.PartitionSpec())


@functools.cache
def _copied(place: jax.sharding.NamedSharding) -> Any:
    return jax.jit(lambda xs: xs, out_shardings=place)


def known_to_all(numbers: np.ndarray, like: jax.Array) -> np.ndarray:
    """The largest of the numbers that each process of a program has, for all of them.

    The program is the one that has returned `like`. All of its processes call this, with arrays of
    the same shape and type.
    """
    devices = tuple(sorted(like.sharding.device_set, key=lambda device: device.id))
    with jax.set_mesh(None), jax.enable_x64(True):
        rows, most = _exchange(devices)
        shape = (len(devices), *numbers.shape)
        given = jax.make_array_from_callback(shape, rows, lambda index: numbers[None])
        return np.asarray(most(given))


@functools.cache
def _exchange(devices: Sequence[Any]) -> tuple[Any, Any]:
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return rows, jax.jit(lambda x: x.max(0), out_shardings=everywhere)
