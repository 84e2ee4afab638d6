"""Calls that all devices of a run make, though not at the same time.

None of them waits for the others. The first that makes a call has it answered, and the others get
the same answer when they make it: so they go on alike, whatever they exchange. What they hand over
is queued when the last of them has made the call. Until then, nothing is that comes after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar


class Call:
    """A call that not all devices have made."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}  # By those that have.
        self.answer: Any = None
        self.is_complete = threading.Event()  # All of them have,
        self.is_over = threading.Event()  # and what they have handed over is queued,
        self.queued_by: int | None = None  # by this thread.
        self.then: list[Callable[[], None]] = []  # What others have handed over since then.


OneCall = TypeVar("OneCall", bound=Call)


class Gathering(Generic[OneCall]):
    """Those of a run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: dict[int, OneCall] = {}  # In order.

    def complete(self, number: int, call: Call, queue: Callable[[], None]) -> None:
        """Queue what has been handed over in a call, and then what has waited for that."""
        with self.lock:
            if call.is_complete.is_set():
                return
            call.queued_by = threading.get_ident()
            call.is_complete.set()
        acts = [queue]
        while acts:
            for act in acts:  # It may wait for room, and whoever makes that may need the lock.
                act()
            with self.lock:
                acts, call.then = call.then, []
                if not acts:
                    self.calls.pop(number, None)
        call.is_over.set()

    def wait_for_room(self) -> None:
        """Wait while another device does, so that none gets ahead of what has been queued."""
        with self.lock:
            complete = [call for call in self.calls.values() if call.is_complete.is_set()]
        for call in complete:
            call.is_over.wait()

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
            return bool(self.calls)

    def ended(self, is_over: bool) -> None:
        """Nobody waits for the program any more. If it is over, devices make no more calls."""
