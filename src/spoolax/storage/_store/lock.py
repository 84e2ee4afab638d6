"""One writer per path: a lock that ends with the process that holds it, however that ends.

It is a file next to the path, locked with `flock`. To write a store is to hold its lock; if its
lock is free, its writer has ended or died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from pathlib import Path

from ...errors import LogFileError
from .contract import StoreReader, WriterLock

TRIES = 5


class Lock:
    """The lock of a path."""

    def __init__(self, path: Path) -> None:
        self._target, self._path = path, path.with_name(f".{path.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise an error that says who holds it."""
        tries = 0
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise LogFileError(f"Cannot write to {str(self._target)!r}: {error}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                tries += 1
                if tries < TRIES:  # It may only be held by `is_held`, for a moment.
                    os.close(descriptor)
                    time.sleep(0.01)
                    continue
                owner = os.read(descriptor, 100).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise LogFileError(
                    f"{str(self._target)!r} is being written by {owner}. Wait for it to end, or "
                    "choose another name."
                ) from error
            with contextlib.suppress(FileNotFoundError):
                # Its previous holder may have removed it after we opened it.
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    break
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}".encode())
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = None

    def is_held(self) -> bool:
        """Whether any process holds the lock."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Close the locks of the parent process: a child that keeps them open would outlive it."""
    for lock in _held:
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None


os.register_at_fork(after_in_child=_release_in_child)


def status_of(lock: WriterLock, store: StoreReader) -> str:
    """What has become of a run: what its writer recorded last, or that it died without a word."""
    is_written = lock.is_held()  # Before the status, which a writer records last.
    status = store.status()
    return "crashed" if status == "running" and not is_written else status
