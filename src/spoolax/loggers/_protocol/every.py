"""A logger that gets only some of the steps."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from .frequency import Frequency, OfOneKind, Schedule, kind_of
from .logger import Logger
from .runs import RunInfo


class Every(Logger[Any]):
    """What `logger.every(frequency)` returns.

    Examples:
        >>> from spoolax.loggers import EveryNStep, PrintLogger
        >>> with Every(PrintLogger(), EveryNStep(2)) as logger:
        ...     for i in range(3):
        ...         logger.log({"x": i}, i)
        step 0  x=0
        step 2  x=2
    """

    concurrent = True

    def __init__(self, logger: Logger[Any], frequency: Frequency | int) -> None:
        self.logger, self._schedule = logger, Schedule(frequency)
        self._counts_as_step = OfOneKind()

    def __enter__(self) -> Self:
        self.logger.__enter__()
        return self

    def log(self, state: Any, step: int) -> None:
        """Hand the state on, if the step is due."""
        counts = self._counts_as_step(state)
        if self.logger.wants(step) and self._schedule.take(step, kind_of(state)):
            self.logger.log(state, step)
        elif counts:
            self.logger.skipped(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self.logger.__exit__(kind, error, trace)

    def wants(self, step: int) -> bool:
        """Say whether the step is due."""
        return self._schedule.due(step) and self.logger.wants(step)

    def skipped(self, steps: int) -> None:
        """Tell the logger."""
        self.logger.skipped(steps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.logger, name)  # Such as the records of a ring buffer.

    def fork(self, run: RunInfo) -> Every:
        """Make the same of the logger of a run."""
        return Every(self.logger.fork(run), self._schedule.frequency)
