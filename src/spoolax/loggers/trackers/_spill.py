"""A file of rows that wait to be sent to a tracker.

Its first line says which run they belong to, and up to where they have been sent. Every row is
written there before anything else is done with it. So it does not matter how long the tracker
takes, or whether it is there at all; and what a killed process has not sent can be sent later.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import LogFileError

LARGE = 1 << 20  # Bytes above which what was sent is removed from a file.
ENOUGH = 1 << 22  # Bytes that are read at once, if there is a line in them.
PIECE = 1 << 18
ROOM = 256  # Characters that what is said about the run may grow by.
WIDTH = 16  # Digits of the position, so that it can be changed in place.


class InUseError(LogFileError):
    """Somebody else sends the rows of a file."""


class Spill:
    """A file that one thread appends to, and another takes from.

    A row counts as sent so many seconds after it was handed over as its tracker may `lag` behind:
    until then, a crash would take it along.
    """

    def __init__(
        self,
        path: Path,
        run: dict[str, Any] | None = None,
        lag: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a file for a run; without one, open a file that is there."""
        self.path, self._lag, self._clock = path, lag, clock
        self._lock = threading.Lock()
        if run is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _claimed(path, 0 if run is None else os.O_CREAT | os.O_EXCL)
        try:
            if run is None:
                self._go_on()
            else:
                self._begin_with(run)
        except BaseException:
            os.close(self._file)
            if run is not None:  # There is nothing in it.
                path.unlink()
            raise
        self._is_given_up = False
        # Up to where rows were handed over, and when.
        self._handed: collections.deque[tuple[float, int]] = collections.deque()

    def _begin_with(self, run: dict[str, Any]) -> None:
        start = _start(run) + b" " * ROOM
        self._place = len(start)
        self._begin = self._place + WIDTH + 2
        _write(self._file, start + self._position(self._begin) + b"}\n", 0)
        self.run, self.waiting = run, 0
        self._sent = self._end = self._settled = self._begin

    def _position(self, place: int) -> bytes:
        return f"{place:>{WIDTH}}".encode()

    def _go_on(self) -> None:
        """Go on with a file that is there."""
        with open(self.path, "rb") as file:
            first = file.readline()
            head = _head(first)
            if head is None:
                raise LogFileError(
                    f"{str(self.path)!r} is no file of rows that wait to be sent: its first line "
                    "does not say for which run they are."
                )
            self.run, sent = head
            self._begin, self._place = len(first), len(first) - WIDTH - 2
            self._sent = self._settled = min(max(sent, len(first)), os.fstat(self._file).st_size)
            file.seek(self._sent)
            rest = file.read()
        whole = rest.rfind(b"\n") + 1  # What follows was torn off by a crash.
        self._end = self._sent + whole
        os.ftruncate(self._file, self._end)
        self.waiting = rest.count(b"\n")

    def update(self, run: dict[str, Any]) -> None:
        """Say something else about the run, if there is room for it."""
        start = _start(run)
        with self._lock:
            if len(start) <= self._place:
                _write(self._file, start.ljust(self._place), 0)
                self.run = run

    def append(self, lines: str, count: int = 1) -> None:
        """Add lines, which have ends."""
        data = _encoded(lines)
        with self._lock:
            try:
                _write(self._file, data, self._end)
            except OSError:
                os.ftruncate(self._file, self._end)  # Half a line would spoil the next one.
                raise
            self._end += len(data)
            self.waiting += count

    def read(self, most: int) -> list[str]:
        """The first lines that wait: at most so many, and not too much."""
        with self._lock:
            start, end = self._sent, self._end
        pieces, size, found = [], 0, 0
        while start + size < end and found < most and (size < ENOUGH or not found):
            piece = os.pread(self._file, min(PIECE, end - start - size), start + size)
            if not piece:
                raise LogFileError(f"{str(self.path)!r} was cut by somebody else.")
            pieces.append(piece)
            size, found = size + len(piece), found + piece.count(b"\n")
        *lines, _ = b"".join(pieces).split(b"\n")
        return [_decoded(line) + "\n" for line in lines[:most]]

    def done(self, lines: list[str]) -> None:
        """These lines, the first that waited, were handed over."""
        with self._lock:
            if self._is_given_up:
                return
            self.waiting -= len(lines)
            self._sent += sum(len(_encoded(line)) for line in lines)
            self._handed.append((self._clock(), self._sent))
            self._settle(self._clock() - self._lag)

    def tick(self) -> bool:
        """See what counts as sent by now; say whether there is anything that does not yet."""
        with self._lock:
            if self._file >= 0:
                self._settle(self._clock() - self._lag)
            return bool(self._handed)

    def take_back(self) -> None:
        """What was handed over, and does not count as sent yet, waits again, and for good."""
        with self._lock:
            self._take_back()

    def _take_back(self) -> None:
        self._settle(self._clock() - self._lag)
        if self._handed:
            self._is_given_up = True
            self._handed.clear()
            self._sent = self._settled
            rest = os.pread(self._file, self._end - self._sent, self._sent)
            self.waiting = rest.count(b"\n")

    def leave(self) -> None:
        """The tracker was given up, though the file cannot be closed now."""
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                self._take_back()
                if self.waiting:
                    self._restore()
                else:
                    self.path.unlink()

    def _settle(self, until: float) -> None:
        """What was handed over before some time counts as sent."""
        before = self._settled
        while self._handed and self._handed[0][0] <= until:
            self._settled = self._handed.popleft()[1]
        if self._settled == before:
            return
        # If the disk is full, a crash leads to sending more of it again, and to nothing else.
        with contextlib.suppress(OSError):
            if self._sent == self._end and self._settled > self._begin + LARGE:
                self._shorten()
            else:
                _write(self._file, self._position(self._settled), self._place)

    def _shorten(self) -> None:
        """Replace the file by one without what was sent: at once, whenever a crash comes."""
        shift = self._settled - self._begin
        head = os.pread(self._file, self._place, 0) + self._position(self._begin) + b"}\n"
        rest = os.pread(self._file, self._end - self._settled, self._settled)
        draft = self.path.with_suffix(".draft")
        file = _claimed(draft, os.O_CREAT | os.O_TRUNC)
        try:
            _write(file, head + rest, 0)
            os.replace(draft, self.path)
        except OSError:
            os.close(file)
            draft.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = file
        self._handed = collections.deque((at, to - shift) for at, to in self._handed)
        self._sent, self._end, self._settled = (
            self._sent - shift,
            self._end - shift,
            self._begin,
        )

    def close(self) -> None:
        """Close the file, and remove it if nothing is left in it."""
        with self._lock:
            if self._file < 0:
                return
            if self.waiting:
                with contextlib.suppress(OSError):
                    self._settle(float("inf"))
                    self._restore()
            else:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            os.close(self._file)
            self._file = -1

    def _restore(self) -> None:
        """Write the file again if somebody has removed it."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(os.pread(self._file, self._end, 0))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decoded(data: bytes) -> str:
    # What is no text is told from JSON later, and must have the same length then.
    return data.decode("utf-8", "surrogateescape")


def _start(run: dict[str, Any]) -> bytes:
    return f'{{"_run": {json.dumps(run)}, "_sent": '.encode()


def _head(line: bytes) -> tuple[dict[str, Any], int] | None:
    try:
        found = json.loads(line)
        run, sent = found["_run"], int(found["_sent"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (run, sent) if isinstance(run, dict) else None


def head_of(path: Path) -> tuple[dict[str, Any], int] | None:
    """The run that the rows of a file belong to, and where those begin that wait.

    None if it is a file of another kind.
    """
    with open(path, "rb") as file:
        return _head(file.readline())


def _write(file: int, data: bytes, place: int) -> None:
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written


def _claimed(path: Path, how: int) -> int:
    """Open a file, and make sure that nobody else sends from it at the same time."""
    file = os.open(path, os.O_RDWR | how, 0o644)
    try:
        _claim(file)
        if not os.path.samestat(os.fstat(file), os.stat(path)):
            raise FileNotFoundError  # Somebody has just replaced or removed it.
    except OSError as error:
        os.close(file)
        raise InUseError(
            f"{str(path)!r} is in use: its rows are being sent by another process, or by another "
            "logger of this one."
        ) from error
    return file


def _claim(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # Not everywhere.
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
