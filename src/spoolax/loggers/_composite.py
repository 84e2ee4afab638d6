"""Several loggers as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .._logdict.logdict import LogDict
from .._tap.sinks import Sink, failures
from ..errors import LogTypeError, StopRun
from ._protocol.lifecycle import finish
from ._protocol.logger import Logger
from ._protocol.runs import RunInfo


class CompositeLogger(Logger[Any]):
    """Hands everything to several loggers.

    They are opened in order and closed in reverse. If one cannot be opened, those that have been
    are closed. If one fails to log, the others still get the entry, and the error is raised at the
    end. Anything that is a context manager with a method `log(state, step)` can be one of them.

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

    def __init__(self, *loggers: Any) -> None:
        for one in loggers:
            if not is_logger(one):
                raise LogTypeError(
                    f"{one!r} is no logger: those are context managers with a `log(state, step)`."
                )
        self.loggers = loggers
        self._sinks = [Sink(one, owner=one) for one in loggers]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for one in self.loggers:
                stack.enter_context(one)
            stack.pop_all()  # All are open, so leave them open.
        return self

    def log(self, state: Any, step: int) -> None:
        """Hand a state to all of them."""
        self._for_each(lambda one: one.log(state, step))

    def log_many(self, logs: LogDict) -> None:
        """Hand many entries to all of them."""
        self._for_each(lambda one: one(logs))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errors: list[BaseException] = []
        for one in reversed(self.loggers):
            errors += failures.take_of(one)  # What its `log` raised.
            try:
                one.__exit__(kind, error, trace)
            except BaseException as failure:
                errors.append(failure)
        finish(self, error, errors)

    def wants(self, step: int) -> bool:
        """Say whether any of them does."""
        return any(_wants(one, step) for one in self.loggers)

    def skipped(self, steps: int) -> None:
        """Tell all of them."""
        for one in self.loggers:
            if isinstance(one, Logger):
                one.skipped(steps)

    def fork(self, run: RunInfo) -> CompositeLogger:
        """Make a logger of the loggers of a run."""
        return CompositeLogger(
            *(one.fork(run) if isinstance(one, Logger) else Borrowed(one) for one in self.loggers)
        )

    @property
    def takes_many(self) -> bool:
        """Whether all of them do; else entries come one by one, in order."""
        return all(isinstance(one, Logger) and one.takes_many for one in self.loggers)

    def _for_each(self, act: Callable[[Any], Any]) -> None:
        stop = None
        for one, sink in zip(self.loggers, self._sinks, strict=True):
            try:
                act(one)
            except StopRun as request:
                stop = stop or request
            except Exception as error:
                sink.fail(error)
        if stop is not None:
            raise stop


MultiLogger = CompositeLogger


def is_logger(one: Any) -> bool:
    """Say whether something is a context manager with a method `log`."""
    return all(hasattr(one, name) for name in ("log", "__enter__", "__exit__"))


class Borrowed(Logger[Any]):
    """One that is open already, and is closed by somebody else."""

    concurrent = True

    def __init__(self, one: Any) -> None:
        self._one = one

    def log(self, state: Any, step: int) -> None:
        """Hand a state on."""
        self._one.log(state, step)

    def wants(self, step: int) -> bool:
        """Say whether it does."""
        return _wants(self._one, step)

    def skipped(self, steps: int) -> None:
        """Tell it, if it understands."""
        if isinstance(self._one, Logger):
            self._one.skipped(steps)


def _wants(one: Any, step: int) -> bool:
    try:
        return not isinstance(one, Logger) or one.wants(step)
    except Exception:  # Whatever is wrong with it, it must not keep the others from getting theirs.
        return True
