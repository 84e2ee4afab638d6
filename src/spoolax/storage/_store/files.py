"""Where stores are that are kept in one file: what such backends have in common."""

from __future__ import annotations

from pathlib import Path

from ...loggers._protocol.paths import writable
from .lock import Lock


class InOneFile:
    """The part of a `Backend` that says where its stores are, if each of them is a file."""

    batch_bytes = 4 << 20
    in_pieces = None

    def place(self, path: Path, writer: str) -> Path:
        """Make sure that a store can be written at a path; return it without links."""
        return writable(path, writer).resolve()

    def exists(self, path: Path) -> bool:
        """Whether there is something at a path."""
        return path.exists()

    def lock(self, path: Path) -> Lock:
        """The lock of a path."""
        return Lock(path)

    def last_written(self, path: Path) -> float:
        """When a store was last written, in seconds since 1970."""
        return path.stat().st_mtime

    def remove(self, path: Path) -> None:
        """Remove a store."""
        path.unlink()
