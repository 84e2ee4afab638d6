"""How many iterations a loop makes before it calls the host, to keep to a latency."""

from __future__ import annotations

import jax

from .reel import MOST_ROWS

GROWTH = 64  # How many times longer than the last chunk the next one may be.


class Pace:
    """How many iterations the loops of a program made between calls the last time."""

    def __init__(self) -> None:
        self._limits: dict[str, int] = {}

    def first(self) -> int:
        """How many to begin with: fewer than any loop reached, in case it has become slower."""
        if jax.process_count() > 1:
            return 1  # One process is called for all of them, so only that one knows the pace.
        return max(1, min(list(self._limits.values()), default=1) // 2)

    def next(self, loop: str, limit: int, made: int, elapsed: float | None, latency: float) -> int:
        """How many iterations the next chunk of a loop may have, given how many the last one made.

        That took `elapsed` seconds, if it is known.
        """
        if not made or elapsed is None:
            return limit
        ideal = made * latency / 2 / max(elapsed, 1e-9)
        limit = int(max(1, min(ideal, limit * GROWTH, MOST_ROWS)))
        self._limits[loop] = limit
        return limit
