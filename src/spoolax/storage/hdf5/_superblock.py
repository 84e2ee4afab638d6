"""The first bytes of a file, which say whether it is open for writing, and where it ends.

After its writer has died, they still say that it is open, with an end that is out of date. HDF5
could read such a file only as if it was still being written: where something is damaged, it would
retry for ever. So HDF5 sees the file with these bytes repaired; the file itself stays as it is.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

SIGNATURE = b"\x89HDF\r\n\x1a\n\x03"  # Of version 3, with flags.
FLAGS = 11
END = slice(28, 36)
CHECKED = 44  # The number of bytes before their checksum.


def is_marked_as_open(path: Path) -> bool:
    """Whether a file says that it is open for writing, as it also does after a crash."""
    head = _head(path)
    return head.startswith(SIGNATURE) and head[FLAGS] != 0


def recorded_end(path: Path) -> int | None:
    """Where a file ends by its own account; None if it does not say."""
    head = _head(path)
    return int.from_bytes(head[END], "little") if head.startswith(SIGNATURE) else None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(CHECKED + 4).ljust(CHECKED + 4, b"\0")


class RepairedFile(io.RawIOBase):
    """A file whose writer has died, as if it had been closed."""

    def __init__(self, path: Path) -> None:
        head = bytearray(_head(path))
        head[FLAGS] = 0
        head[END] = path.stat().st_size.to_bytes(8, "little")
        head[CHECKED:] = checksum(bytes(head[:CHECKED])).to_bytes(4, "little")
        self._head, self._file = bytes(head), path.open("rb", buffering=0)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read in any order."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Read, with the first bytes repaired."""
        at, view = self._file.tell(), memoryview(buffer).cast("B")
        count = self._file.readinto(view) or 0
        if at < len(self._head):
            repaired = self._head[at : at + count]
            view[: len(repaired)] = repaired
        return count

    def close(self) -> None:
        """Close it."""
        self._file.close()
        super().close()


def checksum(data: bytes) -> int:
    """HDF5's checksum: Bob Jenkins' hash "lookup3"."""
    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    while len(data) > 12:
        a, b, c = _added(a, b, c, data)
        for shift in (4, 6, 8, 16, 19, 4):
            a = (a - c ^ _rotated(c, shift)) & 0xFFFFFFFF
            c = (c + b) & 0xFFFFFFFF
            a, b, c = b, c, a
        data = data[12:]
    a, b, c = _added(a, b, c, data.ljust(12, b"\0"))
    for shift in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotated(b, shift)) & 0xFFFFFFFF
        a, b, c = b, c, a
    return b


def _added(a: int, b: int, c: int, data: bytes) -> tuple[int, int, int]:
    words = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4, 8))
    a, b, c = ((x + word) & 0xFFFFFFFF for x, word in zip((a, b, c), words, strict=True))
    return a, b, c


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & 0xFFFFFFFF
