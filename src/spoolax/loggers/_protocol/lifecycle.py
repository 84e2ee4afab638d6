"""The life of a logger: it is opened once, used by one thread at a time, and closed once.

The three methods of a logger are wrapped with these functions, in the class that defines them. A
method that calls that of its base class, through `super()`, is checked only once.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..._jax import processes
from ..._log.unheard import logger_closed, logger_opened
from ..._processes import from_first, mark
from ..._tap.host import host
from ..._tap.sinks import failures, raise_all
from ...errors import LoggerStateError, LogTypeError, StopRun
from .ending import CutShort, Ending
from .left_open import adopt
from .runs import LoggerState

TURN = 0.001  # Seconds that the worker leaves to who waits for a logger.


def wrap_enter(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `__enter__`."""

    @functools.wraps(enter)
    def wrapped(self: Any) -> Any:
        if self._phase == "opening":  # A subclass calls its base class.
            return enter(self)
        if adopt(self):  # `init` has opened it.
            return self
        if self._phase != "new":
            raise LoggerStateError(misuse(self, "entered"))
        self._phase = "opening"
        try:
            entered = _opened(self, enter)
        except BaseException:
            self._phase = "closed"
            raise
        self._phase = "open"
        self._block = logger_opened(type(self).__name__, sys._getframe(1))
        return self if entered is None else entered

    return wrapped


def _opened(logger: Any, enter: Callable[[Any], Any]) -> Any:
    """Open a logger; of several processes, on those on which it acts.

    A run of `init` is opened by the worker, where the program that has asked for it calls the host.
    """
    if logger.processes != "first":
        if logger.processes == "each" and processes.count() > 1 and not host.is_worker():
            logger.named_apart(mark())
        return enter(logger)
    if host.is_worker():
        return None if logger.is_silent else enter(logger)
    entered: list[Any] = []

    def open_here() -> Any:
        entered.append(enter(logger))
        return logger.tells()

    is_here, told = from_first(logger.label, open_here)
    if is_here:
        return entered[0]
    logger.is_silent = True
    logger.hears(told)
    return None


def wrap_log(log: Callable[..., None]) -> Callable[..., None]:
    """Wrap `log`."""

    @functools.wraps(log)
    def wrapped(self: Any, state: Any, step: Any) -> None:
        if isinstance(state, LoggerState):
            self.log_spooled(state, step)
            return
        if type(step) is not int:
            step = _checked_step(step)
        if self._phase != "open":
            raise LoggerStateError(misuse(self, "used"))
        if self.is_silent:
            self.accompany(state, step)
        elif self.concurrent:
            log(self, state, step)
        else:
            with self._log_lock:
                log(self, state, step)

    return wrapped


class LoggerLock:
    """Lets one thread at a time into a logger: the user's, or the worker.

    The exception: while the user's thread holds it and waits for the worker, the worker gets in.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._wanted = 0  # How many of the user's threads wait for it.
        self._entered: list[bool] = []  # Whether the worker got the lock, for each time it entered.

    def __enter__(self) -> None:
        if host.is_worker():
            if self._wanted:  # The lock is not fair, and there may be much more to deliver.
                time.sleep(TURN)
            while not (taken := self._lock.acquire(timeout=0.02)):
                if self._holder in host.waiting_threads:
                    break
            self._entered.append(taken)
        else:
            self._wanted += 1
            try:
                self._lock.acquire()
            finally:
                self._wanted -= 1
            self._holder = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        if not host.is_worker() or self._entered.pop():
            self._lock.release()


def _checked_step(step: Any) -> int | float:
    """A step as a Python number."""
    is_number = isinstance(step, (int, float, np.number, np.ndarray, jax.Array))
    if not is_number or isinstance(step, (bool, jax.core.Tracer)) or np.ndim(step):
        raise LogTypeError(
            f"The step is a number, not {step!r} (of type {type(step).__name__}). Call "
            "`logger.log(state, step)`."
        )
    number = np.asarray(step).item()
    if number != number:
        raise LogTypeError(
            "The step is NaN, which is neither before nor after any other. Pass a number."
        )
    return int(number) if number == number // 1 else float(number)


def wrap_exit(leave: Callable[..., Any]) -> Callable[..., None]:
    """Wrap `__exit__`."""

    @functools.wraps(leave)
    def wrapped(self: Any, kind: Any, error: Any, trace: Any) -> None:
        if self._phase == "closing":
            leave(self, kind, error, trace)
            return
        if self._phase != "open":
            raise LoggerStateError(misuse(self, "closed"))
        logger_closed(type(self).__name__, self._block)
        errors: list[BaseException] = []

        def attempt(act: Callable[..., Any], *args: Any) -> Any:
            try:
                return act(*args)
            except BaseException as failure:
                errors.append(failure)

        self.left_with = error
        is_interrupted = isinstance(error, KeyboardInterrupt) and not host.is_worker()
        if not is_interrupted:
            attempt(host.settle)
        if is_interrupted or any(isinstance(e, KeyboardInterrupt) for e in errors):
            # Do not wait for programs any longer, but keep what they have logged, unless that is
            # interrupted as well.
            attempt(host.drain_or_drop)
        errors += failures.take_of(self)
        # A run that was asked to stop was interrupted, even if it ended before it could be stopped.
        stops = (e for e in errors if isinstance(e, (StopRun, KeyboardInterrupt)))
        stop = next(stops, self.cut_short)
        about = (type(stop), stop, None) if error is None and stop else (kind, error, trace)
        self._ending = Ending.of(about[1])
        for child in reversed(self._runs.values()):
            if child.is_open:
                attempt(child.__exit__, *about)
        self._phase = "closing"
        if self.is_silent:
            attempt(self.dismissed)
        else:
            attempt(leave, self, *about)  # Its result is ignored: no logger hides an error.
        self._phase = "closed"
        raise_failures(self, error, errors + failures.take_of(self))

    return wrapped


def raise_failures(
    logger: Any, run_error: BaseException | None, failures: list[BaseException]
) -> None:
    """Raise what went wrong in a logger; if the run failed, add it to that error as notes."""
    # A file that cannot be written often cannot be closed either, for the same reason.
    failures = list({(type(e), str(e)): e for e in reversed(failures)}.values())[::-1]
    if run_error is None or isinstance(run_error, CutShort):
        raise_all(failures, f"Several things went wrong in {type(logger).__name__}.")
    else:
        for failure in failures:
            if failure is not run_error:
                run_error.add_note(f"{type(logger).__name__} failed as well: {failure!r}")


def misuse(logger: Any, used: str) -> str:
    """Describe what is wrong with how a logger is used."""
    name = type(logger).__name__
    if logger._phase == "new":
        return (
            f"{name} was {used} before it was opened. Write "
            f"`with {logger._as_written} as logger:`, and use it inside that block."
        )
    if logger._phase == "closed":
        return (
            f"{name} was {used} after it was closed (or could not be opened). A logger can be used "
            f"only once: make a new {name} for the next `with`."
        )
    return f"{name} was {used} although it is already open. Use the one that is open."
