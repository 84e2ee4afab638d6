"""The host side of streaming: a bounded queue, and one thread that delivers what is in it.

Programs hand over chunks of entries while they run, and do nothing else on the host: everything
that takes time happens on the worker. When the queue is full, the program waits, or drops. A chunk
is a function that delivers it, so this file knows nothing of what entries are.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from ..errors import LogTypeError
from .runs import Run, Runs
from .sinks import Sink, failures, raise_all, reports

MOST_BYTES = 64 << 20
MOST_ENTRIES = 1 << 20
MANY_BYTES = 4 << 20  # More than this does not wait, as it is still in the caches.
MANY_ENTRIES = 1 << 19
# The worker competes with the program for the interpreter. So it begins when no chunk has come for
# this many seconds, or when one is due,
NAP = 0.005
# lets the program's threads run after this many seconds of work,
BUSY = 0.001
# and is not woken for each chunk: it polls, and goes to sleep after this many naps for nothing.
NAPS = 100
# When the queue is full and nothing has been delivered for this long, the program goes on.
STUCK = 5.0


class Chunk(NamedTuple):
    """Something to deliver, and how much it is."""

    run: Run
    deliver: Callable[[], Iterator[None]]  # It pauses after every entry.
    size: int
    entries: int
    due: float  # When it should be delivered at the latest.
    number: int = 0  # Its place among all that were queued.


class Host:
    """A queue of what is to be delivered, and the thread that does it."""

    def __init__(self) -> None:
        # One lock, and three things that may be waited for.
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)  # While the worker sleeps.
        self._pressing = threading.Condition(lock)  # Somebody waits, or the queue fills up.
        self._delivered = threading.Condition(lock)
        self._asleep = False
        self._lock = lock
        self._queue: collections.deque[Chunk] = collections.deque()
        self._bytes = self._entries = 0
        self._put = self._done = 0  # The last chunk that came; all up to this one are delivered.
        self._early: set[int] = set()  # Delivered before one that came earlier.
        self._progress = 0  # Entries that have been delivered.
        self._worker: threading.Thread | None = None
        self._waiting = 0  # Threads in `flush`.
        self.waiting_threads: set[int] = set()  # They do nothing before the worker does.
        self._closed = False
        self._last = 0.0  # When the last chunk came.
        self.runs = Runs()
        self._broken: Exception | None = None

    def begin(self, sink: Sink) -> Run:
        """Register an execution of a program."""
        with self._lock:
            self._start_worker()
        return self.runs.begin(sink, unbounded=self.is_worker())

    def is_worker(self) -> bool:
        """Say whether we are on the worker thread, where things are delivered."""
        return threading.current_thread() is self._worker

    def post(self, sink: Sink, item: Any, size: int = 0) -> None:
        """Queue something that does not come from a program, for a sink to get on the worker."""
        run = sink.run
        if run is None:
            run = sink.run = Run(0, sink)
        if self.is_worker():
            sink.call(run, item)
            return

        def deliver() -> Iterator[None]:
            sink.call(run, item)
            yield

        self.put(Chunk(run, deliver, size, 1, time.perf_counter() + sink.latency), "wait")

    def run(self, number: int) -> Run:
        """Find the run with a number; 0 stands for one that was not registered."""
        return self.runs.find(number, unbounded=self.is_worker())

    def put(self, chunk: Chunk, overflow: str, wait: bool = False) -> bool:
        """Queue a chunk for delivery, and say whether it was not dropped.

        With `wait`, return when it has been delivered.
        """
        with self._lock:
            self._start_worker()
            if not chunk.run.unbounded and self._is_full(chunk):
                if overflow == "drop":
                    return False
                self._wait_for_room(chunk)
            if self._closed:
                return True  # The interpreter is about to end.
            self._put += 1
            self._queue.append(chunk._replace(number=self._put))
            self._last = time.perf_counter()
            self._bytes += chunk.size
            self._entries += chunk.entries
            if wait and not chunk.run.unbounded:
                self._wait_until_done(self._put)
            # Waking the worker costs more than all of the above, so only if it is asleep.
            elif self._asleep:
                self._arrived.notify()
            elif self._is_filling():
                self._pressing.notify()
        return True

    def _wait_for_room(self, chunk: Chunk) -> None:
        self._pressing.notify()
        while True:
            progress = self._progress
            with self._idle():
                room = self._delivered.wait_for(
                    lambda: not self._is_full(chunk) or self._closed, timeout=STUCK
                )
            # A callback that makes no progress may itself wait for the program that waits here.
            if room or progress == self._progress:
                return

    def _wait_until_done(self, number: int) -> None:
        """Wait until this chunk, and all that came before it, have been delivered."""
        self._waiting += 1
        try:
            self._arrived.notify()
            self._pressing.notify()
            with self._idle():
                self._delivered.wait_for(lambda: self._done >= number or self._closed)
        finally:
            self._waiting -= 1

    @contextlib.contextmanager
    def _idle(self) -> Iterator[None]:
        """This thread does nothing before the worker does."""
        me = threading.get_ident()
        self.waiting_threads.add(me)
        try:
            yield
        finally:
            self.waiting_threads.discard(me)

    def _is_full(self, chunk: Chunk) -> bool:
        return self._entries > 0 and (
            self._bytes + chunk.size > MOST_BYTES or self._entries + chunk.entries > MOST_ENTRIES
        )

    def _is_filling(self) -> bool:
        return self._entries > MANY_ENTRIES or self._bytes > MANY_BYTES

    def _start_worker(self) -> None:
        if self._worker is None and not self._closed:
            self._worker = threading.Thread(target=self._work, name="spoolax", daemon=True)
            try:
                self._worker.start()
            except RuntimeError:  # The interpreter is shutting down; `flush` will deliver.
                self._worker, self._closed = None, True

    def _work(self) -> None:
        idle = 0
        while not self._closed:
            with self._lock:
                if idle > NAPS:
                    self._asleep = True
                    self._arrived.wait_for(lambda: self._queue or self._closed)
                    self._asleep = False
                while not self._is_due():
                    self._pressing.wait(NAP)
                    idle += 1
                    if (idle > NAPS and not self._queue) or self._closed:
                        break
            if self._deliver_all():
                idle = 0

    def _is_due(self) -> bool:
        """Say whether there is something to deliver that has waited long enough."""
        if not self._queue:
            return False
        now = time.perf_counter()
        return (
            self._waiting > 0
            or self._is_filling()
            or now - self._last > NAP
            or now > self._queue[0].due
        )

    def _deliver_all(self) -> bool:
        """Deliver what is in the queue, and say whether there was anything."""
        rested, any_at_all = time.perf_counter(), False
        while True:
            with self._lock:
                if not self._queue:
                    return any_at_all
                any_at_all = True
                chunk = self._queue.popleft()
            for _ in self._delivering(chunk):
                if time.perf_counter() - rested > BUSY:
                    time.sleep(1e-6)  # Gives up the interpreter, if only for an instant.
                    rested = time.perf_counter()

    def _delivering(self, chunk: Chunk) -> Iterator[None]:
        try:
            for _ in chunk.deliver():
                self._progress += 1
                yield
        except Exception as error:  # One of our own: those of callbacks do not get here.
            reports.error("spoolax could not deliver a chunk of entries.", exc_info=error)
            self._broken = self._broken or error
        finally:
            with self._lock:
                self._early.add(chunk.number)
                while self._done + 1 in self._early:
                    self._done += 1
                    self._early.remove(self._done)
                self._bytes -= chunk.size
                self._entries -= chunk.entries
                self._delivered.notify_all()

    def flush(self) -> None:
        """Wait until everything has been delivered, and raise what went wrong."""
        self.wait()
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
                chunk = next((c for c in self._queue if c.run.unbounded), None)
                if chunk is None:
                    return
                self._queue.remove(chunk)
            collections.deque(self._delivering(chunk), maxlen=0)

    def wait(self) -> None:
        """Wait for all programs that were started, then until the queue is empty."""
        if self.is_worker():
            raise LogTypeError(
                "`spoolax.flush()` was called by a callback, which would wait for itself. Call it "
                "after the program, on another thread."
            )
        self.runs.wait()
        with contextlib.suppress(RuntimeError):
            jax.effects_barrier()
        if self._closed:
            self._deliver_all()
        self.drain()

    def drain(self) -> None:
        """Wait until what has come by now has been delivered, whatever programs still run."""
        with self._lock:
            self._wait_until_done(self._put)
            while any(
                chunk.run.unbounded for chunk in self._queue
            ):  # From programs that callbacks started.
                self._wait_until_done(self._put)

    def close(self) -> None:
        """Deliver everything, and end the worker: the interpreter must not end before it."""
        try:
            self.flush()
        finally:
            with self._lock:
                worker, self._worker, self._closed = self._worker, None, True
                self._arrived.notify()
                self._pressing.notify()
                self._delivered.notify_all()
            if worker is not None:
                worker.join(timeout=10)


host = Host()


def flush() -> None:
    """Wait until everything that was logged so far has been delivered.

    Waits for all tapped programs that have been started, on any thread, and for their callbacks.
    Raises the first error of each callback that failed since the last time.

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
    host.flush()


def _at_exit() -> None:
    # Errors in callbacks have been reported by now.
    with contextlib.suppress(Exception):
        host.close()


atexit.register(_at_exit)
# A forked child has neither the worker nor what it was to deliver.
os.register_at_fork(after_in_child=host.__init__)  # type: ignore[misc]
