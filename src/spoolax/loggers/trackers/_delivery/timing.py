"""How long the thread that sends rows waits, for what."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Timing:
    """All times are in seconds."""

    first_pause: float = 0.25  # Before the first retry; then it doubles,
    longest_pause: float = 30.0  # up to this.
    disk_pause: float = 1.0  # Between two attempts to write to a full disk.
    tick: float = 1.0  # Between two looks at what counts as sent.
    gather: float = 0.2  # Between two rounds, for rows to gather.
    last_attempts: int = 4  # That may fail in a row, at the end.
    silence: float = 5.0  # At the end, before it says what it is waiting for.
    finish: float = 5.0  # For a tracker that was given up to write what it has in memory.
