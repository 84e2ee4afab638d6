"""Entries as records of Python's own `logging`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ._frequency import Frequency
from ._record import Record
from ._runs import RunInfo
from ._writing import Viewer, WritingLogger


class PythonLogger(WritingLogger):
    """Hands entries to a logger of the standard library.

    The message has the step and the values as text. The record has them as `record.step` and
    `record.data`, and what `extra` says, for handlers and formatters that want them.

    Args:
        logger: The logger, or its name.
        level: A level, its name, or a function of the values that returns one.
        extra: More attributes for every record.
        view: Takes what to log out of the state.
        every: A number of steps, or a frequency.

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
        logger: str | logging.Logger = "chiplog.run",
        level: int | str | Callable[[dict[str, Any]], int | str] = logging.INFO,
        *,
        extra: dict[str, Any] | None = None,
        view: Viewer = None,
        every: Frequency | int | None = None,
    ) -> None:
        super().__init__(view=view, every=every)
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level if callable(level) else lambda values: level
        self._extra = extra or {}

    def write(self, record: Record) -> None:
        """Log a record."""
        level = self._level(record.values)
        number = level if isinstance(level, int) else logging.getLevelNamesMapping()[level.upper()]
        if self._logger.isEnabledFor(number):
            extra = {"step": record.step, "data": record.values, **self._extra}
            self._logger.log(number, "step %s  %s", record.step, record.line(), extra=extra)

    def fork(self, run: RunInfo) -> PythonLogger:
        """Each run has its number in `record.run`."""
        return self.remade(extra={**self._extra, "run": run.number})
