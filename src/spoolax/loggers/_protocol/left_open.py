"""Loggers that `init` opened, outside of any `with`: they are closed at exit, if not before.

A program that ended with an error has failed, and its loggers are closed with that error.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..._tap.sinks import reports

if TYPE_CHECKING:
    from .logger import Logger

_loggers: dict[int, Logger[Any]] = {}  # By identity.
_opening = threading.Lock()


def open_until_exit(logger: Logger[Any]) -> None:
    """Open a logger that nobody has opened yet."""
    with _opening:
        if logger._phase == "new":
            logger.__enter__()
            _loggers[id(logger)] = logger


def adopt(logger: Logger[Any]) -> bool:
    """Say whether a logger was left open; a `with` block that enters it now will close it."""
    return _loggers.pop(id(logger), None) is not None


def _close_all() -> None:
    error = _error_of_program()
    while _loggers:
        _, logger = _loggers.popitem()
        if logger.is_open:
            try:
                logger.__exit__(type(error) if error else None, error, None)
            except Exception as failure:
                reports.error(
                    "%s failed when it was closed.", type(logger).__name__, exc_info=failure
                )


def _error_of_program() -> BaseException | None:
    """What ended the program, unless it is a session in which errors do not end anything."""
    if hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


atexit.register(_close_all)  # After that of the worker, so it runs before.
os.register_at_fork(after_in_child=_loggers.clear)  # They belong to the parent.
