"""Several loggers as one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from .._logdict.logdict import LogDict
from .._rows import InLoop, RowView, any_of
from .._tap.sinks import Sink, failures
from ..errors import Converged, LogTypeError, StopRun
from ._protocol.frequency import is_beside_states
from ._protocol.lifecycle import raise_failures
from ._protocol.logger import Logger
from ._protocol.runs import RunInfo
from ._protocol.wrappers import AlreadyOpen, in_loop, is_logger, takes_entries, wants_step


class CompositeLogger(Logger[Any]):
    """Hands everything to several loggers.

    They are opened in order and closed in reverse order. If one cannot be opened, those that are
    open are closed. If one fails to log, the others still get the entry, and the error is raised at
    the end. Any context manager with a method `log(state, step)` can be one of them.

    Examples:
        >>> from spoolax.loggers import CompositeLogger, PrintLogger, RingBufferLogger
        >>> recent = RingBufferLogger(10)
        >>> with CompositeLogger(PrintLogger(every=2), recent) as logger:
        ...     for i in range(3):
        ...         logger.log({"x": i / 4}, i)
        step 0  x=0
        step 2  x=0.5
        >>> len(recent.records)
        3
    """

    concurrent = True
    processes = "all"  # Those that it passes everything on to decide.

    def __init__(self, *loggers: Any) -> None:
        for one in loggers:
            if not is_logger(one):
                raise LogTypeError(
                    f"{one!r} is not a logger, which is a context manager with `log(state, step)`."
                )
            if isinstance(one, Logger):
                one.within = self
        self.loggers = loggers
        self.takes_entries = any(map(takes_entries, loggers))
        self.keeps_order = any(isinstance(one, Logger) and one.keeps_order for one in loggers)
        self._sinks = [Sink(one, owner=one) for one in loggers]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for one in self.loggers:
                stack.enter_context(one)
            stack.pop_all()  # All are open, so leave them open.
        return self

    def log(self, state: Any, step: int) -> None:
        """Hand a state to all of them."""
        to_all = not is_beside_states(state)
        self._for_each(lambda one: (to_all or takes_entries(one)) and one.log(state, step))

    def log_many(self, logs: LogDict) -> None:
        """Hand a batch of entries to all of them."""
        self._for_each(lambda one: one(logs))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errors: list[BaseException] = []
        for one in reversed(self.loggers):
            try:
                if isinstance(one, Logger) or not isinstance(error, Converged):
                    one.__exit__(kind, error, trace)
                else:  # It would take it for a failure.
                    one.__exit__(None, None, None)
            except BaseException as failure:
                errors.append(failure)
            errors += failures.take_of(one)  # What its `log` raised, unless it has said so itself.
        raise_failures(self, error, errors)

    def wants(self, step: int) -> bool:
        """Say whether any of them wants the step."""
        return any(wants_step(one, step) for one in self.loggers)

    def in_loop(self, state: Any) -> InLoop:
        """Collect the views of all of them."""
        parts = [in_loop(one, state) for one in self.loggers]

        def failing_alone(view: RowView, sink: Sink) -> RowView:
            return view._replace(receive=functools.partial(_attempt, sink, view.receive))

        views = [
            failing_alone(view, sink)
            for part, sink in zip(parts, self._sinks, strict=True)
            for view in part.views
        ]
        return InLoop(views, any_of(part.wants_state for part in parts))

    def skipped(self, steps: int) -> None:
        """Tell all of them."""
        for one in self.loggers:
            if isinstance(one, Logger):
                one.skipped(steps)

    def fork(self, run: RunInfo) -> CompositeLogger:
        """Combine the loggers of a run."""
        return CompositeLogger(*forks(self.loggers, run))

    @property
    def takes_many(self) -> bool:
        """Whether all of them take batches; if not, entries come one by one, in order."""
        return all(isinstance(one, Logger) and one.takes_many for one in self.loggers)

    def _for_each(self, act: Callable[[Any], Any]) -> None:
        stop = None
        for one, sink in zip(self.loggers, self._sinks, strict=True):
            try:
                _attempt(sink, act, one)
            except StopRun as request:
                stop = stop or request
        if stop is not None:
            raise stop


def forks(loggers: Iterable[Any], run: RunInfo) -> list[Any]:
    """The loggers of a run of `init`, given those of all runs."""
    return [one.fork(run) if isinstance(one, Logger) else AlreadyOpen(one) for one in loggers]


def _attempt(sink: Sink, act: Callable[[Any], Any], what: Any) -> None:
    """Do something with one of several loggers. Only a request to stop concerns the others."""
    try:
        act(what)
    except StopRun:
        raise
    except Exception as error:
        sink.fail(error)


MultiLogger = CompositeLogger
