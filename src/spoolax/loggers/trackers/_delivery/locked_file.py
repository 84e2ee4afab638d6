"""Files that only one process, and one logger in it, may open at a time."""

from __future__ import annotations

import os
from pathlib import Path

from ....errors import LogFileError


class InUseError(LogFileError):
    """Somebody else is sending the rows of a file."""


def open_locked(path: Path, flags: int) -> int:
    """Open a file for reading and writing, and lock it; return its descriptor."""
    file = os.open(path, os.O_RDWR | flags, 0o644)
    try:
        _lock(file)
        if not os.path.samestat(os.fstat(file), os.stat(path)):
            raise FileNotFoundError  # Somebody has just replaced or removed it.
    except OSError as error:
        os.close(file)
        raise InUseError(
            f"{str(path)!r} is in use: its rows are being sent by another process, or by another "
            "logger of this one."
        ) from error
    return file


def write_at(file: int, data: bytes, position: int) -> None:
    """Write all of `data` at a position."""
    while data:
        written = os.pwrite(file, data, position)
        data, position = data[written:], position + written


def _lock(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # Not on every platform.
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
