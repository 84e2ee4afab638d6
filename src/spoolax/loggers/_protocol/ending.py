"""How a run ended: the one notion of it that loggers, files and trackers share."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...errors import Converged, StopRun

Status = Literal["finished", "interrupted", "failed"]
_WORSE: tuple[Status, ...] = ("finished", "interrupted", "failed")


class Ending(NamedTuple):
    """How a run ended, and why, if it did not just come to its end.

    - "finished": it came to its end, or `spoolax.Converged` was raised.
    - "interrupted": Ctrl-C (`KeyboardInterrupt`) or `spoolax.StopRun` stopped it.
    - "failed": anything else was raised.

    Examples:
        >>> from spoolax.loggers import NullLogger
        >>> try:
        ...     with NullLogger() as logger:
        ...         raise KeyboardInterrupt
        ... except KeyboardInterrupt:
        ...     print(logger.ending.status)
        interrupted
    """

    status: Status
    reason: str = ""

    @staticmethod
    def of(error: BaseException | None) -> Ending:
        """How a run ended out of which an error came, or None."""
        if error is None:
            return Ending("finished")
        if isinstance(error, BaseExceptionGroup):
            return max(map(Ending.of, error.exceptions), key=lambda end: _WORSE.index(end.status))
        if isinstance(error, Converged):
            return Ending("finished", str(error))
        is_stop = isinstance(error, (StopRun, KeyboardInterrupt))
        if is_stop and str(error):
            return Ending("interrupted", str(error))
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Ending("interrupted" if is_stop else "failed", reason)


class CutShort(BaseException):
    """What ended a run early although its driver returns: loggers are told, and nobody sees it."""


class Interruption(CutShort, KeyboardInterrupt):
    """Ctrl-C, after which the driver returns what it has."""


class GoalReached(CutShort, Converged):
    """The run has come where it was to go."""
