"""What the loggers that write into a book have in common: when to write, and how to end.

Rows are kept until there are enough of them, or the oldest has waited long enough, and then written
at once. All writing happens on spoolax's own thread. What goes wrong there is raised by the next
`log`, and at the end; nothing is written any more after that.

Waking another thread for each row would take longer than the row itself, so rows are put on a pile.
Only the first one on it is announced, and it takes the others along.
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
from ..loggers._protocol.logger import Logger
from ._book import Book
from ._file import FAILED, FINISHED

FLUSH_SECONDS = 1.0
FLUSH_BYTES = 4 << 20
PILE_BYTES = 1 << 20  # What is announced by itself, so that the queue knows about it.


class Store(Logger[Any]):
    """A logger that writes into a book. Derive from it, and write `keep` and `write`."""

    concurrent = True
    _book: Book

    def prepare(self) -> None:
        """Get ready, before the book is opened."""
        self._sink = Sink(self._receive, owner=self)
        self._pile: collections.deque[Any] = collections.deque()
        self._piled, self._piling = 0, threading.Lock()
        self._process = os.getpid()
        self._failure: BaseException | None = None
        self._timer: threading.Timer | None = None
        self._waiting, self._written = 0, time.monotonic()
        self._ran = 0

    def keep(self, item: Any) -> None:
        """Keep something that was handed over until it is written."""
        raise NotImplementedError

    def write(self) -> None:
        """Write everything that was kept."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise what has gone wrong in the writing."""
        if self._failure is not None:
            raise self._failure

    def hand_over(self, item: Any, size: int) -> None:
        """Let spoolax's own thread keep something. If it is far behind, wait for it."""
        with self._piling:
            self._pile.append(item)
            self._piled += size
            is_first, announced = len(self._pile) == 1, self._piled
            if is_first or self._piled > PILE_BYTES:
                self._piled = 0
            else:
                return
        host.post(self._sink, self._keep_pile, announced)

    def kept(self, size: int) -> None:
        """So many bytes more are waiting; see whether it is time to write."""
        self._waiting += size
        late = time.monotonic() - self._written > FLUSH_SECONDS
        if late or self._waiting > FLUSH_BYTES:
            self._flush()
        elif self._timer is None:
            # If nothing follows, what is here must not wait for it.
            self._timer = threading.Timer(FLUSH_SECONDS, host.post, (self._sink, self._flush))
            self._timer.daemon = True
            self._timer.start()

    def skipped(self, steps: int) -> None:
        """Count the steps that ran."""
        self._ran += steps

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._process:
            return  # A child has the logger, but not the file.
        if self._timer is not None:
            self._timer.cancel()
            host.settle()  # It may have been at it already.
        try:
            if self._failure is None:
                self._flush()
        finally:
            well = error is None and self._failure is None
            self._book.close(FINISHED if well else FAILED)

    def _receive(self, act: Callable[[], None]) -> None:
        self.check()
        act()

    def _keep_pile(self) -> None:
        # Without a lock: whoever puts something on an empty pile will announce it.
        while self._pile:
            self.keep(self._pile.popleft())

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self.write()
            self._book.note(self._ran)
        except BaseException as failure:
            self._failure = failure
            raise
        self._waiting, self._written = 0, time.monotonic()
