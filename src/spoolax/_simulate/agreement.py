"""Processes that run a simulation together stop after the same step, whichever of them is asked to.

They are told by the devices: before every dispatch, each process says what asks it to stop, and
what any of them says is an input of the steps, which then do nothing. So no process waits for
another, and none is left waiting for steps that another has not started.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from .._jax.arrays import mesh_around
from .._jax.processes import shared
from ..errors import Converged, StopRun

NOBODY, INTERRUPTED, CONVERGED, STOPPED = range(4)


class Agreement:
    """What asks a simulation to stop, on all processes that run it.

    Args:
        mesh: The devices of the simulation.
    """

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        self._mesh = mesh

    @classmethod
    def of(cls, state: Any) -> Agreement | None:
        """An agreement of the processes that have a part of a state, if they are several."""
        arrays = shared(jax.tree.leaves(state))
        return cls(mesh_around(arrays[0].sharding)) if arrays else None

    def known(self, done: Any, request: BaseException | None) -> tuple[Any, Any]:
        """Say what asks this process to stop, if something does.

        Returns, on the devices, whether steps are to do nothing: if they were, or if any process is
        asked to stop; and what by.
        """
        return _know(self._mesh)(done, _said(self._mesh, _code(request)))  # type: ignore[no-any-return]


@functools.cache
def _said(mesh: jax.sharding.Mesh, code: int) -> Any:
    """What a process says, on its devices."""
    each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
    mine = np.full(1, code, np.int32)
    return jax.make_array_from_callback((mesh.size,), each, lambda index: mine)


@functools.cache
def _know(mesh: jax.sharding.Mesh) -> Any:
    def know(done: Any, codes: Any) -> tuple[Any, Any]:
        most = codes.max()
        return done | (most != NOBODY), most

    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.jit(know, out_shardings=everywhere)


def _code(request: BaseException | None) -> int:
    if request is None:
        return NOBODY
    if isinstance(request, Converged):
        return CONVERGED
    return STOPPED if isinstance(request, StopRun) else INTERRUPTED


def stop_of(code: int, mine: BaseException | None) -> StopRun | None:
    """What all processes raise: what asked this one to stop, or what stands for another's."""
    if isinstance(mine, StopRun) and _code(mine) == code:
        return mine
    if code == CONVERGED:
        return Converged("Another process has found that this has converged.")
    return StopRun("Another process stopped this simulation.") if code == STOPPED else None
