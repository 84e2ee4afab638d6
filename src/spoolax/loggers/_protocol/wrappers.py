"""Loggers that pass what they get on to another logger."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..._logdict.logdict import LogDict
from ..._rows import InLoop, Wants
from .ending import CutShort
from .frequency import Frequency, OncePerStep, Schedule, entry_keys
from .logger import Logger
from .record import by_name
from .runs import RunInfo


class ThinnedLogger(Logger[Any]):
    """What `logger.every(frequency)` returns: a logger that gets only some of the steps.

    Examples:
        >>> from spoolax.loggers import EveryNStep, PrintLogger
        >>> with ThinnedLogger(PrintLogger(), EveryNStep(2)) as logger:
        ...     for i in range(3):
        ...         logger.log({"x": i}, i)
        step 0  x=0
        step 2  x=2
    """

    concurrent = True
    processes = "all"  # Those that it passes everything on to decide.

    def __init__(self, logger: Logger[Any], frequency: Frequency | int) -> None:
        self.logger, self._schedule = logger, Schedule(frequency)
        logger.within = self
        self._opened: Logger[Any] = logger
        self._counts_as_step, self.takes_entries = OncePerStep(), logger.takes_entries

    def __enter__(self) -> Self:
        if self.logger.is_open:
            self._opened = AlreadyOpen(self.logger)
        self._opened.__enter__()
        return self

    @property
    def _as_written(self) -> str:
        """How it is made, for messages."""
        return f"{self.logger._as_written}.every(...)"

    def log(self, state: Any, step: int) -> None:
        """Pass the state on if the step is due."""
        counts = self._counts_as_step(state)
        if self.logger.wants(step) and self._schedule.take(step, entry_keys(state)):
            self.logger.log(state, step)
        elif counts:
            self.logger.skipped(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._opened.__exit__(kind, error, trace)

    def wants(self, step: int) -> bool:
        """Say whether the step is due."""
        return self._schedule.wanted(step) and self.logger.wants(step)

    def in_loop(self, state: Any) -> InLoop:
        """Thin out the views of the logger, if it is known ahead which steps are due."""
        if not self._schedule.is_by_step:
            return super().in_loop(state)
        due, views, wants_state = self._schedule.frequency.due, *self.logger.in_loop(state)

        def thinned(wants: Wants) -> Wants:
            return lambda step: due(step) and wants(step)

        views = [view._replace(is_due=thinned(view.is_due)) for view in views]
        return InLoop(views, thinned(wants_state))

    def skipped(self, steps: int) -> None:
        """Pass it on."""
        self.logger.skipped(steps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.logger, name)  # Such as the records of a ring buffer.

    def fork(self, run: RunInfo) -> ThinnedLogger:
        """Thin out the logger of a run in the same way."""
        return ThinnedLogger(self.logger.fork(run), self._schedule.frequency)


class PrefixedLogger(Logger[Any]):
    """Puts a prefix in front of every key, so that several runs can share one logger.

    For loggers of which there can be only one, such as a table in the terminal.

    Examples:
        >>> from spoolax.loggers import PrintLogger
        >>> with PrintLogger() as logger, PrefixedLogger(logger, "run-1") as run:
        ...     run.log({"x": 1.0}, 0)
        step 0  run-1/x=1
    """

    concurrent = True
    processes = "all"  # Those that it passes everything on to decide.

    def __init__(self, logger: Logger[Any], prefix: str) -> None:
        self._logger, self.prefix = logger, prefix

    def log(self, state: Any, step: int) -> None:
        """Pass a state on."""
        if isinstance(state, LogDict):
            self._logger.log(state.prefix(f"{self.prefix}/"), step)
        else:
            self._logger.log({self.prefix: by_name(state)}, step)


class AlreadyOpen(Logger[Any]):
    """Uses a logger that somebody else has opened and will close. It need not be a `Logger`.

    Examples:
        >>> from spoolax.loggers import PrintLogger
        >>> with PrintLogger() as logger:
        ...     with AlreadyOpen(logger) as same:
        ...         same.log({"x": 1.0}, 0)
        ...     logger.log({"x": 2.0}, 1)
        step 0  x=1
        step 1  x=2
    """

    concurrent = True
    processes = "all"  # Those that it passes everything on to decide.

    def __init__(self, logger: Any) -> None:
        self._logger, self.takes_entries = logger, takes_entries(logger)
        self.within = logger if isinstance(logger, Logger) else None

    def log(self, state: Any, step: int) -> None:
        """Pass a state on."""
        self._logger.log(state, step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An exception will reach whoever has opened it.
        if isinstance(self._logger, Logger) and (error is None or isinstance(error, CutShort)):
            self._logger.cut_short = error

    def wants(self, step: int) -> bool:
        """Say whether the logger wants the step."""
        return wants_step(self._logger, step)

    def in_loop(self, state: Any) -> InLoop:
        """Say what the logger says."""
        return in_loop(self._logger, state)

    def skipped(self, steps: int) -> None:
        """Pass it on to a `Logger`; others do not count steps."""
        if isinstance(self._logger, Logger):
            self._logger.skipped(steps)


def is_logger(one: Any) -> bool:
    """Say whether something is a context manager with a method `log`."""
    return all(hasattr(one, name) for name in ("log", "__enter__", "__exit__"))


def takes_entries(logger: Any) -> bool:
    """Say whether a logger, which need not be a `Logger`, takes entries besides states."""
    return bool(getattr(logger, "takes_entries", False))


def wants_step(logger: Any, step: int) -> bool:
    """Say whether a logger, which need not be a `Logger`, wants the state after a step."""
    try:
        return not isinstance(logger, Logger) or logger.wants(step)
    except Exception:  # A logger whose `wants` fails must not keep the others from the step.
        return True


def in_loop(logger: Any, state: Any) -> InLoop:
    """Say how a loop can take what a logger logs, which need not be a `Logger`."""
    if not isinstance(logger, Logger):
        return InLoop([], lambda step: True)
    views, _ = known = logger.in_loop(state)
    return known if views else InLoop([], lambda step: wants_step(logger, step))
