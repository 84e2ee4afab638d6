"""Loggers that buffer rows and write them into a store from spoolax's own thread.

Rows are buffered until there are enough of them, or the oldest has waited long enough, and then are
written together, the next ones while the disk is still busy with the last. An error of the writing
is raised by the next `log`, and at the end; nothing is written after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from .._tap.host import host
from .._tap.sinks import Sink
from ..loggers._protocol.ending import Ending
from ..loggers._protocol.logger import Logger
from ._store.contract import Backend, Begun
from ._writable import WritableStore

FLUSH_SECONDS = 1.0
AT_ONCE = 1  # How often as much as is written together may wait for the disk.


class BufferedLogger(Logger[Any]):
    """A logger that writes into a store. Derive from it, and write `buffer` and `write`."""

    concurrent = True
    _store: WritableStore

    def prepare(self, backend: Backend) -> None:
        """Get ready to receive rows, before the store is opened."""
        self._batch_bytes = backend.batch_bytes
        self._sink = Sink(self._receive, owner=self)
        self._sink.gathers = True
        self._clock = Sink(self._flush_buffered, owner=self)
        self._clock.apart = True  # What was buffered need not wait for rows that are not ready.
        host.writers.add(self._clock)
        self._will_flush = False  # The clock has been set.
        self._process = os.getpid()
        self._under_way: list[Sequence[Begun]] = []  # The last of what was not committed.
        self._failure: BaseException | None = None
        self._lost: BaseException | None = None  # Why something that was sent is not stored.
        self._buffered_bytes, self._last_write = 0, time.monotonic()
        self._steps_run = 0

    def buffer(self, item: Any) -> None:
        """Buffer something that was sent, until it is written."""
        raise NotImplementedError

    def write(self) -> Sequence[Begun | None]:
        """Begin to write everything that is buffered. Returns what does not count yet."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error of the writing, if there was one."""
        if self._failure is not None:
            raise self._failure

    def send(self, item: Any, size: int, arrays: Sequence[Any] = ()) -> None:
        """Have spoolax's own thread buffer something, when these arrays are ready.

        If that is far behind, wait for it.
        """
        host.post(self._sink, item, size, arrays)

    def count_buffered(self, size: int) -> None:
        """Count bytes that were buffered, and write if it is time to."""
        self._buffered_bytes += size
        if time.monotonic() - self._last_write > FLUSH_SECONDS:
            self._flush()
            return
        if self._buffered_bytes > self._batch_bytes:
            self._flush(commit=False)
        if not self._will_flush:
            # If no other row follows, this one must not wait for it.
            self._will_flush = True
            host.post_later(self._clock, None, FLUSH_SECONDS)

    def commit(self) -> None:
        """Write everything that was logged before, and wait until that is done."""
        host.settle()
        host.post(self._clock, None)
        host.settle()
        self.check()

    def skipped(self, steps: int) -> None:
        """Count the steps that ran."""
        self._steps_run += steps

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._process:
            return  # A forked child has the logger, but the store belongs to its parent.
        try:
            self.write_rest()
        finally:
            assert self.ending is not None
            failure = self._failure or self._lost
            ending = self.ending if failure is None else Ending.of(failure)
            self._store.close(ending.status, ending.reason)

    def write_rest(self) -> None:
        """Write what is left, at the end, unless something went wrong."""
        host.writers.discard(self._clock)
        if self._will_flush:
            host.cancel(self._clock)
        if self._failure is None:
            self._flush()

    def _receive(self, item: Any) -> None:
        self.check()
        try:
            self.buffer(item)
        except BaseException as error:
            self._lost = self._lost or error
            raise

    def _flush_buffered(self, _: None) -> None:
        self._will_flush = False
        if (self._buffered_bytes or self._under_way) and self._failure is None:
            self._flush()

    def _flush(self, commit: bool = True) -> None:
        """Write everything that is buffered, and commit it now or later."""
        try:
            begun = [one for one in self.write() if one is not None]
            self._under_way.append(begun)
            commit = commit or not begun
            while len(self._under_way) > (0 if commit else AT_ONCE):
                for one in self._under_way.pop(0):
                    one.wait()
            if commit:
                self.commit_rows()
        except BaseException as failure:
            self._failure = failure
            raise
        self._buffered_bytes, self._last_write = 0, time.monotonic()

    def commit_rows(self) -> None:
        """Commit all that was written."""
        self._store.commit(self._steps_run)
