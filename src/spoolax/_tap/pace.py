"""How many iterations a loop makes before it calls the host, to keep to a latency."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

GROWTH = 64  # How many times longer than the last chunk the next one may be.
MOST_LOOPS = 30  # Those that have a pace of their own; others share the last.
UNLIMITED = (1 << 31) - 1  # Iterations.
UNKNOWN = 0  # Then the program goes by its own guess.
SHORT = 0.05  # Seconds.
# How many times longer than a pause the iterations between them should take, where a pause is an
# exchange between processes: that may take longer than somebody wants to wait for entries.
AT_LEAST = 4


def places(loops: Sequence[str]) -> dict[str, int]:
    """Say where among the orders of a program the limits of its loops are."""
    return {loop: 2 + min(i, MOST_LOOPS - 1) for i, loop in enumerate(loops)}


def entered_once(places: Mapping[str, int]) -> frozenset[str]:
    """Loops whose limit is the iteration at which they are to pause, not a number of iterations.

    Those that are entered once in a run, and have a place of their own.
    """
    used = collections.Counter(places.values())
    return frozenset(loop for loop, i in places.items() if "/" not in loop and used[i] == 1)


class Pace:
    """How long a program took the last time, and what its loops made of that."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}  # Of the limits of its loops among its orders.
        self.awaited = False  # Somebody has to wait for its end, however short it is.
        self._limits: dict[str, int] = {}  # How many iterations they made between calls.
        self._totals: Mapping[str, int] = {}  # How many they made in all.
        self._chunks: dict[str, tuple[int, float]] = {}  # The last one: iterations and seconds.
        self._pauses: dict[str, float] = {}  # How many of the seconds the pause by itself took.
        self._seconds: float | None = None
        self._ended = 0.0
        self._begin: tuple[float, np.ndarray] | None = None  # For a latency, until it changes.

    @property
    def is_short(self) -> bool:
        """Whether the program is over so soon that nobody has to wait for it, nor would stop it."""
        return self._seconds is not None and self._seconds < SHORT and not self.awaited

    def begin(self, run: int, latency: float) -> np.ndarray:
        """What a program gets, and later, changed, as the answer of the host: its orders.

        They are the number of the run (0 until the host has given it one, less if it is to stop),
        whether nothing may wait for the end of the program, and how many iterations the first chunk
        of each loop may have.
        """
        if self._begin is None or self._begin[0] != latency:
            self._begin = latency, self._first(latency)
        begin = self._begin[1].copy()
        begin[0] = run
        return begin

    def _first(self, latency: float) -> np.ndarray:
        begin = np.ones(2 + MOST_LOOPS, np.int32)
        if jax.process_count() > 1:
            # One process is called for all of them, so only that one knows the pace.
            begin[1:] = 0, *[UNKNOWN] * MOST_LOOPS
            return begin
        if latency == math.inf:
            begin[1:] = 0, *[UNLIMITED] * MOST_LOOPS
            return begin
        if self._seconds is not None and self._seconds < latency / 2:
            # It is over before anybody who waits so long would see entries.
            begin[1] = 0
            slack = latency / 2 / max(self._seconds, 1e-9)
            limits = {loop: int(1 + total * slack) for loop, total in self._totals.items()}
        else:  # Fewer than it reached, in case it has become slower.
            limits = {loop: limit // 2 for loop, limit in self._limits.items()}
        for loop, place in self.places.items():
            begin[place] = max(1, min(limits.get(loop, 1), UNLIMITED))
        return begin

    def next(self, loop: str, limit: int, made: int, elapsed: float, latency: float) -> int:
        """How many iterations the next chunk of a loop may have, given how many the last one made.

        That took `elapsed` seconds.
        """
        ideal = made * latency / 2 / max(elapsed, 1e-9)
        if jax.process_count() > 1:
            pause = self._pause(loop, made, elapsed)
            ideal = max(ideal, min(AT_LEAST * pause * made / max(elapsed - pause, 1e-9), 2 * limit))
        limit = int(min(max(1, ideal), limit * GROWTH, UNLIMITED))
        self._limits[loop] = limit
        self._begin = None
        return limit

    def _pause(self, loop: str, made: int, elapsed: float) -> float:
        """How long a pause by itself takes: what shows when chunks are of different lengths."""
        before, then = self._chunks.get(loop, (0, 0.0))
        self._chunks[loop] = made, elapsed
        if not before / 2 < made < before * 2:
            each = max(0.0, (elapsed - then) / (made - before))
            self._pauses[loop] = max(0.0, elapsed - made * each)
        return self._pauses.get(loop, 0.0)

    def ended(self, begun: float, ended: float, totals: Mapping[str, int]) -> None:
        """A program has ended, with so many iterations of its loops.

        It may have had to wait for the one before it.
        """
        seconds, self._ended = ended - max(begun, self._ended), ended
        if self._seconds is None or totals != self._totals:
            self._seconds, self._totals, self._begin = seconds, totals, None
        elif not self._seconds / 2 < seconds < self._seconds * 2:
            # One that was held up changes little.
            self._seconds, self._begin = (seconds + self._seconds) / 2, None
