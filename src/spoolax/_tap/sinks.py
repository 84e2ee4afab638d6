"""Sinks: callbacks, how they want their entries, and what has become of them."""

from __future__ import annotations

import collections
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import StopRun

if TYPE_CHECKING:
    from .blocks import Block
    from .runs import Run

KEPT_STOPS = 1024

reports = logging.getLogger("spoolax")


class Sink:
    """A callback, how it wants its entries, and what has become of it."""

    def __init__(
        self,
        callback: Callable[[Any], Any],
        batch: bool = False,
        latency: float = 0.1,
        overflow: str = "wait",
        owner: Any = None,
    ) -> None:
        self.callback, self.batch = callback, batch
        self.latency, self.overflow = latency, overflow
        self.owner = owner  # Who raises what goes wrong, if it is not left to `flush`.
        # Whether batches may hold only what one `log` call logged in a row, so that the entries of
        # all calls come in order; else there are as few batches as possible.
        self.in_order = False
        # Whether what is posted may be queued with what was posted before, though something for
        # others came in between. That is cheaper, where nobody sees when exactly it gets it.
        self.gathers = False
        # Whether it gets things whatever else of the same owner waits, for its device, say.
        self.apart = False
        self.waits_for_processes = False  # It does not get on if the others do not.
        self.block: Block | None = None  # The one that it belongs to.
        self.behind: Sink | None = None  # The one in whose line it is.
        self.stop: StopRun | None = None  # It has seen enough.
        self.run: Run | None = None  # For what does not come from a program.
        self.called = False
        self.dropped = 0
        self.failures = 0
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        name = getattr(self.callback, "__qualname__", None) or type(self.callback).__qualname__
        return f"{getattr(self.callback, '__module__', '')}.{name}".lstrip(".")

    @property
    def line(self) -> Any:
        """What sinks have in common that get what they get in order, one after the other.

        These are sinks of the same owner, or callback, or object whose methods they call.
        """
        if self.apart:
            return id(self)
        if self.behind is not None:
            return self.behind.line
        if self.owner is not None:
            return id(self.owner)
        callback = self.callback
        while isinstance(callback, functools.partial):
            callback = callback.func
        return id(getattr(callback, "__self__", callback))

    @property
    def group(self) -> Any:
        """What lines have in common that go to the same loggers."""
        outer = None if self.apart else self.owner
        while (within := getattr(outer, "within", None)) is not None:
            outer = within
        return self.line if outer is None else id(outer)

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return f"The callback {self.name}" if self.owner is None else type(self.owner).__name__

    def call(self, run: Run, logs: Any) -> None:
        """Call the sink. What goes wrong is kept here, and does not reach the program."""
        self.called = True
        try:
            self.callback(logs)
        except StopRun as stop:
            self.stop, run.stop = stop, run.stop or stop
            run.done_with.add(self)
            failures.stopping(self, run)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Report the first error, and keep it until it is raised."""
        first = failures.first(self)
        first.failures += 1
        if first.error is None:
            first.error = error
            failures.add(first)
            reports.error(
                "%s failed. The program goes on, and it gets the entries that follow. The error "
                "will be raised %s.",
                self.title,
                "when it is closed"
                if getattr(self.owner, "is_open", False)
                else "by spoolax.flush()"
                if self.block is None
                else "at the end of the block",
                exc_info=error,
            )


class Failures:
    """Sinks that have failed, and stops that were asked for, until they are raised."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: list[Sink] = []
        self._stops: collections.deque[tuple[Sink, Run]] = collections.deque(maxlen=KEPT_STOPS)

    def first(self, sink: Sink) -> Sink:
        """The first sink of the same owner that has failed, if one has."""
        with self._lock:
            mine = (s for s in self._failed if s.owner is sink.owner is not None)
            return next(mine, sink)

    def add(self, sink: Sink) -> None:
        """A sink has failed for the first time."""
        with self._lock:
            self._failed.append(sink)

    def stopping(self, sink: Sink, run: Run) -> None:
        """A sink has asked for a run to stop."""
        with self._lock:
            self._stops.append((sink, run))

    def take(self) -> list[BaseException]:
        """Take out everything that went wrong, so that it is raised once."""
        with self._lock:
            failed, self._failed = self._failed, []
            late = self._take_late(lambda sink: sink.owner is None)
        return _errors_of(failed) + late[:1]

    def take_of(self, owner: Any) -> list[BaseException]:
        """Take out what went wrong in the sinks of an owner."""

        def is_mine(sink: Sink) -> bool:
            return owner is sink.owner or owner is sink.callback

        with self._lock:
            mine = list(filter(is_mine, self._failed))
            self._failed = [sink for sink in self._failed if sink not in mine]
            late = self._take_late(is_mine)
        return _errors_of(mine) + late

    def _take_late(self, is_mine: Callable[[Sink], bool]) -> list[BaseException]:
        """Take out requests to stop a program that was over by then, and has not raised them."""
        asked = [pair for pair in self._stops if is_mine(pair[0])]
        for pair in asked:
            self._stops.remove(pair)
        return [run.stop for _, run in asked if run.stop is not None and not run.stopped]


failures = Failures()
os.register_at_fork(after_in_child=failures.__init__)  # type: ignore[misc]


def _errors_of(failed: Sequence[Sink]) -> list[BaseException]:
    """The first error of each sink; it forgets it."""
    errors = []
    for sink in failed:
        assert sink.error is not None
        if sink.failures > 1:
            sink.error.add_note(f"{sink.title} failed {sink.failures} times.")
        errors.append(sink.error)
        sink.error, sink.failures = None, 0
    return errors


def raise_all(errors: Sequence[BaseException], message: str) -> None:
    """Raise the error, if there is one; if there are several, all of them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(message, errors)
