"""An invariant that stops the run when it is violated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._logdict.logdict import LogDict
from ..errors import LogTypeError, StopRun
from ._protocol.frequency import Frequency, Schedule, entry_keys
from ._protocol.logger import Logger
from ._protocol.record import by_name, make_record, read


class CheckLogger(Logger[Any]):
    """Stops the run when a predicate of the state is false: `log` raises `StopRun`.

    In a Python loop, the call of `log` raises it. A program that is streamed through `tap` stops at
    its next chunk of entries, and the call of the program raises it.

    Args:
        predicate: A function of the state, or of an entry, that is true as long as all is well.
        every: A number of steps, or a frequency. Checking the state means waiting for it.
        message: What is wrong when it is false. By default the name of the predicate.
        keys: Check only entries with these keys.

    Examples:
        >>> import spoolax
        >>> def energy_is_bounded(state):
        ...     return state["energy"] < 10
        >>> try:
        ...     with CheckLogger(energy_is_bounded) as logger:
        ...         for i in range(100):
        ...             logger.log({"energy": 2.0**i}, i)
        ... except spoolax.StopRun as stop:
        ...     print(stop)
        At step 4, `energy_is_bounded` does not hold: energy=16
    """

    processes = "all"  # What is checked in a Python loop is the same on all of them.

    def __init__(
        self,
        predicate: Callable[[Any], Any],
        every: Frequency | int | None = None,
        *,
        message: str | None = None,
        keys: tuple[str, ...] | str = (),
    ) -> None:
        if not callable(predicate):
            raise LogTypeError(f"`predicate` must be a function of the state, not {predicate!r}.")
        self._predicate, self._schedule, self._message = predicate, Schedule(every), message
        self._keys = (keys,) if isinstance(keys, str) else tuple(keys)

    def log(self, state: Any, step: int) -> None:
        """Check a state."""
        if isinstance(state, LogDict) and not all(key in state for key in self._keys):
            return
        if self._schedule.take(step, entry_keys(state)) and not self._holds(state):
            name = getattr(self._predicate, "__name__", repr(self._predicate))
            what = self._message or f"`{name}` does not hold"
            raise StopRun(f"At step {step}, {what}: {_describe(state, step)}")

    def wants(self, step: int) -> bool:
        """Say whether `every` includes the step."""
        return self._schedule.wanted(step)

    def _holds(self, state: Any) -> bool:
        verdict = np.asarray(self._predicate(state))
        if isinstance(state, LogDict) and state and verdict.ndim:
            mask = np.asarray(state.series(next(iter(state))).mask)
            if mask.shape == verdict.shape[: mask.ndim]:
                verdict = verdict[mask]  # Leave out lanes that did not log.
        return bool(verdict.all())


def _describe(state: Any, step: int) -> str:
    return make_record(state, read(by_name(state)), step).line()
