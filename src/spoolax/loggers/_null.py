"""A logger that does nothing."""

from __future__ import annotations

from typing import Any

from ._protocol.logger import Logger


class NullLogger(Logger[Any]):
    """Does nothing, for when a logger is required but no log is wanted.

    Examples:
        >>> with NullLogger() as logger:
        ...     logger.log({"x": 1.0}, 0)
    """

    concurrent = True
    processes = "all"

    def log(self, state: Any, step: int) -> None:
        """Do nothing."""

    def wants(self, step: int) -> bool:
        """Say that it wants no step."""
        del step
        return False
