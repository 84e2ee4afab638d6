"""Try again after a failure, each time after a longer pause.

`Backoff` only keeps the books: who uses it makes the attempts, and says how they went. So it serves
a loop that sleeps between attempts as well as a thread that does something else meanwhile. The
clock and `sleep` are arguments.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable


@dataclasses.dataclass
class Backoff:
    """When to try again: after `first` seconds, then twice as many, up to `longest`.

    Examples:
        >>> backoff = Backoff(first=1.0, longest=3.0, clock=lambda: 0.0)
        >>> for _ in range(3):
        ...     backoff.failed(OSError("away"))
        ...     print(backoff.remaining())
        1.0
        2.0
        3.0
        >>> backoff.succeeded()
        >>> backoff.remaining(), backoff.failures
        (0.0, 0)
    """

    first: float
    longest: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    failures: int = dataclasses.field(default=0, init=False)  # Since it last worked.
    error: BaseException | None = dataclasses.field(default=None, init=False)  # The last one.
    _due: float = dataclasses.field(default=-math.inf, init=False)

    def failed(self, error: BaseException) -> None:
        """An attempt failed: the next one is due after a pause."""
        self.failures, self.error = self.failures + 1, error
        self._due = self.clock() + self.pause_after(self.failures)

    def succeeded(self) -> None:
        """An attempt worked: the next failure is the first one again."""
        self.failures, self.error = 0, None
        self.retry_now()

    def pause_after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        doublings = min(failures - 1, 64)  # A float could not hold what a day of failures makes.
        return min(self.first * 2.0**doublings, self.longest)

    def remaining(self) -> float:
        """Seconds until the next attempt is due."""
        return max(0.0, self._due - self.clock())

    def wait(self) -> None:
        """Sleep until the next attempt is due."""
        self.sleep(self.remaining())

    def retry_now(self) -> None:
        """Do not wait any longer."""
        self._due = -math.inf
