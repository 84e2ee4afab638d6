"""The unsent rows of one run: in a file, and in memory for as long as the disk is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...._tap.sinks import reports
from ....errors import LogFileError
from ..._backoff import Backoff
from .timing import Timing
from .unsent_file import UnsentFile

MOST_HELD = 64 << 20  # Characters that are kept in memory.


class UnsentRows:
    """Rows that have not been sent.

    `create` makes their file, when the first row comes, and `on_create` is called once it is there.
    """

    def __init__(
        self,
        title: str,
        create: Callable[[], UnsentFile],
        on_create: Callable[[], None],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._create, self._on_create = title, create, on_create
        self.file: UnsentFile | None = None
        self._held: list[str] = []  # Lines that could not be written to the file.
        self._held_rows = self._held_size = 0
        self._backoff = Backoff(timing.disk_pause, timing.disk_pause, clock)
        self._warned = False
        self._lock = threading.Lock()

    @property
    def in_file(self) -> int:
        """How many rows the file has."""
        return 0 if self.file is None else self.file.waiting

    @property
    def in_memory(self) -> int:
        """How many rows could not even be written to the file."""
        return self._held_rows

    def put(self, lines: str, count: int) -> None:
        """Add `count` rows. If they cannot be written now, they are kept for the next attempt."""
        with self._lock:
            self._held.append(lines)
            self._held_rows += count
            self._held_size += len(lines)
            self._try_to_write()

    def retry(self) -> None:
        """Try again to write what could not be written, unless somebody is at it."""
        if self.in_memory and self._lock.acquire(blocking=False):
            try:
                self._try_to_write()
            except LogFileError as error:
                reports.error("%s", error)
            finally:
                self._lock.release()

    def write_all(self) -> None:
        """Write what could not be written; raise an error if it still cannot, as it is lost."""
        with self._lock:
            if self._held:
                try:
                    self._write()
                except OSError as error:
                    raise self._lost(error) from error

    def _try_to_write(self) -> None:
        if self._backoff.remaining():
            return
        try:
            self._write()
        except OSError as error:
            self._backoff.failed(error)
            if self._held_size > MOST_HELD:
                raise self._lost(error) from error
            if not self._warned:
                self._warned = True
                reports.warning("%s cannot write to its file: %s.", self._title, error)

    def _write(self) -> None:
        if self.file is None:
            self.file = self._create()
            self._on_create()
        self.file.append("".join(self._held), self._held_rows)
        self._backoff.succeeded()
        self._forget_held()

    def _forget_held(self) -> None:
        self._held, self._held_rows, self._held_size = [], 0, 0

    def _lost(self, reason: OSError) -> LogFileError:
        lost = rows_text(self._held_rows)
        self._forget_held()
        return LogFileError(
            f"{self._title} could not write {lost} to its file, from where they are sent, so they "
            f"are lost: {reason}. Make room there, or choose another place with `spill=`."
        )


def rows_text(count: int) -> str:
    """A number of rows as text: "1 row", "2 rows"."""
    return "1 row" if count == 1 else f"{count} rows"
