"""One run of a tracker, and the rows on their way to it.

They are sent piece by piece from the file they wait in. What fails is tried again after a pause,
each time a longer one; what the tracker will never accept is put aside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...._threads import start_thread
from ....errors import LogFileError
from ..._backoff import Backoff
from ..._protocol.ending import Ending
from .._rows.row import TrackerRow, row_from_json
from .refused_rows import RefusedRows
from .timing import Timing
from .unsent_file import UnsentFile
from .unsent_rows import UnsentRows, rows_text

READ_AHEAD = 1000  # Rows to read from the file at once.


class Tracker(Protocol):
    """Something that rows can be sent to. Only one thread uses it."""

    most: int  # Rows that it takes at once.

    def connect(self) -> None:
        """Open the run."""

    def send(self, rows: list[TrackerRow]) -> None:
        """Send rows."""

    def finish(self, ending: Ending) -> None:
        """Close the run, which ended like this."""

    def refuses(self, error: Exception) -> bool:
        """Whether it will never accept what it has just been given."""

    def about(self) -> dict[str, Any]:
        """What has to be known to resume the run."""


class Channel:
    """One run of a tracker, and the rows on their way to it.

    `create_file` makes the file that they wait in.
    """

    def __init__(
        self,
        tracker: Tracker,
        title: str,
        create_file: Callable[[], UnsentFile],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tracker, self.title, self._timing = tracker, title, timing
        self.unsent = UnsentRows(title, create_file, self._update_header, timing, clock)
        self.refused = RefusedRows(title)
        self.backoff = Backoff(timing.first_pause, timing.longest_pause, clock)
        self.wanted = False  # Whether to open the run, though there may be no rows.
        self.closing: Ending | None = None  # If it is: how the run ended.
        self.connected = threading.Event()
        self.refusal: Exception | None = None  # Why the tracker will never open the run.
        self.over = threading.Event()
        self.was_finished = False  # The tracker has closed the run, or there was none.
        self._next_lines: list[str] = []  # The first unsent lines, if they were read already.
        self._abandoned = False
        self._busy = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many rows in the file have not been sent."""
        return self.unsent.in_file

    @property
    def reason(self) -> str:
        """What went wrong, in parentheses, to end a sentence with."""
        error = self.refusal or self.backoff.error
        return "" if error is None else f" ({type(error).__name__}: {error})"

    @property
    def has_work(self) -> bool:
        """Whether there is something to do."""
        if self.over.is_set() or self.refusal is not None:
            return False
        is_opening = self.wanted and not self.connected.is_set()
        return is_opening or self.waiting > 0 or self.closing is not None

    def put(self, lines: str, count: int = 1) -> None:
        """Add rows, which are lines of JSON."""
        if self.over.is_set():
            raise LogFileError(
                f"{self.title} was closed before {rows_text(count)} came: they are lost."
            )
        self.unsent.put(lines, count)

    def work(self) -> None:
        """Do a piece of work. If it fails, it is tried again later."""
        with self._busy:
            try:
                self._work()
            except BaseException as error:  # Even those that would only end this thread.
                self.backoff.failed(error)
            else:
                self.backoff.succeeded()
            if self._abandoned:
                self._end()

    def tick(self) -> bool:
        """See what counts as sent by now, and what can be written; say whether to look again."""
        self.unsent.retry()
        file = self.unsent.file
        is_late = file is not None and file.confirm_sent()
        return is_late or self.unsent.in_memory > 0 or self.has_work

    def close(self, ending: Ending) -> None:
        """The run has ended like this. The file says so too, for whoever sends what is left."""
        self.closing = ending
        if self.unsent.file is not None:
            with contextlib.suppress(OSError):
                self.unsent.file.update_run(self.tracker.about())

    def abandon(self) -> None:
        """Leave unsent rows where they are."""
        self._abandoned = True
        if self._busy.acquire(blocking=False):
            try:
                self._save_unconfirmed()
                self._end()
            finally:
                self._busy.release()
        elif self.unsent.file is not None:  # The thread is in a call that may not return.
            self.unsent.file.give_up()

    def _work(self) -> None:
        if self._abandoned:
            return
        if not self.connected.is_set() and (self.wanted or self.waiting):
            self._connect()
        elif self.waiting:
            self._send()
        else:
            if self.connected.is_set():
                self.tracker.finish(self.closing or Ending("finished"))
            self.was_finished = True
            self._end()

    def _connect(self) -> None:
        try:
            self.tracker.connect()
        except Exception as error:
            if not self.tracker.refuses(error):
                raise
            self.refusal = error
            return
        self.connected.set()
        self._update_header()

    def _update_header(self) -> None:
        """Have the file say that the run exists, whichever of the two was there first."""
        if self.unsent.file is not None and self.connected.is_set():
            self.unsent.file.update_run(self.tracker.about())

    def _send(self) -> None:
        assert self.unsent.file is not None
        if not self._next_lines:
            self._next_lines = self.unsent.file.read(READ_AHEAD)
            if not self._next_lines:
                path = str(self.unsent.file.path)
                raise LogFileError(f"{path!r} has fewer rows in it than before.")
        lines = self._next_lines[: self.tracker.most]
        if len(lines) > 1:
            try:
                self.tracker.send([_row(line) for line in lines])
            except Exception as error:
                if not self._refuses(error):
                    raise
            else:
                self._mark_sent(lines)
                return
        for line in lines:  # If one of many is refused, find out which.
            self._send_one(line)

    def _send_one(self, line: str) -> None:
        assert self.unsent.file is not None
        try:
            self.tracker.send([_row(line)])
        except Exception as error:
            if not self._refuses(error):
                raise
            self.refused.add(line, self.unsent.file, error)
        self._mark_sent([line])

    def _mark_sent(self, lines: list[str]) -> None:
        assert self.unsent.file is not None
        self.unsent.file.mark_sent(lines)
        del self._next_lines[: len(lines)]

    def _refuses(self, error: Exception) -> bool:
        return isinstance(error, NotARowError) or self.tracker.refuses(error)

    def _save_unconfirmed(self) -> None:
        """Have the tracker write what it has in memory; if it does not, those rows are unsent."""
        file = self.unsent.file
        if self.over.is_set() or file is None or not file.confirm_sent():
            return
        finisher = start_thread(self._finish_failed, "spoolax-finisher")
        if finisher is None:
            self._finish_failed()
        else:
            finisher.join(self._timing.finish)
        if not self.was_finished:
            file.take_back()

    def _finish_failed(self) -> None:
        with contextlib.suppress(Exception):
            self.tracker.finish(Ending("failed", "Not everything could be sent."))
            self.was_finished = True

    def _end(self) -> None:
        if not self.over.is_set():
            for file in (self.unsent.file, self.refused.file):
                if file is not None:
                    file.close()
            self.over.set()


class NotARowError(ValueError):
    """A line of a file is not what we wrote there."""


def _row(line: str) -> TrackerRow:
    try:
        return row_from_json(line)
    except Exception as error:
        raise NotARowError(f"{line[:80]!r} is not a row") from error
