"""One writer for a file: a lock that ends with the process that holds it, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from pathlib import Path

from ..errors import LogFileError

TRIES = 5


class Lock:
    """Held by whoever writes a file."""

    def __init__(self, path: Path) -> None:
        self._of, self._path = path, path.with_name(f".{path.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or say who has it."""
        tries = 0
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise LogFileError(f"Cannot write to {str(self._of)!r}: {error}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                tries += 1
                if tries < TRIES:  # Somebody may just be asking whether it is held.
                    os.close(descriptor)
                    time.sleep(0.01)
                    continue
                owner = os.read(descriptor, 100).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise LogFileError(
                    f"{str(self._of)!r} is being written by {owner}. Wait for it to end, or choose "
                    "another name."
                ) from error
            with contextlib.suppress(FileNotFoundError):
                # The one before may have removed it after we opened it.
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    break
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}".encode())
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = None

    def is_held(self) -> bool:
        """Say whether somebody writes the file."""
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


def _let_go() -> None:
    """A child must not keep what its parent holds, which would outlive it."""
    for lock in _held:
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None


os.register_at_fork(after_in_child=_let_go)
