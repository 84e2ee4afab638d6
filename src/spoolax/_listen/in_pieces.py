"""Calls of programs on several devices, all of which hand over the pieces they have of arrays.

What a call has to say is therefore known when the last device has made it. What it says may stop
the program: then devices wait for that. Otherwise, they only wait for one that is far behind: what
they hand over is kept until it has got there, and a stop is where the first of them is.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .._jax.spread_call import Places
from .gathering import Call, Gathering

# Seconds. If a device fails, it does not make the calls that others wait for, or those that they
# have made before the program is over.
PATIENCE, GRACE = 10.0, 1.0
AHEAD = 4  # Calls that a device makes before others have made them.


class PiecesOfCall(Call):
    """What devices have handed over in a call."""

    def __init__(self, places: Places, queue: Callable[[list[Any]], None]) -> None:
        super().__init__()
        self._places, self._queue = places, queue

    def is_whole(self) -> bool:
        """Say whether all arrays can be put together."""
        return self._places.are_covered_by(self.given)

    def queue_all(self) -> None:
        self._queue(self._places.whole(self.given))


class InPieces(Gathering[PiecesOfCall]):
    """The calls of a run, each of which all devices make in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self._made: collections.Counter[int] = collections.Counter()  # By device.
        self._lacks_devices = False  # One of them may have failed: nobody waits for it any more,
        self._is_over = False  # nor for what it has not handed over.

    def call(
        self,
        device: int,
        places: Places,
        given: Sequence[Any],
        answer: Callable[[], Any],
        queue: Callable[[list[Any]], None],
        holds_up: bool = False,
    ) -> Any:
        """A device makes its next call. Return the answer, and queue what all of them have given.

        With `holds_up`, in the other order.
        """
        self.wait_for_room()
        with self.lock:
            number = self._made[device]
            self._made[device] += 1
            call = self.calls.setdefault(number, PiecesOfCall(places, queue))
            call.given[device] = given
            if not holds_up:
                _answer(call, answer)
            is_last = len(call.given) == places.devices
            # With fewer threads than devices, some begin when others have ended.
            all_run = len(self._made) == places.devices
            behind = self.calls.get(number - AHEAD) if all_run else None
        if is_last:
            self.complete(number, call, call.queue_all)
        if holds_up:
            self._wait_for(call)
            with self.lock:
                _answer(call, answer)
        elif behind is not None:
            self._wait_for(behind)
        return call.answer

    def _wait_for(self, call: Call) -> None:
        if not self._lacks_devices and not call.is_complete.wait(PATIENCE):
            self._lacks_devices = True
        if call.is_complete.is_set():
            call.is_over.wait()

    def is_incomplete(self) -> bool:
        return not self._is_over and super().is_incomplete()

    def ended(self, is_over: bool) -> None:
        """If devices have failed, queue what is whole without them."""
        if not is_over:
            return
        with self.lock:
            calls = list(self.calls.items())
        last = time.monotonic() + GRACE
        for number, call in calls:
            is_mine = call.queued_by == threading.get_ident()  # Then that is what calls us.
            if is_mine or call.is_over.wait(max(0, last - time.monotonic())):
                continue
            if not call.is_complete.is_set():
                self._lacks_devices = True
                if not call.is_whole():
                    self._is_over = True
                    break
                self.complete(number, call, call.queue_all)


def _answer(call: Call, answer: Callable[[], Any]) -> None:
    if call.answer is None:
        call.answer = answer()
