"""Calls of the devices of a `shard_map`, which go on in step with each other.

All devices make the same calls, but not at the same time, and none waits for the others. The first
device that makes a call decides what the answer is, and the others get the same when they make it:
so they pause in the same iterations, and leave their loops in the same one if the program is to
stop, whatever they exchange in there. What they hand over is queued when the last of them has made
the call. In between, a device may hand over what it has no room for.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import Any

from ._reels.gather import Arrived, Gathered, ShardGroup, arrived
from .receive import Asked, Receiver
from .runs import Run

# What the orders of a device have besides: how many calls it has made, and whether it has handed
# over anything since the last of them.
MORE = 2


class InStep(Receiver):
    """Takes what the devices of a `shard_map` hand over, and answers all of them alike."""

    group = ShardGroup((), (), 0)  # Until it is known which reels they have.

    def __call__(self, asked: Asked, is_alone: bool, orders: Any, *given: Any) -> Any:
        del is_alone  # The other devices are told to stop by their answers.
        if orders[0] < 0:
            return orders  # It was told to stop. What it logs since then did not happen.
        rest = iter(given)
        pause, (device, *numbers) = asked.read(rest)
        run, loop = self.run(orders), asked.loop
        parts = arrived(asked.groups, iter(numbers), rest)
        gathering: _Gathering = run.gatherings.setdefault(self, _Gathering(self, run))
        with gathering.lock:
            gathering.parts[device] += parts
            if asked.between:
                orders = orders.copy()
                orders[-1] = 1
                return orders
            number = int(orders[-2])
            call = gathering.calls.setdefault(number, _Call())
            call.parts[device] = gathering.parts.pop(device)
            if call.answer is None:
                elapsed = run.arrived(loop)
                call.answer = self.answer(run, loop, False, orders, pause, elapsed)
                call.answer[-2:] = number + 1, 0
                run.goes_on(loop)
            if len(call.parts) == self.group.devices:
                del gathering.calls[number]
                gathering.put(call.parts)
                run.goes_on(loop)
            return call.answer


class _Call:
    """A call that not all devices have made: what those have handed over that have."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Arrived]] = {}
        self.answer: Any = None


class _Gathering:
    """What the devices have handed over in a run, and is not queued."""

    def __init__(self, receiver: InStep, run: Run) -> None:
        self._receiver, self._run = receiver, run
        self.lock = threading.Lock()
        self.calls: dict[int, _Call] = {}  # In order.
        self.parts: dict[int, list[Arrived]] = collections.defaultdict(list)  # Since the last call.

    def put(self, parts: dict[int, list[Arrived]]) -> None:
        if any(parts.values()):
            self._receiver.put([Gathered(self._receiver.group, parts)], self._run, time.time())

    def ended(self) -> None:
        """Queue what some devices have handed over before the program failed."""
        with self.lock:
            calls = [*(call.parts for call in self.calls.values()), dict(self.parts)]
            self.calls.clear()
            self.parts.clear()
            for parts in calls:
                self.put(parts)
