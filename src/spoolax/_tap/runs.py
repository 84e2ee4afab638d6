"""Executions of programs that stream: which sink they belong to, and when they have ended."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._jax.effects import ends
from .._listen.interrupts import interruptible
from ..errors import StopRun
from .sinks import Sink

# Of programs that nobody waits for: those that are over, and those that may not be. If one of them
# fails, nobody says so.
KEPT_RUNS, KEPT_UNKNOWN = 1024, 4096


class Run:
    """One execution of a program."""

    def __init__(self, number: int, sink: Sink | None) -> None:
        self.number, self.sink = number, sink
        self.stop: StopRun | KeyboardInterrupt | None = None  # Somebody wants it to stop.
        self.stopped = False  # It was told so; else it ended before it could be.
        self.waited = True  # Somebody waits for its end, and raises what stopped it.
        self.was_stuck = False  # A callback waited for it while it waited for the callback.
        self.thread: int | None = None  # That has started it, if it was not registered.
        self.done_with: set[Sink] = set()  # Sinks that have seen enough.
        self.unbounded = False  # It was started by the worker, which must not wait for itself.
        self.token: Any = None  # It is ready when the program has ended.
        self._device: str | None = None
        # If it was not registered, it is not known when it began.
        self.begun = None if sink is None else time.perf_counter()
        self.ended: float | None = None  # Not known before somebody looks.
        self._paused: dict[str, float] = {}
        self.gatherings: dict[Any, Any] = {}  # What not all devices have handed over.

    @functools.cached_property
    def interruptible(self) -> interruptible:
        """Tells whether Ctrl-C was pressed while it ran. Short programs do without it."""
        return interruptible()

    @property
    def device(self) -> str | None:
        """The device that the program runs on, or None if that is not known."""
        if self._device is None and self.token is not None:
            devices = self.token.devices()
            self._device = str(min(devices, key=lambda d: d.id)) if devices else None
        return self._device

    def arrived(self, loop: str) -> float | None:
        """Seconds since this loop (or the program) went on after it last paused, if known."""
        since = self._paused.get(loop, self.begun)
        return None if since is None else time.perf_counter() - since

    def is_to_stop(self) -> bool:
        """Say whether a callback or Ctrl-C has asked for a stop."""
        if self.stop is None and self.interruptible.asked():
            self.stop = KeyboardInterrupt()
        return self.stop is not None

    def answer(self, is_alone: bool) -> int:
        """What to tell the program: its number, negated if it is to stop.

        If nobody waits for it, it can only fail, and not if other devices would wait for it then.
        """
        if not self.is_to_stop() or not (self.waited or is_alone):
            return self.number
        self.stopped = self.waited
        return -self.number

    def raise_if_asked_to_stop(self) -> None:
        """Raise what wants to stop a run that is not a program."""
        if self.stop is not None:
            self.stopped = True
            raise self.stop

    def raise_if_stopped(self) -> None:
        """Raise what stopped the program, which has ended."""
        if self.interruptible.asked() and not self.stopped:  # It ended before it learned that.
            raise KeyboardInterrupt
        if self.stop is not None and self.stopped:
            raise self.stop from None
        if self.token is not None and jax.process_count() > 1 and self.token[0] < 0:
            # One process is called for all of them.
            raise StopRun("Another process stopped this program.")

    def goes_on(self, loop: str) -> None:
        self._paused[loop] = time.perf_counter()

    def in_order(self, act: Callable[[], None]) -> None:
        """Do something once all devices have handed over what the one that is here already has."""
        latest = reversed(list(self.gatherings.values()))
        if not any(gathering.defers(act) for gathering in latest):
            act()


class _Here(threading.local):
    """What is known about a thread."""

    blocks: tuple[Any, ...] = ()  # Those that listen to it, the innermost first,
    before: Any = None  # and what listened before there were any.


here = _Here()


class Embedded:
    """Somebody else's program that streams, and which execution began last."""

    execution: Execution | None = None
    calls = True  # It may call the host before it ends. Only then are executions watched.
    spans = False  # It may run on devices of several processes.


class Execution:
    """One execution of somebody else's program."""

    def __init__(self) -> None:
        self.interruptible = interruptible()
        self._thread = threading.get_ident()
        self._run: Run | None = None  # Once it has called the host.

    def identify(self, run: Run) -> None:
        """This is its run."""
        run.interruptible, run.thread, self._run = self.interruptible, self._thread, run

    def raise_if_stopped(self) -> None:
        if self._run is not None:
            self._run.raise_if_stopped()
        if self.interruptible.asked():
            raise KeyboardInterrupt


# Of the last of somebody else's programs that each thread has started.
_ends: dict[int, Sequence[Any]] = {}


def execute(part: Embedded, run: Callable[[], Any]) -> Any:
    """Execute somebody else's program, and raise what stopped it, if it has ended by then."""
    if not part.spans:  # Other processes will not know before they are told by this program.
        for stop in filter(None, (block.sink.stop for block in here.blocks)):
            raise stop
    part.execution = execution = Execution()
    try:
        with execution.interruptible:
            out = run()
            _ends[threading.get_ident()] = ends()
            execution.interruptible.leave_running(out)
    except jax.errors.JaxRuntimeError:
        execution.raise_if_stopped()
        raise
    if execution.interruptible.asked():
        raise KeyboardInterrupt
    return out


class Runs:
    """Everything that is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._registered: dict[int, Run] = {}
        # Of somebody else's programs, and of such that nobody waits for any more.
        self._under_way = collections.OrderedDict[int, Run]()
        self._over = collections.OrderedDict[int, Run]()

    def begin(self, sink: Sink, unbounded: bool) -> Run:
        """Register an execution that is about to begin."""
        run = self._new(sink, unbounded)
        with self._lock:
            self._registered[run.number] = run
        return run

    def find(self, number: int, part: Embedded | None, unbounded: bool) -> Run:
        """Find the run with a number; 0 stands for one that was not registered, of a part."""
        with self._lock:  # All devices that ask for one get the same.
            places = self._registered, self._under_way, self._over
            run = next(filter(None, (runs.get(number) for runs in places)), None)
            if run is not None:
                return run
            run = self._new(None, unbounded)
            run.number = number or run.number
            _kept(self._under_way, run, KEPT_UNKNOWN)
        if part is not None and part.execution is not None:
            part.execution.identify(run)
        return run

    def _new(self, sink: Sink | None, unbounded: bool) -> Run:
        run = Run(next(self._numbers) & 0x7FFFFFFF, sink)
        run.unbounded = unbounded
        return run

    def ended(self, run: Run, is_over: bool = True) -> None:
        """A program has ended, or was not even started, or nobody waits for it any more."""
        gatherings = list(run.gatherings.values())
        lacks_devices = any(gathering.is_incomplete() for gathering in gatherings)
        with self._lock:
            was_under_way = is_over and self._under_way.pop(run.number, None) is not None
            was_registered = self._registered.pop(run.number, None) is not None
            # Somebody else's program asks once more to be told to stop, and if it has failed on one
            # device, others may still call.
            if was_under_way or (was_registered and lacks_devices):
                _kept(self._over, run, KEPT_RUNS)
        for gathering in gatherings:
            gathering.ended(is_over)

    def incomplete(self) -> list[Run]:
        """Programs of this thread in which not all devices have handed over what some have."""
        me = threading.get_ident()
        with self._lock:  # Those on one device have no gatherings.
            mine = [r for r in self._under_way.values() if r.gatherings and r.thread == me]
        return [run for run in mine if any(one.is_incomplete() for one in run.gatherings.values())]

    def abandoned(self, run: Run) -> None:
        """Nobody waits for a program any more, which may still run, or not even have begun."""
        with self._lock:
            _kept(self._under_way, run, KEPT_UNKNOWN)
        self.ended(run, is_over=False)

    def wait(self) -> None:
        """Wait for the programs that other threads have started."""
        with self._lock:
            started = [run.token for run in self._registered.values() if run.token is not None]
        started += [end for thread in [*_ends] for end in _ends.pop(thread, ())]
        for token in started:
            # An error of the program surfaces from its outputs. Here, it has just ended.
            with contextlib.suppress(RuntimeError):
                token.block_until_ready()


def _kept(runs: collections.OrderedDict[int, Run], run: Run, most: int) -> None:
    """Keep a run, and as many of the last ones."""
    runs[run.number] = run
    if len(runs) > most:
        runs.popitem(last=False)
