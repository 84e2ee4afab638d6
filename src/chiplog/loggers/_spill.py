"""A file of rows that wait to be sent to a tracker.

Its first line says which run they belong to, and up to where they have been sent. Every row is
written there before anything else is done with it. So it does not matter how long the tracker
takes, or whether it is there at all; and what a killed process has not sent can be sent later.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from ..errors import LogFileError

LARGE = 1 << 20  # Bytes above which a file in which nothing waits is emptied.
WIDTH = 16  # Digits of the position, so that it can be changed in place.
READ = 1 << 18


class Spill:
    """A file that one thread appends to, and another takes from."""

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        """Open a file, or make one for a run."""
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        _claim(self._file, path)
        # On Linux, what is written to a file that appends goes to its end, wherever it should go.
        self._marker = os.open(path, os.O_RDWR)
        if is_new:
            start = f'{{"_run": {json.dumps(run)}, "_sent": '
            self._place = len(start.encode())
            self._begin = self._place + WIDTH + 2
            os.write(self._file, f"{start}{self._begin:>{WIDTH}}}}\n".encode())
            self.run, self._sent, self._end = run, self._begin, self._begin
            self.waiting = 0
        else:
            self._continue()

    def _continue(self) -> None:
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
            self._sent = min(sent, os.fstat(self._file).st_size)
            file.seek(self._sent)
            rest = file.read()
        torn = len(rest) - (rest.rfind(b"\n") + 1)  # By a crash.
        self._end = self._sent + len(rest) - torn
        os.ftruncate(self._file, self._end)
        self.waiting = rest.count(b"\n")

    def append(self, lines: str, count: int = 1) -> None:
        """Add lines, which have ends."""
        data = lines.encode()
        with self._lock:
            try:
                written = os.write(self._file, data)
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError:
                os.ftruncate(self._file, self._end)  # Half a line would spoil the next one.
                raise
            self._end += len(data)
            self.waiting += count

    def read(self, most: int) -> list[str]:
        """The first lines that wait, at most so many."""
        with self._lock:
            start, end = self._sent, self._end
        data, found = b"", 0
        while found < most and start + len(data) < end:
            room = min(READ, end - start - len(data))
            data += os.pread(self._marker, room, start + len(data))
            found = data.count(b"\n")
        lines = data.splitlines(keepends=True)[:most]
        return [line.decode() for line in lines if line.endswith(b"\n")]

    def done(self, lines: list[str]) -> None:
        """These lines, the first that waited, were sent."""
        with self._lock:
            self.waiting -= len(lines)
            position = self._sent = self._sent + sum(len(line.encode()) for line in lines)
            if self._sent == self._end > self._begin + LARGE:
                # In this order: after a crash in between, nothing is sent twice.
                os.ftruncate(self._file, self._begin)
                self._sent = self._end = position = self._begin
            self._mark(position)

    def _mark(self, position: int) -> None:
        os.pwrite(self._marker, f"{position:>{WIDTH}}".encode(), self._place)

    def close(self) -> None:
        """Close the file, and remove it if nothing is left in it."""
        with self._lock:
            if not self.waiting:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            os.close(self._file)
            os.close(self._marker)


def _head(line: bytes) -> tuple[dict[str, Any], int] | None:
    try:
        found = json.loads(line)
        return found["_run"], int(found["_sent"])
    except (ValueError, KeyError, TypeError):
        return None


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
        os.close(file)
        raise LogFileError(
            f"{str(path)!r} is in use: its rows are being sent by another process, or by another "
            "logger of this one."
        ) from error
