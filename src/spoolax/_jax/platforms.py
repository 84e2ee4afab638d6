"""Facts about the platforms that programs are compiled for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

# What a kernel takes at least, and what large ones take for each operation and for each byte.
# Only their orders of magnitude matter.
SECONDS_PER_KERNEL = 3e-6
SECONDS_PER_OPERATION = 1e-13
SECONDS_PER_BYTE = 1e-12


class Target(NamedTuple):
    """What a program is compiled for."""

    platforms: Sequence[str]
    devices: int  # That each have a part of it.


_target: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


@contextlib.contextmanager
def compiling_for(target: Target) -> Iterator[None]:
    """What is traced in this context is compiled for that."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def has_fast_calls(platforms: Sequence[str]) -> bool:
    """Say whether programs for these platforms can call the host with plain NumPy arrays.

    Others have to do with `io_callback`, which takes some 200 microseconds more.
    """
    return {"cpu", "cuda", "rocm", "gpu", "tpu"}.issuperset(platforms)


def waits_for_loops() -> bool:
    """Say whether the host decides, in every iteration of a loop, whether it goes on.

    So it does on GPUs, unless the number of iterations is known when the loop is compiled. Outside
    of that context, programs are compiled for JAX's default backend.
    """
    return platforms()[0] in ("cuda", "rocm", "gpu")


def platforms() -> Sequence[str]:
    """What programs are compiled for."""
    target = _target.get()
    return [jax.default_backend()] if target is None else target.platforms


def caller(devices: Sequence[Any]) -> int:
    """Which of the devices of a program calls the host for all: the first of the first process."""
    return min(range(len(devices)), key=lambda n: devices[n].process_index)


def most_devices() -> int:
    """The number of devices that a program will run on, if that is known, or may run on."""
    target = _target.get()
    return jax.device_count() if target is None else target.devices


def devices() -> int:
    """The number of devices that the program which is being compiled will run on."""
    target = _target.get()
    assert target is not None
    return target.devices
