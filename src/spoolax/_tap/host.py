"""The host side of streaming: one thread that delivers what programs hand over.

Programs hand over chunks of entries while they run, and do nothing else on the host: everything
that takes time happens on the `Worker`. What waits is the `Backlog`; when that is full, the program
waits, or drops. A chunk is an iterator that delivers it, so this file knows nothing of what entries
are.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .._jax.effects import forget_failures
from .._processes import wait_for_all
from ..errors import LogTypeError
from .backlog import Ends, Pile, run_of
from .lines import Chunk
from .runs import Embedded, Run, Runs
from .sinks import Sink, failures, raise_all, reports
from .worker import Worker

# What Python has logged, and waits for programs that are still running, at most.
MOST_UNREADY = 1000
# When the queue is full and nothing has been delivered for this long, the program goes on.
STUCK = 5.0
STUCK_AGAIN = 0.1  # It will do so again.
# Who has pressed Ctrl-C is told after this long why nothing happens.
PATIENCE = 1.0


class Host(Worker):
    """Takes what is to be delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = Runs()
        self.made_fail = False  # A program, to stop it. Whoever asked for that is told.
        # Those that write out what loggers have buffered, if they are given something.
        self.writers: weakref.WeakSet[Sink] = weakref.WeakSet()

    def begin(self, sink: Sink) -> Run:
        """Register an execution of a program."""
        return self.runs.begin(sink, unbounded=self.is_worker())

    def delivers_to(self, sink: Sink) -> bool:
        """Say whether we are on the worker; if so, see to it that the sink has what came before."""
        if not self.is_worker():
            return False
        while True:
            with self._lock:
                chunk = self._lines.take_before(sink, self._current)
            if chunk is None:
                return True
            self._deliver(chunk)

    def post(self, sink: Sink, item: Any, size: int = 0, arrays: Sequence[Any] = ()) -> None:
        """Queue something that does not come from a program, for a sink to get on the worker.

        `arrays` are those that it waits for.
        """
        if self.delivers_to(sink):
            sink.call(run_of(sink), item)
            return
        if not self._alone:
            with self._lock:
                if self._backlog.add_to_pile(sink, item, size, arrays):
                    return
        self.put(Pile(sink, item, size, arrays), "wait", wait=self._alone)

    def put_end(
        self,
        sink: Sink,
        kind: Any,
        item: Any,
        size: int,
        deliver: Callable[[list[Any], Run], Iterator[None]],
    ) -> bool:
        """Queue what a program has left at its end, together with what others of its kind have."""
        if not self._alone:
            with self._lock:
                self._post_ready()
                if self._backlog.add_to_pile(sink, item, size, kind=kind):
                    return True
        return self.put(Ends(sink, kind, item, size, deliver), sink.overflow, wait=self._alone)

    def post_when_ready(self, sink: Sink, item: Any, size: int, arrays: Sequence[Any]) -> None:
        """Queue something as `post` does, but after what comes before some arrays are ready.

        What comes after that from programs must have been started later.
        """
        with self._lock:
            self._start_worker()
            is_alone = self._alone
            if not is_alone:
                if self._backlog.is_filling():
                    self._wait_for_room(Pile(sink, item, size))
                self._unready.append((sink, item, size, arrays))
                self._post_ready()
                if self._asleep:
                    self._arrived.notify()
                if len(self._unready) < MOST_UNREADY:
                    return
        jax.block_until_ready(arrays)
        if is_alone:
            self.post(sink, item, size)

    def post_later(self, sink: Sink, item: Any, seconds: float) -> None:
        """Post something after a while; at once, if there is no worker to do that."""
        with self._lock:
            self._start_worker()
            if not self._alone:
                self._backlog.post_later(sink, item, seconds)
                self._arrived.notify()
                return
        self.post(sink, item)

    def cancel(self, sink: Sink) -> None:
        """Forget what was to be posted to a sink later, and wait if that is happening now."""
        with self._lock:
            self._backlog.cancel(sink)
        self.settle()

    def run(self, number: int, part: Embedded | None = None) -> Run:
        """Find the run with a number; 0 stands for one that was not registered, of a part."""
        return self.runs.find(number, part, unbounded=self.is_worker())

    @property
    def is_alone(self) -> bool:
        """Whether there is no worker any more."""
        return self._alone

    def put(self, chunk: Chunk, overflow: str, wait: bool = False) -> bool:
        """Queue a chunk for delivery, and say whether it was not dropped.

        If the queue is full, "wait", "drop", or "keep" it all the same. With `wait`, return when it
        has been delivered.
        """
        with self._lock:
            self._start_worker()
            self._post_ready()
            bounded = not chunk.run.unbounded and overflow != "keep"
            if bounded and self._backlog.is_full(chunk):
                if overflow == "drop":
                    return False
                self._wait_for_room(chunk)
            self._backlog.append(chunk)
            if wait and not chunk.run.unbounded:
                self._wait_until_done(self._backlog.put)
            elif self._alone:
                self._lend_a_hand()
            # Waking the worker costs more than all of the above, so only if it is asleep.
            elif self._asleep:
                self._arrived.notify()
            elif self._backlog.is_filling():
                self._pressing.notify()
        return True

    def _wait_for_room(self, chunk: Chunk) -> None:
        self._pressing.notify()
        while True:
            progress = self._progress
            # A program that is to stop may hand over what it has, which is the last of it.
            is_full = self._backlog.is_full
            patience = STUCK_AGAIN if chunk.run.was_stuck else STUCK
            room = self._wait_for(lambda: not is_full(chunk) or chunk.run.is_to_stop(), patience)
            # A callback that makes no progress may itself wait for the program that waits here.
            if room or progress == self._progress:
                chunk.run.was_stuck = chunk.run.was_stuck or not room
                return

    def flush(self, everywhere: bool = False) -> None:
        """Wait until everything has been delivered and written, and raise what went wrong."""
        self.wait()
        writers = [one for one in self.writers if everywhere or not one.waits_for_processes]
        for writer in writers:
            self.post(writer, None)
        if writers:
            self.drain()
        with self._lock:
            broken, self._broken = self._broken, None
        errors = failures.take()
        if broken is not None:
            raise broken
        raise_all(errors, "Several callbacks of spoolax failed.")

    def settle(self) -> None:
        """Wait as `wait` does; on the worker, deliver what was started there."""
        if not self.is_worker():
            self.wait()
            return
        while True:
            with self._lock:
                chunk = self._lines.take_unbounded()
            if chunk is None:
                return
            self._deliver(chunk)

    def wait(self) -> None:
        """Wait for all programs that were started, then until the queue is empty."""
        if self.is_worker():
            raise LogTypeError(
                "`spoolax.flush()` was called by a callback, which would wait for itself. Call it "
                "after the program, on another thread."
            )
        self.runs.wait()
        with contextlib.suppress(RuntimeError):
            self.wait_for_ends()
            jax.effects_barrier()
        if incomplete := self.runs.incomplete():
            self.wait_for_ends(always=True)
            for run in incomplete:
                self.runs.ended(run)
        if self.made_fail:
            self.made_fail = False
            forget_failures()
        self.drain()

    def drain_or_drop(self) -> None:
        """Wait as `drain` does, after Ctrl-C. If it is pressed again, drop what is left."""
        try:
            with self._lock:
                if not self._wait_until_done(self._backlog.put, PATIENCE):
                    reports.warning(
                        "Interrupted. About %d entries that were logged before are still being "
                        "delivered; press Ctrl-C again to drop them.",
                        self._backlog.entries,
                    )
            self.drain()
        except KeyboardInterrupt:
            self._drop()
            raise

    def _drop(self) -> None:
        reports.warning("About %d entries were dropped.", self._backlog.entries)
        self._backlog.drop()
        # The entry that is being delivered may be for somebody who is gone when we return.
        with self._lock:
            last = self._backlog.put
            self._wait_for(lambda: not 0 < self._current <= last, PATIENCE)

    def close(self) -> None:
        """Deliver everything, and end the worker: the interpreter must not end before it."""
        try:
            self.wait()
            with self._lock:
                self._backlog.post_until(math.inf)
            self.flush()
        except KeyboardInterrupt:
            self._drop()
        finally:
            with self._lock:
                worker, self._alone = self._worker, True
                self._arrived.notify()
                self._pressing.notify()
                self._delivered.notify_all()
            if worker is not None:
                worker.join(timeout=10)
                with self._lock:
                    self._worker = None


host = Host()


def flush(everywhere: bool = False, timeout: float = 300.0) -> None:
    """Wait until everything that was logged so far has been delivered, and written to files.

    Waits for all tapped programs that have been started, on any thread, and for their callbacks.
    Raises the first error of each callback that failed since the last time.

    Args:
        everywhere: Wait for the other processes of `jax.distributed` as well, which have to call
            this, too. Only then is what several of them write together written.
        timeout: Seconds to wait for them.

    Examples:
        >>> import spoolax
        >>> seen = []
        >>> def f(x):
        ...     spoolax.log({"x": x})
        ...     return 2 * x
        >>> y = spoolax.tap(f, seen.append)(1.0)
        >>> spoolax.flush()
        >>> float(seen[0]["x"])
        1.0
    """
    try:
        host.flush(everywhere)
    finally:  # An error here must not keep the others waiting.
        if everywhere:
            wait_for_all("spoolax.flush(everywhere=True)", timeout)


def _at_exit() -> None:
    # Errors in callbacks have been reported by now.
    with contextlib.suppress(Exception):
        host.close()


atexit.register(_at_exit)
# A forked child has neither the worker nor what it was to deliver.
os.register_at_fork(after_in_child=host.__init__)  # type: ignore[misc]
