"""Calls of the devices of a `shard_map`, which go on in step with each other.

All devices make the same calls, which are a `Gathering`: so they pause in the same iterations, and
leave their loops in the same one if the program is to stop. In between, a device may hand over what
it has no room for.
"""

from __future__ import annotations

import collections
import functools
import time
from typing import Any

from ..._listen.gathering import Call, Gathering
from .._reels.gather import Arrived, Gathered, ShardGroup, arrived
from ..receive import Asked, Receiver
from ..runs import Run

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
            call = gathering.calls.setdefault(number, Call())
            call.given[device] = gathering.parts.pop(device)
            if call.answer is None:
                elapsed = run.arrived(loop)
                call.answer = self.answer(run, loop, False, orders, pause, elapsed)
                call.answer[-2:] = number + 1, 0
                run.goes_on(loop)
            is_last = len(call.given) == self.group.devices
        if is_last:
            gathering.put(number, call)
            run.goes_on(loop)
        return call.answer

    def of_all(self, asked: Asked, is_alone: bool, orders: Any, *given: Any) -> Any:
        """One device makes the call of all of them: arrays have an axis of devices in front."""
        if orders[0] == 0:  # They belong to one run, which gets its number now.
            orders = orders.copy()
            orders[0] = self.run(orders).number
        for device in range(self.group.devices):
            answer = self(asked, is_alone, orders, *(x[device] for x in given))
        return answer


class _Gathering(Gathering[Call]):
    """What the devices have handed over in a run, and is not queued."""

    def __init__(self, receiver: InStep, run: Run) -> None:
        super().__init__()
        self._receiver, self._run = receiver, run
        self.parts: dict[int, list[Arrived]] = collections.defaultdict(list)  # Since the last call.

    def put(self, number: int, call: Call) -> None:
        """Queue what devices have handed over in a call, and then what has waited for that."""
        self.complete(number, call, functools.partial(self._put, call.given))

    def _put(self, parts: dict[int, list[Arrived]]) -> None:
        if any(parts.values()):
            self._receiver.put([Gathered(self._receiver.group, parts)], self._run, time.time())

    def is_incomplete(self) -> bool:
        with self.lock:
            return bool(self.calls) or any(self.parts.values())

    def ended(self, is_over: bool) -> None:
        """Queue what some devices have handed over before the program failed."""
        del is_over
        for number, call in list(self.calls.items()):
            self.put(number, call)
        with self.lock:
            parts, self.parts = dict(self.parts), collections.defaultdict(list)
        self._put(parts)
