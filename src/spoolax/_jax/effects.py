"""What `jax.effects_barrier()` waits for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import dispatch

from .tracing import trace_is_clean


@functools.cache
def _steps() -> tuple[Any, list[Any]]:
    zeros = [jax.device_put(np.int32(0), device) for device in jax.local_devices()]
    return jax.jit(lambda x: x + 1), zeros


def markers() -> list[Any]:
    """Arrays that are ready when the programs that this thread has started by now have ended.

    That is true of programs on one device, which executes them in order.
    """
    if not trace_is_clean():
        return []  # Nothing is started now.
    with jax.set_mesh(None):
        step, zeros = _steps()
        return [step(zero) for zero in zeros]


def ends() -> list[Any]:
    """What is ready when the last programs with effects have ended that this thread has started.

    There is one for each device.
    """
    return list(dispatch.runtime_tokens.output_runtime_tokens.values())


def forget_failures() -> None:
    """Wait for the programs of this thread, and forget those that failed.

    Else JAX would report them at the exit, long after somebody has been told.
    """
    tokens = dispatch.runtime_tokens
    for token in (*tokens.current_tokens.values(), *tokens.output_runtime_tokens.values()):
        with contextlib.suppress(RuntimeError):
            token.block_until_ready()
    tokens.clear()


_added: list[Callable[[], None]] = []


def add_to_barrier(wait: Callable[[], None]) -> None:
    """Have `jax.effects_barrier()` call this when JAX's own effects have happened.

    JAX waits for the tokens of programs that this thread has started. Nothing that is in such a
    token would know of callbacks that are called later, on another thread.
    """
    if wait in _added:
        return
    _added.append(wait)
    tokens = dispatch.RuntimeTokenSet
    block = tokens.block_until_ready

    @functools.wraps(block)
    def block_until_ready(self: Any) -> None:
        try:
            block(self)
        finally:
            wait()

    tokens.block_until_ready = block_until_ready
