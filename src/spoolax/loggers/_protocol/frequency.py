"""When a logger acts: values that can be compared, shared and combined.

A frequency has no memory. It says whether a step is due, and is told how often the logger has
acted, and how long ago; a `Schedule` remembers that. To add one, derive from `Frequency`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._jax import processes
from ..._logdict.logdict import LogDict
from ...errors import LogTypeError, LogValueError


class Frequency:
    """Decides at which steps a logger acts. Combine them with `&` and `|`.

    Examples:
        >>> from spoolax.loggers import EveryNStep, Once, Steps
        >>> often_at_first = Steps(0, 5) | EveryNStep(10)
        >>> [step for step in range(25) if often_at_first.due(step)]
        [0, 1, 2, 3, 4, 10, 20]
        >>> Once() & Steps(5, 10)
        Once() & Steps(start=5, stop=10)
    """

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether to act at a step, having acted `acted` times, and `waited` seconds ago."""
        raise NotImplementedError

    def __and__(self, other: Frequency) -> Frequency:
        return _Both(self, other) if isinstance(other, Frequency) else NotImplemented

    def __or__(self, other: Frequency) -> Frequency:
        return _Either(self, other) if isinstance(other, Frequency) else NotImplemented


@dataclasses.dataclass(frozen=True)
class Once(Frequency):
    """The first time only.

    Examples:
        >>> Once().due(7, acted=0), Once().due(8, acted=1)
        (True, False)
    """

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether this is the first time."""
        del step, waited
        return acted == 0


@dataclasses.dataclass(frozen=True)
class EveryNStep(Frequency):
    """Steps that are a multiple of `n`.

    Examples:
        >>> [step for step in range(25) if EveryNStep(10).due(step)]
        [0, 10, 20]
    """

    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, (int, np.integer)) or isinstance(self.n, bool) or self.n < 1:
            raise LogValueError(f"`EveryNStep(n)` takes a positive integer, not {self.n!r}.")

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether the step is a multiple of `n`."""
        del acted, waited
        return step % self.n == 0


@dataclasses.dataclass(frozen=True)
class EverySeconds(Frequency):
    """The first time, and then whenever this many seconds have passed.

    Examples:
        >>> EverySeconds(5).due(100, acted=1, waited=4.9)
        False
    """

    seconds: float

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise LogValueError(
                f"`EverySeconds(s)` takes a positive number of seconds, not {self.seconds!r}."
            )

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether enough time has passed."""
        del step
        return acted == 0 or waited >= self.seconds


@dataclasses.dataclass(frozen=True)
class Steps(Frequency):
    """Steps from `start` up to, but not including, `stop` (None: without end).

    Examples:
        >>> [step for step in range(10) if Steps(3, 6).due(step)]
        [3, 4, 5]
    """

    start: float
    stop: float | None = None

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether the step is in the range."""
        del acted, waited
        return self.start <= step and (self.stop is None or step < self.stop)


@dataclasses.dataclass(frozen=True)
class LogSpaced(Frequency):
    """Step 0, and then `per_decade` steps in every power of ten, evenly spaced on a log scale.

    Examples:
        >>> [step for step in range(1001) if LogSpaced(3).due(step)]
        [0, 1, 2, 5, 10, 22, 46, 100, 215, 464, 1000]
    """

    per_decade: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.per_decade, int) or self.per_decade < 1:
            raise LogValueError(
                f"`per_decade` must be a positive integer, not {self.per_decade!r}."
            )

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        """Say whether the step is `10 ** (k / per_decade)`, rounded, for some k."""
        del acted, waited
        if step <= 1:
            return step >= 0
        # The logarithm is rounded, so look at the neighbours as well.
        near = round(math.log10(step) * self.per_decade)
        return any(round(10 ** (k / self.per_decade)) == step for k in (near - 1, near, near + 1))


@dataclasses.dataclass(frozen=True)
class _Both(Frequency):
    one: Frequency
    other: Frequency

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        return self.one.due(step, acted, waited) and self.other.due(step, acted, waited)

    def __repr__(self) -> str:
        return f"{_inside(self.one)} & {_inside(self.other)}"


@dataclasses.dataclass(frozen=True)
class _Either(Frequency):
    one: Frequency
    other: Frequency

    def due(self, step: int, acted: int = 0, waited: float = math.inf) -> bool:
        return self.one.due(step, acted, waited) or self.other.due(step, acted, waited)

    def __repr__(self) -> str:
        return f"{self.one} | {self.other}"


def _inside(frequency: Frequency) -> str:
    return f"({frequency})" if isinstance(frequency, _Either) else repr(frequency)


def is_by_step(frequency: Frequency) -> bool:
    """Say whether only the number of a step decides whether it is due, so that it is known ahead.

    Frequencies of others may look at anything.
    """
    return _consists_of(frequency, (EveryNStep, Steps, LogSpaced))


def _consists_of(frequency: Frequency, kinds: tuple[type[Frequency], ...]) -> bool:
    if isinstance(frequency, (_Both, _Either)):
        return all(_consists_of(one, kinds) for one in (frequency.one, frequency.other))
    return type(frequency) in kinds


def as_frequency(given: Frequency | int | None) -> Frequency:
    """Turn what a user gave as `every` into a frequency: one, a number of steps, or None."""
    if isinstance(given, Frequency):
        return given
    if given is None:
        return Steps(-math.inf)  # Every step.
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        return EveryNStep(int(given))
    hint = f" Write `{given.__name__}()`." if isinstance(given, type) else ""
    raise LogTypeError(
        f"How often to log is a number of steps, or a frequency such as `EverySeconds(5)`, not "
        f"{given!r}.{hint}"
    )


class Schedule:
    """A frequency in use: it remembers how often, and when last, a logger has acted.

    It does so for the entries of each `log` call, which are told apart by their `keys`; else the
    second of two calls might never be due.
    """

    def __init__(
        self, frequency: Frequency | int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.frequency = as_frequency(frequency)
        self._clock = clock
        # Most frequencies depend on the step alone, and then there is nothing to remember.
        self._remembers = type(self.frequency) not in (EveryNStep, Steps, LogSpaced)
        self._acted: dict[Any, tuple[int, float]] = {}

    @property
    def is_always(self) -> bool:
        """Whether every step is due."""
        return self.frequency == Steps(-math.inf)

    @property
    def is_by_step(self) -> bool:
        """Whether only its number decides whether a step is due."""
        return is_by_step(self.frequency)

    @property
    def is_alike(self) -> bool:
        """Whether processes that are asked for the same steps say the same."""
        return _consists_of(self.frequency, (EveryNStep, Steps, LogSpaced, Once))

    def wanted(self, step: int) -> bool:
        """Say whether to be asked at a step: always, if other processes might say otherwise.

        They run the same programs, which must not depend on it.
        """
        return self.due(step) if self.is_alike or processes.count() == 1 else True

    def due(self, step: int, keys: Any = None) -> bool:
        """Say whether to act at a step."""
        if not self._remembers:
            return self.frequency.due(step)
        acted, last = self._acted.get(keys, (0, -math.inf))
        return self.frequency.due(step, acted, self._clock() - last)

    def take(self, step: int, keys: Any = None) -> bool:
        """Say whether to act at a step; if so, remember that the logger has acted."""
        if not self.due(step, keys):
            return False
        self.taken(keys)
        return True

    def taken(self, keys: Any = None) -> None:
        """Remember that the logger has acted."""
        if self._remembers:
            acted, _ = self._acted.get(keys, (0, 0.0))
            self._acted[keys] = acted + 1, self._clock()


class OncePerStep:
    """Says whether an entry counts as a step: if several are logged in a step, only one does.

    Those with the same keys as the first entry of all count; none do besides states.
    """

    def __init__(self) -> None:
        self._first: tuple[Any] | None = None

    def __call__(self, state: Any) -> bool:
        if is_beside_states(state):
            return False
        keys = (entry_keys(state),)
        self._first = self._first or keys
        return self._first == keys


def is_beside_states(state: Any) -> bool:
    """Whether something is an entry of a step whose state is logged too."""
    return isinstance(state, LogDict) and state._beside_states


def entry_keys(state: Any) -> Any:
    """The keys of an entry, which tell the entries of one `log` call from those of others."""
    return tuple(state) if isinstance(state, LogDict) else None
