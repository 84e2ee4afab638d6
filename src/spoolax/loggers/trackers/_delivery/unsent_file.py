"""A file of rows that wait to be sent to a tracker.

Every row is written there before anything else is done with it. So it does not matter how long the
tracker takes, or whether it is there at all; and what a killed process has not sent can be sent
later.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....errors import LogFileError
from .locked_file import open_locked, write_at
from .unsent_header import DIGITS, END, ROOM, header_position, header_start, parse_header

LARGE = 1 << 20  # Bytes of sent rows above which they are removed from the file.
ENOUGH = 1 << 22  # Bytes to read at once, if there is a whole line in them.
CHUNK = 1 << 18  # Bytes of one read.


class UnsentFile:
    """A queue in a file: one thread appends lines to it, and another one takes them.

    A line that the tracker got still counts as unsent for as long as the tracker may `lag` behind,
    in seconds: until then it may be in memory only, and be lost in a crash.
    """

    def __init__(
        self,
        path: Path,
        run: dict[str, Any] | None = None,
        lag: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the file of a run or, without `run`, open one that exists."""
        self.path, self._lag, self._clock = path, lag, clock
        self._lock = threading.Lock()
        if run is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_locked(path, 0 if run is None else os.O_CREAT | os.O_EXCL)
        try:
            if run is None:
                self._open()
            else:
                self._create(run)
        except BaseException:
            os.close(self._file)
            if run is not None:  # There is nothing in it.
                path.unlink()
            raise
        self._is_given_up = False
        # When lines were sent, and up to which position; the oldest first.
        self._unconfirmed: collections.deque[tuple[float, int]] = collections.deque()

    def _create(self, run: dict[str, Any]) -> None:
        start = header_start(run) + b" " * ROOM
        self._header_size = len(start)  # Without the position.
        self._begin = self._header_size + DIGITS + len(END)
        write_at(self._file, start + header_position(self._begin) + END, 0)
        self.run, self.waiting = run, 0
        self._sent = self._end = self._confirmed = self._begin

    def _open(self) -> None:
        with open(self.path, "rb") as file:
            first = file.readline()
            header = parse_header(first)
            if header is None:
                raise LogFileError(
                    f"{str(self.path)!r} is not a file of unsent rows: its first line does not say "
                    "which run they belong to."
                )
            self.run, sent = header
            self._begin, self._header_size = len(first), len(first) - DIGITS - len(END)
            size = os.fstat(self._file).st_size
            self._sent = self._confirmed = min(max(sent, self._begin), size)
            file.seek(self._sent)
            rest = file.read()
        self._end = self._sent + rest.rfind(b"\n") + 1  # A crash cut off what follows.
        os.ftruncate(self._file, self._end)
        self.waiting = rest.count(b"\n")

    def update_run(self, run: dict[str, Any]) -> None:
        """Change what the header says about the run, if there is room for it."""
        start = header_start(run)
        with self._lock:
            if len(start) <= self._header_size:
                write_at(self._file, start.ljust(self._header_size), 0)
                self.run = run

    def append(self, lines: str, count: int = 1) -> None:
        """Add `count` lines, each with its newline."""
        data = _encode(lines)
        with self._lock:
            try:
                write_at(self._file, data, self._end)
            except OSError:
                os.ftruncate(self._file, self._end)  # Half a line would spoil the next one.
                raise
            self._end += len(data)
            self.waiting += count

    def read(self, most: int) -> list[str]:
        """The first unsent lines: at most so many, and not too many bytes."""
        with self._lock:
            start, end = self._sent, self._end
        chunks, size, found = [], 0, 0
        while start + size < end and found < most and (size < ENOUGH or not found):
            chunk = os.pread(self._file, min(CHUNK, end - start - size), start + size)
            if not chunk:
                raise LogFileError(f"Something else has truncated {str(self.path)!r}.")
            chunks.append(chunk)
            size, found = size + len(chunk), found + chunk.count(b"\n")
        *lines, _ = b"".join(chunks).split(b"\n")
        return [_decode(line) + "\n" for line in lines[:most]]

    def mark_sent(self, lines: list[str]) -> None:
        """The tracker has these lines, which are the first unsent ones."""
        with self._lock:
            if self._is_given_up:
                return
            self.waiting -= len(lines)
            self._sent += sum(len(_encode(line)) for line in lines)
            self._unconfirmed.append((self._clock(), self._sent))
            self._confirm(self._clock() - self._lag)

    def confirm_sent(self) -> bool:
        """Confirm lines that were sent long enough ago; say whether others are left to confirm."""
        with self._lock:
            if self._file >= 0:
                self._confirm(self._clock() - self._lag)
            return bool(self._unconfirmed)

    def take_back(self) -> None:
        """Lines that were sent, but not confirmed, are unsent again, and stay so."""
        with self._lock:
            self._take_back()

    def _take_back(self) -> None:
        self._confirm(self._clock() - self._lag)
        if self._unconfirmed:
            self._is_given_up = True
            self._unconfirmed.clear()
            self._sent = self._confirmed
            rest = os.pread(self._file, self._end - self._sent, self._sent)
            self.waiting = rest.count(b"\n")

    def give_up(self) -> None:
        """Leave the file as `close` would, though a thread may still use it."""
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                self._take_back()
                if self.waiting:
                    self._restore()
                else:
                    self.path.unlink()

    def _confirm(self, until: float) -> None:
        """Confirm what was sent before some time."""
        before = self._confirmed
        while self._unconfirmed and self._unconfirmed[0][0] <= until:
            self._confirmed = self._unconfirmed.popleft()[1]
        if self._confirmed == before:
            return
        # If the disk is full, more is sent again after a crash; that is all.
        with contextlib.suppress(OSError):
            if self._sent == self._end and self._confirmed > self._begin + LARGE:
                self._shorten()
            else:
                write_at(self._file, header_position(self._confirmed), self._header_size)

    def _shorten(self) -> None:
        """Remove what was sent: atomically, by replacing the file."""
        shift = self._confirmed - self._begin
        header = os.pread(self._file, self._header_size, 0) + header_position(self._begin) + END
        rest = os.pread(self._file, self._end - self._confirmed, self._confirmed)
        draft = self.path.with_suffix(".draft")
        file = open_locked(draft, os.O_CREAT | os.O_TRUNC)
        try:
            write_at(file, header + rest, 0)
            os.replace(draft, self.path)
        except OSError:
            os.close(file)
            draft.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = file
        self._unconfirmed = collections.deque((at, to - shift) for at, to in self._unconfirmed)
        self._sent, self._end, self._confirmed = self._sent - shift, self._end - shift, self._begin

    def close(self) -> None:
        """Close the file, and remove it if nothing is left in it."""
        with self._lock:
            if self._file < 0:
                return
            with contextlib.suppress(OSError):
                if self.waiting:
                    self._confirm(math.inf)
                    self._restore()
                else:
                    self.path.unlink()
            os.close(self._file)
            self._file = -1

    def _restore(self) -> None:
        """Write the file again if somebody has removed it."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(os.pread(self._file, self._end, 0))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    # Bytes that are not text are refused as JSON later, and must have the same length until then.
    return data.decode("utf-8", "surrogateescape")
