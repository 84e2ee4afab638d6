"""One run of a tracker, and the rows that are on their way to it.

They wait in a file, and are sent from there piece by piece. What fails is tried again, each time
after a longer pause; what the tracker will never take is put aside.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from ..._tap.sinks import reports
from ...errors import LogFileError
from ._rows import Row, from_line
from ._spill import Spill

PAUSES = (0.25, 30.0)  # Seconds after the first failure, and at most; in between they double.
AT_ONCE = 1000  # Rows that are read from a file.
FULL = 1.0  # Seconds between two attempts to write to a disk that is full.
MOMENT = 5.0  # Seconds for a tracker that is given up to write what it has.
MOST_HELD = 64 << 20  # Characters that are kept while a disk is full.


class Tracker(Protocol):
    """Something that rows can be sent to. It is used by one thread."""

    most: int  # Rows that it takes at once.

    def connect(self) -> None:
        """Open the run."""

    def send(self, rows: list[Row]) -> None:
        """Send rows."""

    def finish(self, failed: bool) -> None:
        """Close the run."""

    def refuses(self, error: Exception) -> bool:
        """Whether it will never take what it has just been given."""

    def about(self) -> dict[str, Any]:
        """What has to be known to go on with the run."""


class Channel:
    """One run of a tracker, and the rows that are on their way to it."""

    def __init__(self, tracker: Tracker, title: str, spill: Callable[[], Spill]) -> None:
        self.tracker, self.title = tracker, title
        self._make_spill = spill
        self.spill: Spill | None = None
        self.wanted = False  # Whether the run is to be opened, though there may be no rows.
        self.closing: bool | None = None  # If it is: whether the run has failed.
        self.connected = threading.Event()
        self.refusal: Exception | None = None  # The tracker will not open the run.
        self.over = threading.Event()
        self.refused = 0
        self._lines: list[str] = []  # The first that wait.
        self.aside: Spill | None = None  # The file they are in.
        self.failures = 0  # Since something last went well.
        self.error: BaseException | None = None  # The last one.
        self._not_before = 0.0  # When to try again.
        self.was_ended = False  # The tracker has closed the run, or there was none.
        self._abandoned = False
        self._held: list[str] = []  # What could not be written to the file,
        self._held_rows = self._held_size = 0
        self._not_written_before = 0.0  # and when to try that again.
        self._told = False
        self._writing = threading.Lock()
        self._busy = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many rows have not been sent."""
        return 0 if self.spill is None else self.spill.waiting

    def put(self, lines: str, count: int = 1) -> None:
        """Add rows. Those that cannot be written now are kept for the next time."""
        if self.over.is_set():
            lost = counted(count)
            raise LogFileError(f"{self.title} was closed before {lost} came: they are lost.")
        with self._writing:
            self._held.append(lines)
            self._held_rows += count
            self._held_size += len(lines)
            self._try_to_write()

    def _try_to_write(self) -> None:
        if time.monotonic() < self._not_written_before:
            return
        try:
            self._write_held()
        except OSError as error:
            self._not_written_before = time.monotonic() + FULL
            if self._held_size > MOST_HELD:
                raise self._lost(error) from error
            if not self._told:
                self._told = True
                reports.warning("%s cannot write to its file: %s.", self.title, error)

    def catch_up(self) -> None:
        """Try to write what could not be written."""
        if self.is_behind and self._writing.acquire(blocking=False):
            try:
                self._try_to_write()
            except LogFileError as error:
                reports.error("%s", error)
            finally:
                self._writing.release()

    def settle(self) -> None:
        """The last chance to write what could not be written; if there is none, say so."""
        with self._writing:
            if self._held:
                try:
                    self._write_held()
                except OSError as error:
                    raise self._lost(error) from error

    def _write_held(self) -> None:
        if self.spill is None:
            self.spill = self._make_spill()
            self._describe()
        self.spill.append("".join(self._held), self._held_rows)
        self._forget_held()

    def _forget_held(self) -> None:
        self._held, self._held_rows, self._held_size = [], 0, 0

    def _lost(self, reason: OSError) -> LogFileError:
        lost = counted(self._held_rows)
        self._forget_held()
        return LogFileError(
            f"{self.title} could not write {lost} to its file, from where they are sent, so they "
            f"are lost: {reason}. Make room there, or choose another place with `spill=`."
        )

    @property
    def is_behind(self) -> bool:
        """Whether there are rows that could not even be written to the file."""
        return self._held_rows > 0

    @property
    def has_work(self) -> bool:
        """Whether there is something to do."""
        if self.over.is_set() or self.refusal is not None:
            return False
        connecting = self.wanted and not self.connected.is_set()
        return connecting or self.waiting > 0 or self.closing is not None

    def pause(self, now: float) -> float:
        """Seconds until it should be tried."""
        return max(0.0, self._not_before - now)

    def hurry(self) -> None:
        """Try at once."""
        self._not_before = 0.0

    def work(self) -> None:
        """Do a piece of it, and remember what went wrong: it will be tried again."""
        with self._busy:
            try:
                self._work()
            except BaseException as error:  # Even those that would only end this thread.
                first, most = PAUSES
                pause = min(first * 2.0**self.failures, most)
                self.failures, self.error = self.failures + 1, error
                self._not_before = time.monotonic() + pause
            else:
                self.failures, self.error = 0, None
            if self._abandoned:
                self._end()

    def _work(self) -> None:
        if self._abandoned:
            return
        if not self.connected.is_set() and (self.wanted or self.waiting):
            self._connect()
        elif self.waiting:
            self._send()
        else:
            if self.connected.is_set():
                self.tracker.finish(bool(self.closing))
            self.was_ended = True
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
        self._describe()

    def _describe(self) -> None:
        """Have the file say that the run is there, whichever of them was there first."""
        if self.spill is not None and self.connected.is_set():
            self.spill.update(self.tracker.about())

    def _send(self) -> None:
        assert self.spill is not None
        if not self._lines:
            self._lines = self.spill.read(AT_ONCE)
            if not self._lines:
                raise LogFileError(f"{str(self.spill.path)!r} has fewer rows in it than before.")
        some = self._lines[: self.tracker.most]
        if len(some) > 1:
            try:
                self.tracker.send([self._row(line) for line in some])
            except Exception as error:
                if not self._refuses(error):
                    raise
            else:
                self._done(some)
                return
        for line in some:  # If it is one of many, find out which.
            self._send_one(line)

    def _send_one(self, line: str) -> None:
        try:
            self.tracker.send([self._row(line)])
        except Exception as error:
            if not self._refuses(error):
                raise
            self._put_aside(line, error)
        self._done([line])

    def _row(self, line: str) -> Row:
        try:
            return from_line(line)
        except Exception as error:
            raise NoRowError(f"{line[:80]!r} is no row") from error

    def _refuses(self, error: Exception) -> bool:
        return isinstance(error, NoRowError) or self.tracker.refuses(error)

    def _done(self, lines: list[str]) -> None:
        assert self.spill is not None
        self.spill.done(lines)
        del self._lines[: len(lines)]

    def _put_aside(self, line: str, error: Exception) -> None:
        assert self.spill is not None
        if self.aside is None:
            path = self.spill.path
            stem = path.stem.partition("-refused")[0]
            aside = path.with_name(f"{stem}-refused-{uuid.uuid4().hex[:6]}.jsonl")
            self.aside = Spill(aside, self.spill.run)
            reports.warning(
                "%s does not take a row: %s: %s. It is kept in %s, and so are others like it.",
                self.title,
                type(error).__name__,
                error,
                self.aside.path,
            )
        self.aside.append(line)
        self.refused += 1

    @property
    def reason(self) -> str:
        """What went wrong, to be put behind a sentence."""
        error = self.refusal or self.error
        return "" if error is None else f" ({type(error).__name__}: {error})"

    def _end(self) -> None:
        if not self.over.is_set():
            for spill in (self.spill, self.aside):
                if spill is not None:
                    spill.close()
            self.over.set()

    def abandon(self) -> None:
        """Leave what has not been sent where it is."""
        self._abandoned = True
        if self._busy.acquire(blocking=False):  # Else the thread is in a call that may not return.
            try:
                self._collect()
                self._end()
            finally:
                self._busy.release()
        elif self.spill is not None:
            self.spill.leave()

    def _collect(self) -> None:
        """Have the tracker write what it has in its memory; what it does not write waits again."""
        if self.over.is_set() or self.spill is None or not self.spill.tick():
            return
        closer = threading.Thread(target=self._close_run, daemon=True)
        closer.start()
        closer.join(MOMENT)
        if not self.was_ended:
            self.spill.take_back()

    def _close_run(self) -> None:
        with contextlib.suppress(Exception):
            self.tracker.finish(True)
            self.was_ended = True

    def tick(self) -> bool:
        """See what counts as sent by now, and what can be written; say whether to look again."""
        self.catch_up()
        is_late = self.spill is not None and self.spill.tick()
        return is_late or self.is_behind or self.has_work


class NoRowError(ValueError):
    """A line of a file is not what we have written there."""


def counted(rows: int) -> str:
    """How many rows, in words."""
    return "1 row" if rows == 1 else f"{rows} rows"
