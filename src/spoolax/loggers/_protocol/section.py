"""One run among several that share a logger."""

from __future__ import annotations

from typing import Any

from ..._logdict.logdict import LogDict
from .logger import Logger
from .record import by_name


class Section(Logger[Any]):
    """Hands entries to a logger, with the name of the run in front of every key.

    For loggers of which there can be just one, such as a table in the terminal.

    Examples:
        >>> from spoolax.loggers import PrintLogger
        >>> with PrintLogger() as logger, Section(logger, "run-1") as section:
        ...     section.log({"x": 1.0}, 0)
        step 0  run-1/x=1
    """

    concurrent = True

    def __init__(self, logger: Logger[Any], name: str) -> None:
        self._logger, self._name = logger, name

    def log(self, state: Any, step: int) -> None:
        """Hand a state on."""
        if isinstance(state, LogDict):
            self._logger.log(state.prefix(f"{self._name}/"), step)
        else:
            self._logger.log({self._name: by_name(state)}, step)
