"""Executions of programs that stream: which sink they belong to, and when they have ended."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
from typing import Any

import jax

from ..errors import StopRun
from .sinks import Sink

KEPT_RUNS = 1024


class Run:
    """One execution of a program."""

    def __init__(self, number: int, sink: Sink | None) -> None:
        self.number, self.sink = number, sink
        self.stop: StopRun | None = None
        self.stopped = False  # It was asked to stop, and did; else it ended before it could.
        self.done_with: set[Sink] = set()  # Sinks that have seen enough.
        self.unbounded = False  # It was started by the worker, which must not wait for itself.
        self.token: Any = None
        self.thread = threading.get_ident()  # Where it was started.
        self._device: str | None = None
        # If it was not registered, it is not known when it began.
        self._begun = None if sink is None else time.perf_counter()
        self._paused: dict[str, float] = {}

    @property
    def device(self) -> str | None:
        """The device that the program runs on, or None if that is not known."""
        if self._device is None and self.token is not None:
            devices = self.token.devices()
            self._device = str(min(devices, key=lambda d: d.id)) if devices else None
        return self._device

    def arrived(self, loop: str) -> float | None:
        """Seconds since this loop (or the program) went on after it last paused, if known."""
        since = self._paused.get(loop, self._begun)
        return None if since is None else time.perf_counter() - since

    def end_if_asked_to(self) -> None:
        if self.stop is not None:
            self.stopped = True
            raise self.stop

    def goes_on(self, loop: str) -> None:
        self._paused[loop] = time.perf_counter()


class Runs:
    """Everything that is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._registered: dict[int, Run] = {}
        self._anonymous: collections.OrderedDict[int, Run] = collections.OrderedDict()
        self._dispatched: collections.deque[Run] = collections.deque()

    def begin(self, sink: Sink, unbounded: bool) -> Run:
        """Register an execution that is about to begin."""
        run = self._new(sink, unbounded)
        with self._lock:
            self._registered[run.number] = run
        return run

    def find(self, number: int, unbounded: bool) -> Run:
        """Find the run with a number; 0 stands for one that was not registered."""
        run = self._registered.get(number) or self._anonymous.get(number)
        if run is None:
            run = self._new(None, unbounded)
            with self._lock:
                self._anonymous[run.number] = run
                if len(self._anonymous) > KEPT_RUNS:  # Nobody says when they end.
                    self._anonymous.popitem(last=False)
        return run

    def _new(self, sink: Sink | None, unbounded: bool) -> Run:
        run = Run(next(self._numbers) & 0x7FFFFFFF, sink)
        run.unbounded = unbounded
        return run

    def failed(self, run: Run) -> None:
        """A program ended with an error, or was not even started."""
        with self._lock:
            self._registered.pop(run.number, None)

    def dispatched(self, run: Run, token: Any) -> None:
        """A program was started; `token` is ready when it has ended."""
        run.token = token
        with self._lock:
            self._dispatched.append(run)
            while self._dispatched and is_ready(self._dispatched[0].token):
                self._registered.pop(self._dispatched.popleft().number, None)

    def wait(self, thread: int | None = None, unbounded_only: bool = False) -> None:
        """Wait for the programs that were started, if given, on one thread."""
        for run in tuple(self._dispatched):
            if thread in (None, run.thread) and (run.unbounded or not unbounded_only):
                # An error of the program surfaces from its outputs. Here, it has just ended.
                with contextlib.suppress(RuntimeError):
                    jax.block_until_ready(run.token)


def is_ready(token: Any) -> bool:
    """Say whether an array has been computed."""
    try:
        return bool(token.is_ready())
    except RuntimeError:  # It failed, or was deleted.
        return True
