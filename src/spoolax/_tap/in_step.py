"""Calls of the devices of a `shard_map`, which go on in step with each other.

All devices make the same calls, but not at the same time, and none waits for the others. The first
device that makes a call decides what the answer is, and the others get the same when they make it:
so they pause in the same iterations, and leave their loops in the same one if the program is to
stop, whatever they exchange in there. What they hand over is queued when the last of them has made
the call, and so is what the program around hands over after it, which one device does for all. In
between, a device may hand over what it has no room for.
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from ._reels.gather import Arrived, Gathered, ShardGroup, arrived
from .receive import Asked, Receiver
from .runs import Run

# What the orders of a device have besides: how many calls it has made, and whether it has handed
# over anything since the last of them.
MORE = 2


class InStep(Receiver):
    """Takes what the devices of a `shard_map` hand over, and answers all of them alike."""

    group = ShardGroup((), (), None)  # Until it is known which reels they have.

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
            is_last = len(call.parts) == self.group.devices
        if is_last:
            gathering.put(number, call)
            run.goes_on(loop)
        return call.answer


class _Call:
    """A call that not all devices have made: what those have handed over that have."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Arrived]] = {}
        self.answer: Any = None
        self.then: list[Callable[[], None]] = []  # What others have handed over since then.


class _Gathering:
    """What the devices have handed over in a run, and is not queued."""

    def __init__(self, receiver: InStep, run: Run) -> None:
        self._receiver, self._run = receiver, run
        self.lock = threading.Lock()
        self.calls: dict[int, _Call] = {}  # In order.
        self.parts: dict[int, list[Arrived]] = collections.defaultdict(list)  # Since the last call.

    def put(self, number: int, call: _Call) -> None:
        """Queue what devices have handed over in a call, and then what has waited for that."""
        while acts := self._taken(number, call):
            for act in acts:  # It may wait for room, and whoever makes that may need the lock.
                act()

    def _taken(self, number: int, call: _Call) -> list[Callable[[], None]]:
        """Take out what there is to do after a call. If that is nothing, it is over."""
        with self.lock:
            acts, call.then = call.then, []
            if call.parts:
                acts = [functools.partial(self._put, call.parts), *acts]
                call.parts = {}
            if not acts:
                self.calls.pop(number, None)
            return acts

    def _put(self, parts: dict[int, list[Arrived]]) -> None:
        if any(parts.values()):
            self._receiver.put([Gathered(self._receiver.group, parts)], self._run, time.time())

    def defers(self, act: Callable[[], None]) -> bool:
        """Do something later, if there is a call that not all devices have made."""
        with self.lock:
            if not self.calls:
                return False
            self.calls[max(self.calls)].then.append(act)
            return True

    def is_incomplete(self) -> bool:
        """Say whether there is something that waits for other devices."""
        with self.lock:
            return bool(self.calls) or any(self.parts.values())

    def ended(self) -> None:
        """Queue what some devices have handed over before the program failed."""
        for number, call in list(self.calls.items()):
            self.put(number, call)
        with self.lock:
            parts, self.parts = dict(self.parts), collections.defaultdict(list)
        self._put(parts)
