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

from ..errors import LogFileError

LARGE = 1 << 20  # Bytes above which what was sent is removed from a file.
ENOUGH = 1 << 22  # Bytes that are read at once, if there is a line in them.
PIECE = 1 << 18
ROOM = 256  # Characters that what is said about the run may grow by.
WIDTH = 16  # Digits of the position, so that it can be changed in place.


class Spill:
    """A file that one thread appends to, and another takes from.

    A row counts as sent so many seconds after it was handed over as its tracker may `lag` behind:
    until then, a crash would take it along.
    """

    def __init__(
        self,
        path: Path,
        run: dict[str, Any],
        lag: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a file, or make one for a run."""
        self.path, self._lag, self._clock = path, lag, clock
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _claim(self._file, path)
            if is_new:
                self._begin_with(run)
            else:
                self._go_on()
        except BaseException:
            os.close(self._file)
            raise
        # Up to where rows were handed over, and when.
        self._handed: collections.deque[tuple[float, int]] = collections.deque()

    def _begin_with(self, run: dict[str, Any]) -> None:
        start = _start(run) + b" " * ROOM
        self._place = len(start)
        self._begin = self._place + WIDTH + 2
        self._write(start + f"{self._begin:>{WIDTH}}}}\n".encode(), 0)
        self.run, self.waiting = run, 0
        self._sent = self._end = self._settled = self._begin

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
            self._sent = self._settled = min(sent, os.fstat(self._file).st_size)
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
                self._write(start.ljust(self._place), 0)
                self.run = run

    def append(self, lines: str, count: int = 1) -> None:
        """Add lines, which have ends."""
        data = _encoded(lines)
        with self._lock:
            try:
                self._write(data, self._end)
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
        lines = b"".join(pieces).splitlines(keepends=True)[:most]
        return [_decoded(line) for line in lines if line.endswith(b"\n")]

    def done(self, lines: list[str]) -> None:
        """These lines, the first that waited, were handed over."""
        with self._lock:
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

    def leave(self) -> None:
        """All that was handed over counts as sent, though the file cannot be closed now."""
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                self._settle(float("inf"))
                if not self.waiting:
                    self.path.unlink()

    def _settle(self, until: float) -> None:
        """What was handed over before some time counts as sent."""
        before = self._settled
        while self._handed and self._handed[0][0] <= until:
            self._settled = self._handed.popleft()[1]
        if self._settled == before:
            return
        if self._sent == self._end and self._settled > self._begin + LARGE:
            # In this order: a crash in between does not lead to sending anything twice.
            rest = os.pread(self._file, self._end - self._settled, self._settled)
            shift = self._settled - self._begin
            os.ftruncate(self._file, self._begin)
            self._write(rest, self._begin)
            self._handed = collections.deque((at, to - shift) for at, to in self._handed)
            self._sent, self._end, self._settled = (
                self._sent - shift,
                self._end - shift,
                self._begin,
            )
        self._write(f"{self._settled:>{WIDTH}}".encode(), self._place)

    def _write(self, data: bytes, place: int) -> None:
        while data:
            written = os.pwrite(self._file, data, place)
            data, place = data[written:], place + written

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
    except (ValueError, KeyError, TypeError):
        return None
    return (run, sent) if isinstance(run, dict) else None


def head_of(path: Path) -> tuple[dict[str, Any], int] | None:
    """The run that the rows of a file belong to, and where those begin that wait.

    None if it is a file of another kind.
    """
    with open(path, "rb") as file:
        return _head(file.readline())


def _claim(file: int, path: Path) -> None:
    """Make sure that nobody else sends from this file at the same time."""
    try:
        import fcntl
    except ImportError:  # Not everywhere.
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LogFileError(
            f"{str(path)!r} is in use: its rows are being sent by another process, or by another "
            "logger of this one."
        ) from error
