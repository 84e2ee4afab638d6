"""tensorstore, which is loaded when it is needed: contexts, waiting for many writes, and errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..._extras import load
from ...errors import LogFileError

CACHE_BYTES = 1 << 26  # For chunks that were read, of all stores.


def tensorstore() -> Any:
    """The module."""
    return load("tensorstore", "Storing in Zarr", "zarr")


@functools.cache
def writing() -> Any:
    """The context of writers, who keep what they need themselves.

    A file is written under a name of its own, synced to the disk, and renamed. With locks, which
    tensorstore takes by default, that name would always be the same, and what a process that was
    killed left in it would stay behind the next, shorter contents. There is one writer anyway.
    """
    return tensorstore().Context(
        {
            "cache_pool": {"total_bytes_limit": 0},
            "file_io_locking": {"mode": "none"},
            "file_io_sync": True,
        }
    )


@functools.cache
def reading() -> Any:
    """The context of readers. What is in its cache is read again if it has changed.

    The rest is that of writers: stores in memory are a part of it.
    """
    limit = {"total_bytes_limit": CACHE_BYTES}
    return tensorstore().Context({"cache_pool": limit}, parent=writing())


def kvstore(spec: Any, context: Any) -> Any:
    """The keys and values below a place."""
    return tensorstore().KvStore.open(spec, context=context).result()


class Writes:
    """Writes that are under way, and what is to be done after them."""

    def __init__(self, futures: Sequence[Any], path: Any, then: Callable[[], None]) -> None:
        self._futures, self._path, self._then = futures, path, then
        self.is_done = False

    def wait(self) -> None:
        """Wait for them. Raises an error if one has failed."""
        if not self.is_done:
            finish(self._futures, self._path)
            self.is_done, self._futures = True, ()  # They keep what they have written.
            self._then()

    def settle(self) -> None:
        """Wait for them, whatever becomes of them."""
        with contextlib.suppress(LogFileError):
            finish(self._futures, self._path)


def nothing() -> None:
    """Do nothing."""


def finish(writes: Iterable[Any], path: Any) -> list[Any]:
    """Wait for all writes, which are under way at once; return their results.

    If one fails, wait for the others all the same: nothing may be written after the error.
    """
    results, failure = [], None
    for write in list(writes):
        try:
            results.append(write.result())
        except (ValueError, OSError) as error:
            failure = failure or error
    if failure is not None:
        raise LogFileError(
            f"{str(path)!r} cannot grow: {failure}. Rows written before are safe."
        ) from failure
    return results
