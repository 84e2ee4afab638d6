"""Ctrl-C while a program runs: it ends at its next host call, and raises `KeyboardInterrupt`.

Python handles signals on the main thread, between two steps of its own. While that thread runs a
program, there are none but those of host calls, where an exception would come before what is handed
over has been taken; and host calls on other threads do not even see the signal. So it is noted, and
the host call asks for it when it is done.
"""

from __future__ import annotations

# What `signal` wraps, without its enums, which take longer than all of the rest.
import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax

from .._jax.arrays import is_ready
from .._jax.host_call import in_host_call

NAP = 0.01
AGAIN = 0.001  # Seconds, to a second try after a host call.
# Whoever waits for arrays of JAX is interrupted within a fraction of a second. By then, a program
# that was left running must not have failed, or they would get that error first.
GRACE = 1.0


class interruptible:
    """Inside this context, the first Ctrl-C is noted while a program runs; a second one interrupts.

    With `anywhere`, it is also noted while Python runs. It changes nothing on other threads, inside
    another of these, or where Ctrl-C was given a meaning of its own.
    """

    def __init__(self, anywhere: bool = False) -> None:
        self._anywhere = anywhere
        self._noted = False
        self._handled = 0  # How often the handler was called.
        self._waiting = False
        self._rung: int | None = None  # How often the bell had rung before, while it counts.
        self._outlived = False  # By the program.
        self._heard: float | None = None  # When that was told so.
        self._others: Any = None  # Whoever handles Ctrl-C otherwise.
        self._outermost: FrameType | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            others = _signal.getsignal(_signal.SIGINT)
            if _raises_in_the_end(others):
                self._others, self._outermost = others, sys._getframe(1)
                _bell.hang()
                self._rung = _bell.rung()
                _signal.signal(_signal.SIGINT, self._handle)

    def __exit__(self, *error: object) -> None:
        if not self.is_active:
            return
        _signal.signal(_signal.SIGINT, self._others)
        self._others = self._outermost = None
        if not self._outlived:
            self.asked()
            self._rung = None
            _bell.take_down()

    @property
    def is_active(self) -> bool:
        """Whether we are inside the context, and it changes anything."""
        return self._outermost is not None

    def asked(self) -> bool:
        """Say whether Ctrl-C was pressed. Any thread may ask, while the program runs."""
        if self._rung is not None and not self._noted and _bell.rung() > self._rung:
            now = time.perf_counter()
            self._heard = self._heard or now
            self._noted = self.is_active or not self._outlived or now > self._heard + GRACE
        return self._noted

    def wait_for(self, outputs: Any) -> None:
        """Wait until a program has ended. JAX would not notice Ctrl-C while it waits."""
        arrays = _arrays(outputs)
        if not self.is_active:
            with contextlib.suppress(RuntimeError):  # Whoever uses them is told.
                jax.block_until_ready(arrays)
            return
        self._waiting, began = True, time.perf_counter()
        while not all(map(is_ready, arrays)):
            time.sleep(min(NAP, (time.perf_counter() - began) / 16))
        self._waiting = False

    def leave_running(self, outputs: Any) -> None:
        """If a program has not ended yet, Ctrl-C is also noted after the context."""
        arrays = _arrays(outputs)
        if self.is_active and not (arrays and all(map(is_ready, arrays))):
            self._outlived = True
            _bell.keep()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number
        self._handled += 1
        self._noted = True
        is_no_place = self._anywhere or self._waiting or in_host_call(frame, self._outermost)
        if self._handled > 1 or not is_no_place:
            raise KeyboardInterrupt


@contextlib.contextmanager
def calls_undisturbed() -> Iterator[None]:
    """Inside this context, Ctrl-C does not interrupt host calls of programs, but what follows them.

    It changes nothing on other threads, or where Ctrl-C was given a meaning of its own.
    """
    others = _signal.getsignal(_signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or isinstance(others, _Later) or not _raises_in_the_end(others):
        yield
        return
    later = _Later(others)
    _signal.signal(_signal.SIGINT, later)
    try:
        yield
    finally:
        if _signal.getsignal(_signal.SIGINT) is later:
            _signal.signal(_signal.SIGINT, others)


class _Later:
    """Handles Ctrl-C as others do, after a host call."""

    def __init__(self, others: Any) -> None:
        self.others = others

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if in_host_call(frame, None):
            again = threading.Timer(AGAIN, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            self.others(number, frame)


def _raises_in_the_end(handler: Any) -> bool:
    """Say whether Ctrl-C means `KeyboardInterrupt`.

    So it does in `asyncio.run`, which first cancels a task: that waits for the program to end, and
    gets the exception in its place.
    """
    if isinstance(handler, _Later):
        handler = handler.others
    if handler is signal.default_int_handler:
        return True
    asyncio: Any = sys.modules.get("asyncio")
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return asyncio is not None and isinstance(owner, asyncio.Runner)


def _arrays(outputs: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array)]


class _Bell:
    """Counts how often Ctrl-C was pressed, at once, whatever the main thread does.

    Python writes the numbers of signals to one end of it. There can be one such bell only: if
    somebody else has it, this one never rings.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._rung = 0
        self._kept = False

    def hang(self) -> None:
        if self._ends is None:
            self._ends = socket.socketpair()
            for end in self._ends:
                end.setblocking(False)
        ours = self._ends[1].fileno()
        others = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if others not in (-1, ours):
            signal.set_wakeup_fd(others)

    def keep(self) -> None:
        """Never take it down: a program goes on, and nobody will say when it ends."""
        self._kept = True

    def take_down(self) -> None:
        if self._ends is not None and not self._kept:
            others = signal.set_wakeup_fd(-1)
            if others != self._ends[1].fileno():
                signal.set_wakeup_fd(others)

    def rung(self) -> int:
        """How often it has rung so far."""
        assert self._ends is not None
        with self._lock, contextlib.suppress(BlockingIOError):
            while heard := self._ends[0].recv(4096):
                self._rung += heard.count(signal.SIGINT)
        return self._rung

    def forget(self) -> None:
        """In a forked child, where it would ring the parent's."""
        self._kept = False
        self.take_down()
        self.__init__()  # type: ignore[misc]


_bell = _Bell()
os.register_at_fork(after_in_child=_bell.forget)
