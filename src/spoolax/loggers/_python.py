"""Entries as records of Python's `logging`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .._processes import Processes
from ..errors import LogValueError
from ._protocol.frequency import Frequency
from ._protocol.record import Record
from ._protocol.runs import RunInfo
from ._protocol.writer import Viewer, WritingLogger


class PythonLogger(WritingLogger):
    """Hands entries to a logger of Python's `logging`.

    The message has the step and the values as text. The record also has them as `record.step` and
    `record.data`, plus the attributes in `extra`, for handlers and formatters.

    Args:
        logger: The logger, or its name.
        level: A level, its name, or a function of the values that returns either.
        extra: More attributes for every record.
        view: Takes what to log out of the state.
        every: A number of steps, or a frequency.
        processes: Of several processes, whether the "first" writes, or "each".

    Examples:
        >>> import logging, sys
        >>> handler = logging.StreamHandler(sys.stdout)
        >>> handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        >>> log = logging.getLogger("doc.training")
        >>> log.addHandler(handler); log.setLevel("INFO")
        >>> def level(values):
        ...     return "WARNING" if values["loss"] > 10 else "INFO"
        >>> with PythonLogger(log, level) as logger:
        ...     logger.log({"loss": 1.0}, 0)
        ...     logger.log({"loss": 50.0}, 1)
        INFO step 0  loss=1
        WARNING step 1  loss=50
    """

    def __init__(
        self,
        logger: str | logging.Logger = "spoolax.run",
        level: int | str | Callable[[dict[str, Any]], int | str] = logging.INFO,
        *,
        extra: dict[str, Any] | None = None,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        fixed = None if callable(level) else _number(level)
        self._level = level if callable(level) else lambda values: fixed
        self._extra = extra or {}
        self.takes_entries = self.takes_entries and not callable(level)

    def write(self, record: Record) -> None:
        """Log a record."""
        number = _number(self._level(record.values))
        if self._logger.isEnabledFor(number):
            extra = {"step": record.step, "data": record.values, **self._extra}
            self._logger.log(number, "step %s  %s", record.step, record.line(), extra=extra)

    def fork(self, run: RunInfo) -> PythonLogger:
        """Each run has its number in `record.run`."""
        return self.remade(extra={**self._extra, "run": run.number})


def _number(level: Any) -> int:
    """A level as a number."""
    names = logging.getLevelNamesMapping()
    if isinstance(level, int):
        return level
    if isinstance(level, str) and level.upper() in names:
        return names[level.upper()]
    raise LogValueError(f"{level!r} is not a level of `logging`. Use one of {', '.join(names)}.")
