"""Which views of loggers run in the loop over the steps, and how far it runs without the host."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._jax.arrays import start_transfer
from .._rows import InLoop, Rows, RowView, Wants, any_of, never
from ..errors import StopRun
from .programs import MOST_STEPS

MOST_BYTES = 4 << 20  # Of the rows of a view, on the device.


class Plan(NamedTuple):
    """Steps that run without the host, and what becomes of them."""

    length: int
    is_wanted: bool  # Whether loggers get the state after the last one.
    steps: list[list[int]]  # For each view, those after which it takes a row.
    time: float


class Taking:
    """The views that take rows in the loop, and the loggers that get states."""

    def __init__(
        self,
        wants_state: Wants,
        views: Sequence[RowView] = (),
        room: Sequence[int] = (),
    ) -> None:
        self.wants_state = wants_state  # Whether a logger has to get the state after a step.
        self.views, self.room = views, room

    @classmethod
    def of(cls, how: InLoop, inner: int, first: int, end: int) -> Taking:
        """Choose the views for which it is worth it, and that have room enough."""
        pairs = [(view, _most_rows(view, inner, first, end)) for view in how.views]
        views = [view for view, room in pairs if room > 1]
        others = [view.is_due for view, room in pairs if room <= 1]
        wants_state = any_of([how.wants_state, *others])
        return cls(wants_state, views, [room for _, room in pairs if room > 1])

    def idle(self) -> Taking:
        """The same views, which take nothing."""
        views = [view._replace(is_due=never) for view in self.views]
        return Taking(never, views, self.room)

    def plan(self, first: int, most: int) -> Plan:
        """Plan to run up to `most` steps, until a state is wanted or there is no room for rows."""
        steps: list[list[int]] = [[] for _ in self.views]
        views, begun = list(zip(self.views, self.room, steps, strict=True)), time.time()
        for step in range(first, first + most):
            if self.wants_state(step):
                return Plan(step + 1 - first, True, steps, begun)
            is_full = False
            for view, room, mine in views:
                if view.is_due(step):
                    mine.append(step)
                    is_full |= len(mine) == room
            if is_full:
                return Plan(step + 1 - first, False, steps, begun)
        return Plan(most, False, steps, begun)

    def wanted(self, plan: Plan, first: int) -> tuple[Any, ...]:
        """For each view, after how many steps to take a row, for the program."""
        steps = (tuple(step + 1 - first for step in mine) for mine in plan.steps)
        return tuple(_padded(mine, room) for mine, room in zip(steps, self.room, strict=True))

    def deliver(self, plan: Plan, arrays: Sequence[list[Any]], end: int) -> StopRun | None:
        """Hand over the rows of a plan that belong to steps before `end`.

        If a logger asks to stop, all the others get theirs, and the request is returned.
        """
        stop = None
        for view, mine, steps in zip(self.views, arrays, plan.steps, strict=True):
            steps = [step for step in steps if step < end]
            if not steps:
                continue
            start_transfer(mine)
            try:
                view.receive(Rows(view.kind, mine, steps, plan.time))
            except StopRun as request:
                stop = stop or request
        return stop


def _most_rows(view: RowView, inner: int, first: int, end: int) -> int:
    """For how many rows there is use, and room.

    What is due at the beginning and at the end of the run tells. A power of two, so that the next
    run hardly needs another program.
    """
    most = min(inner, end - first)
    windows = (range(first, first + most), range(end - most, end))
    use = max(sum(map(view.is_due, window)) for window in windows)
    return min(1 << (use - 1).bit_length() if use else 0, MOST_BYTES // max(1, view.nbytes))


@functools.lru_cache(maxsize=16)
def _padded(numbers: tuple[int, ...], room: int) -> Any:
    """Numbers on the device, with at least one behind them that no step has."""
    padded = np.full(room + 1, MOST_STEPS, np.uint32)
    padded[: len(numbers)] = numbers
    return jnp.asarray(padded)
