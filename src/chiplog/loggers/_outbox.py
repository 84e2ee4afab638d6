"""The thread that sends rows to a tracker, and what it does if the tracker is not there.

Trackers may be slow, be away for an hour, or raise whatever they like. All of that happens on this
thread, which takes its rows from files, so the program does not notice. A logger and its runs have
one of them together.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Protocol

from .._host import logger as reports
from ..errors import LogFileError, UnsentWarning
from ._rows import Row, from_line
from ._spill import Spill

LINGER = 0.2  # Seconds between two rounds, for rows to gather.
PAUSES = (0.25, 30.0)  # Seconds after the first failure, and at most; in between they double.
ATTEMPTS = 4  # At the end, if the tracker was there before.
AT_ONCE = 1000  # Rows that are read from a file.
MOST_HELD = 64 << 20  # Characters that are kept while a disk is full.
TALK = 5.0  # Seconds of waiting at the end after which we say what we wait for.


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
        self.aside = ""  # The file they are in.
        self.was_ended = False  # The tracker has closed the run, or there was none.
        self._abandoned = False
        self._held, self._held_rows = "", 0  # What could not be written to the file.
        self._told = False
        self._busy = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many rows have not been sent."""
        return 0 if self.spill is None else self.spill.waiting

    def put(self, lines: str, count: int = 1) -> None:
        """Add rows. Those that cannot be written now are kept for the next time."""
        self._held, self._held_rows = self._held + lines, self._held_rows + count
        try:
            self._write_held()
        except OSError as error:
            if len(self._held) > MOST_HELD:
                self._lose_held(error)
            elif not self._told:
                self._told = True
                reports.warning("%s cannot write to its file: %s.", self.title, error)

    def settle(self) -> None:
        """The last chance to write what could not be written; if there is none, say so."""
        if self._held:
            try:
                self._write_held()
            except OSError as error:
                self._lose_held(error)

    def _write_held(self) -> None:
        if self.spill is None:
            self.spill = self._make_spill()
        self.spill.append(self._held, self._held_rows)
        self._held, self._held_rows = "", 0

    def _lose_held(self, error: OSError) -> None:
        lost, self._held, self._held_rows = _rows(self._held_rows), "", 0
        raise LogFileError(
            f"{self.title} could not write {lost} to its file, from where they are sent, so they "
            f"are lost: {error}. Make room there, or choose another place with `spill=`."
        ) from error

    def has_work(self) -> bool:
        """Whether there is something to do."""
        if self.over.is_set() or self.refusal is not None:
            return False
        connecting = self.wanted and not self.connected.is_set()
        return connecting or self.waiting > 0 or self.closing is not None

    def work(self) -> None:
        """Do a piece of it. What goes wrong is raised, and can be tried again."""
        with self._busy:
            if self._abandoned:
                self._end()
            elif not self.connected.is_set() and (self.wanted or self.waiting):
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
            reports.error("%s could not open its run.", self.title, exc_info=error)
            return
        self.connected.set()

    def _send(self) -> None:
        assert self.spill is not None
        if not self._lines:
            self._lines = self.spill.read(AT_ONCE)
        some = self._lines[: self.tracker.most]
        try:
            self.tracker.send([from_line(line) for line in some])
        except Exception as error:
            if not self.tracker.refuses(error):
                raise
            if len(some) == 1:
                self._put_aside(some[0], error)
            else:  # Find out which of them it is.
                for line in some:
                    self._send_one(line)
                return
        self._done(some)

    def _send_one(self, line: str) -> None:
        try:
            self.tracker.send([from_line(line)])
        except Exception as error:
            if not self.tracker.refuses(error):
                raise
            self._put_aside(line, error)
        self._done([line])

    def _done(self, lines: list[str]) -> None:
        assert self.spill is not None
        self.spill.done(lines)
        del self._lines[: len(lines)]

    def _put_aside(self, line: str, error: Exception) -> None:
        assert self.spill is not None
        path = self.spill.path
        self.aside = str(path.with_name(f"{path.stem}-refused.jsonl"))
        with open(self.aside, "a", encoding="utf-8") as file:
            file.write(line)
        self.refused += 1
        if self.refused == 1:
            reports.warning(
                "%s does not take a row: %s: %s. It is kept in %s, and so are others like it.",
                self.title,
                type(error).__name__,
                error,
                self.aside,
            )

    def _end(self) -> None:
        if not self.over.is_set():
            if self.spill is not None:
                self.spill.close()
            self.over.set()

    def abandon(self) -> None:
        """Leave what has not been sent where it is."""
        self._abandoned = True
        if self._busy.acquire(blocking=False):  # Else the thread is in a call that may not return.
            try:
                self._end()
            finally:
                self._busy.release()


class Outbox:
    """A thread that does the work of some channels, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._channels: list[Channel] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._hurry = threading.Event()
        self.failures = 0  # Since something last went well.
        self.error: BaseException | None = None  # The last one.
        self._warned = False
        self._progress = 0  # Pieces of work that were done.
        self._left: list[tuple[Channel, BaseException | None]] = []
        self.is_given_up = False  # By somebody who waited for it, and nothing was done since.

    def add(self, channel: Channel) -> None:
        """Take on a channel."""
        with self._lock:
            self._channels.append(channel)

    def notify(self) -> None:
        """There is something to do."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()
        if not self._news.is_set():
            self._news.set()

    def hurry(self) -> None:
        """Somebody waits, so do not."""
        self._hurry.set()
        self.notify()

    def wait(self, channel: Channel, done: Callable[[], bool], patience: float) -> bool:
        """Wait until something is done; give up if the tracker is away, or nothing moves."""
        begun = moved = time.monotonic()
        seen, talked = self._progress, False
        # Who was away before gets one more chance, and who goes away now a few.
        enough = self.failures + (1 if self.failures else ATTEMPTS)
        self.hurry()
        while not done():
            time.sleep(0.005)
            now = time.monotonic()
            if self._progress != seen:
                seen, moved = self._progress, now
            if now - moved > patience or self.failures >= enough or channel.refusal is not None:
                return False
            if now - begun > TALK and not talked:
                talked = True
                reports.warning(
                    "%s still has %s to send. Interrupt it to leave them in %s.",
                    channel.title,
                    _rows(channel.waiting),
                    channel.spill and channel.spill.path,
                )
        return True

    def leave(self, channel: Channel) -> None:
        """A channel was closed, whatever has become of it."""
        self._left.append((channel, channel.refusal or self.error))

    def warn(self) -> None:
        """Say what was left behind, and how to send it."""
        unsent = [(c.title, c.waiting, c.spill, error) for c, error in self._left if c.waiting]
        if unsent:
            title, _, spill, error = unsent[0]
            assert spill is not None
            rows = _rows(sum(waiting for _, waiting, _, _ in unsent))
            runs = "" if len(unsent) == 1 else f" of {len(unsent)} runs"
            path = str(spill.path if len(unsent) == 1 else spill.path.parent)
            wrong = any(channel.refusal for channel, _ in self._left)
            way = " (and other words than before, as these were refused)" if wrong else ""
            _warn(
                f"{title} could not send {rows}{runs}{_reason(error)}. Nothing is lost: send them "
                f"later with `chiplog.loggers.replay({path!r})`{way}."
            )
        for channel, error in self._left:
            if not channel.was_ended and not channel.waiting and channel.refusal is None:
                what = "close" if channel.connected.is_set() else "open"
                _warn(f"{channel.title} could not {what} its run{_reason(error)}.")
            if channel.refused:
                rows = _rows(channel.refused)
                _warn(f"{channel.title} did not take {rows}. You find them in {channel.aside!r}.")

    def _work(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            hurried = self._hurry.is_set()
            self._hurry.clear()
            self._round()
            with self._lock:
                self._channels = [c for c in self._channels if not c.over.is_set()]
                if not self._channels:
                    self._thread = None
                    return
            if not hurried:
                self._hurry.wait(LINGER)

    def _round(self) -> None:
        """Work until there is nothing to do."""
        while todo := [channel for channel in tuple(self._channels) if channel.has_work()]:
            for channel in todo:
                try:
                    channel.work()
                except BaseException as error:  # Even those that would only end this thread.
                    self._failed(channel, error)
                    self._hurry.wait(self._pause())
                    self._hurry.clear()
                else:
                    self._went_well(channel)

    def _pause(self) -> float:
        first, most = PAUSES
        return min(first * 2.0 ** (self.failures - 1), most)

    def _failed(self, channel: Channel, error: BaseException) -> None:
        self.failures += 1
        self.error = error
        if not self._warned:
            self._warned = True
            where = f" in {channel.spill.path}" if channel.spill is not None else ""
            reports.warning(
                "%s cannot send: %s: %s. The program goes on; its rows wait%s, and are sent when "
                "that works again.",
                channel.title,
                type(error).__name__,
                error,
                where,
            )

    def _went_well(self, channel: Channel) -> None:
        if self.failures:
            reports.info("%s sends again.", channel.title)
        self.failures, self.error, self.is_given_up = 0, None, False
        self._progress += 1


def _warn(message: str) -> None:
    """Warn, as if it were done by who uses chiplog."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("chiplog."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UnsentWarning, stacklevel=level)


def _reason(error: BaseException | None) -> str:
    return "" if error is None else f" ({type(error).__name__}: {error})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
