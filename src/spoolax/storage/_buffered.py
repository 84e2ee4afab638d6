"""Loggers that buffer rows and write them into a store from spoolax's own thread.

Rows are buffered until there are enough of them, or the oldest has waited long enough, and then are
written together. An error of the writing is raised by the next `log`, and at the end; nothing is
written after it.

Waking the other thread for each row would take longer than the row itself. So rows go to an inbox,
and only the first row in it wakes the thread, which takes the others along.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .._tap.host import host
from .._tap.sinks import Sink
from ..loggers._protocol.ending import Ending
from ..loggers._protocol.logger import Logger
from ._writable import WritableStore

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 4 << 20
INBOX_BYTES = 1 << 20  # Reported to the queue, which bounds what waits, before more is added.


class BufferedLogger(Logger[Any]):
    """A logger that writes into a store. Derive from it, and write `buffer` and `write`."""

    concurrent = True
    _store: WritableStore

    def prepare(self) -> None:
        """Get ready to receive rows, before the store is opened."""
        self._sink = Sink(self._receive, owner=self)
        self._inbox: collections.deque[Any] = collections.deque()
        self._inbox_bytes, self._inbox_lock = 0, threading.Lock()
        self._process = os.getpid()
        self._failure: BaseException | None = None
        self._timer: threading.Timer | None = None
        self._buffered_bytes, self._last_write = 0, time.monotonic()
        self._steps_run = 0

    def buffer(self, item: Any) -> None:
        """Buffer something that was sent, until it is written."""
        raise NotImplementedError

    def write(self) -> None:
        """Write everything that is buffered."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error of the writing, if there was one."""
        if self._failure is not None:
            raise self._failure

    def send(self, item: Any, size: int) -> None:
        """Have spoolax's own thread buffer something. If that is far behind, wait for it."""
        with self._inbox_lock:
            self._inbox.append(item)
            self._inbox_bytes += size
            is_first, unreported = len(self._inbox) == 1, self._inbox_bytes
            if is_first or self._inbox_bytes > INBOX_BYTES:
                self._inbox_bytes = 0
            else:
                return
        host.post(self._sink, self._empty_inbox, unreported)

    def count_buffered(self, size: int) -> None:
        """Count bytes that were buffered, and write if it is time to."""
        self._buffered_bytes += size
        is_late = time.monotonic() - self._last_write > FLUSH_SECONDS
        if is_late or self._buffered_bytes > FLUSH_BYTES:
            self._flush()
        elif self._timer is None:
            # If no other row follows, this one must not wait for it.
            self._timer = threading.Timer(FLUSH_SECONDS, host.post, (self._sink, self._flush))
            self._timer.daemon = True
            self._timer.start()

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
        if self._timer is not None:
            self._timer.cancel()
            host.settle()  # It may have fired already.
        try:
            if self._failure is None:
                self._flush()
        finally:
            assert self.ending is not None
            ending = self.ending if self._failure is None else Ending.of(self._failure)
            self._store.close(ending.status, ending.reason)

    def _receive(self, act: Callable[[], None]) -> None:
        self.check()
        act()

    def _empty_inbox(self) -> None:
        # Without the lock: whoever adds to an empty inbox wakes this thread again.
        while self._inbox:
            self.buffer(self._inbox.popleft())

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self.write()
            self._store.set_steps_run(self._steps_run)
        except BaseException as failure:
            self._failure = failure
            raise
        self._buffered_bytes, self._last_write = 0, time.monotonic()
