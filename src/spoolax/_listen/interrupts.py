"""Ctrl-C while a program runs: it ends at its next host call, and raises `KeyboardInterrupt`.

Python handles signals on the main thread, between two steps of its own. While that thread runs a
program, there are none but those of host calls, where an exception would come before what is handed
over has been taken; and host calls on other threads do not even see the signal. So it is noted, and
the host call asks for it when it is done.
"""

from __future__ import annotations

# What `signal` wraps, without its enums, which take longer than all of the rest.
import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import jax

from .._jax.arrays import is_ready
from .._jax.host_call import in_host_call

NAP = 0.01


class interruptible:
    """Inside this context, the first Ctrl-C is noted while a program runs; a second one interrupts.

    It changes nothing where Ctrl-C does not raise `KeyboardInterrupt`, or on other threads.
    """

    def __init__(self) -> None:
        self._noted = False
        self._handled = 0  # How often the handler was called.
        self._waiting = False
        self._rings = False  # Whether signals ring our bell.
        self._outermost: FrameType | None = None

    def __enter__(self) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and _signal.getsignal(_signal.SIGINT) is signal.default_int_handler
        ):
            self._outermost = sys._getframe(1)
            self._heard()  # What rang before is of no concern.
            others = signal.set_wakeup_fd(_bell()[1].fileno(), warn_on_full_buffer=False)
            self._rings = others == -1
            if not self._rings:
                signal.set_wakeup_fd(others)
            _signal.signal(_signal.SIGINT, self._handle)

    def __exit__(self, *error: object) -> None:
        if self._outermost is not None:
            _signal.signal(_signal.SIGINT, signal.default_int_handler)
            self._outermost = None
        if self._rings:
            signal.set_wakeup_fd(-1)
            self._rings = False

    def asked(self) -> bool:
        """Say whether Ctrl-C was pressed. Any thread may ask, while the program runs."""
        if self._rings and not self._noted:
            self._noted = signal.SIGINT in self._heard()
        return self._noted

    def wait_for(self, outputs: Any) -> None:
        """Wait until a program has ended. JAX would not notice Ctrl-C while it waits."""
        arrays = [x for x in jax.tree.leaves(outputs) if isinstance(x, jax.Array)]
        if self._outermost is None:
            with contextlib.suppress(RuntimeError):  # Whoever uses them is told.
                jax.block_until_ready(arrays)
            return
        self._waiting, began = True, time.perf_counter()
        while not all(map(is_ready, arrays)):
            time.sleep(min(NAP, (time.perf_counter() - began) / 16))
        self._waiting = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number
        self._handled += 1
        self._noted = True
        if self._handled > 1 or not (self._waiting or in_host_call(frame, self._outermost)):
            raise KeyboardInterrupt

    def _heard(self) -> bytes:
        try:
            return _bell()[0].recv(64)
        except BlockingIOError:
            return b""


@functools.cache
def _bell() -> tuple[socket.socket, socket.socket]:
    """Two ends: signals are written to the second at once, whatever the main thread does."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


os.register_at_fork(after_in_child=_bell.cache_clear)
