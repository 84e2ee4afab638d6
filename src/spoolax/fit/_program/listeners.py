"""Who sees the iterations of a fit: the terminal, a callback, a logger, its own history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._listen.drivers import wrapped
from ..._logdict.logdict import LogDict, from_series, joined
from ..._tap.blocks import hears_everything
from ..._tap.host import flush
from ..._tap.tap import tap
from ...errors import LogTypeError, LogValueError, MixedKeyError, StopRun
from ...loggers._protocol.logger import Logger
from .printer import Printer


class Listeners:
    """Everybody who listens to one fit."""

    def __init__(
        self, verbose: int, callback: Callable[[LogDict], Any] | None, logger: Any, history: bool
    ) -> None:
        if logger is not None:
            if not isinstance(logger, Logger):
                raise LogTypeError(f"`logger` must be a logger of spoolax, not {logger!r}.")
            logger.check_open()
        if verbose not in (0, 1, 2):
            raise LogValueError(f"`verbose` must be 0, 1 or 2, not {verbose!r}.")
        if callback is not None and not callable(callback):
            raise LogTypeError(f"`callback` must be a function of entries, not {callback!r}.")
        self._kept: list[LogDict] = []
        self._stop: StopRun | None = None
        self._keeps = history
        self._printer = Printer(verbose) if verbose else None
        self._callbacks = [one for one in (self._printer, callback) if one is not None]
        self._logger = logger
        if history:
            self._callbacks.append(self._kept.append)

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a program with all listeners around it; it may be called several times."""
        if self._logger is not None and not hears_everything(self._logger):
            run = self._logger.tap(run, keep_logs=True)
        if self._callbacks:  # All in one `tap`, or each fit would be a new function to it.
            only_kept = self._callbacks == [self._kept.append]
            run = tap(run, self._call_all, keep_logs=True, batch=only_kept)
        return wrapped(run)

    def _call_all(self, logs: LogDict) -> None:
        errors = []
        for callback in self._callbacks:
            try:
                callback(logs)
            except Exception as error:  # The others get the entry nevertheless.
                errors.append(error)
                self._stop = error if isinstance(error, StopRun) else self._stop
        if errors:
            raise errors[0]

    def check(self) -> None:
        """Wait until all entries have been delivered, and stop the fit if a listener wants that."""
        if self._callbacks or self._logger is not None:
            flush()
        if self._stop is not None:
            raise self._stop

    def finish(self) -> LogDict | None:
        """Wait until all entries have been delivered. Return the history, if it was kept."""
        if self._callbacks:
            flush()
        if self._printer is not None:
            self._printer.finish()
        if not self._keeps:
            return None
        try:
            return joined([_with_time(logs) for logs in self._kept])
        except MixedKeyError as error:
            error.add_note(
                "The model logs something under a name that the fit uses, too. Give it another."
            )
            raise


def _with_time(logs: LogDict) -> LogDict:
    """Make a series of each key, if they are those of a single entry."""
    return from_series({key: logs.series(key).with_time() for key in logs})
