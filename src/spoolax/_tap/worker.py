"""The thread that delivers what is queued, and how others wait for it.

When the interpreter shuts down, there is no worker any more, and none can be started. Threads that
are still there then do its work while they wait.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .._jax.arrays import is_ready
from .._jax.effects import add_to_barrier, markers
from .._log.primitive import listening
from .._threads import start_thread
from .backlog import Backlog, Pile
from .lines import Chunk
from .sinks import Sink, reports

# The worker competes with the program for the interpreter. So it begins when no chunk has come for
# this many seconds, or when one is due,
NAP = 0.005
# lets the program's threads run after this many seconds of work,
BUSY = 0.001
# and is not woken for each chunk: it polls, and goes to sleep after this many naps for nothing.
NAPS = 100
# This often it looks whether the device is done, if somebody waits for that.
GLANCE = 0.0005
# And this often, who waits for the worker looks whether there is still a reason to.
ASK = 0.1


class Worker:
    """Has a queue, and a thread that delivers what is in it."""

    def __init__(self) -> None:
        # One lock, and three things that may be waited for.
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)  # While the worker sleeps.
        self._pressing = threading.Condition(lock)  # Somebody waits, or the queue fills up.
        self._delivered = threading.Condition(lock)
        self._asleep = False
        self._lock = lock
        self._backlog = Backlog()
        self._lines = self._backlog.lines
        self._progress = 0  # Entries that have been delivered.
        self._current = 0  # The number of the chunk that is being delivered.
        self._rested = 0.0  # When the worker last let the program's threads run.
        self._worker: threading.Thread | None = None  # Who delivers.
        self._alone = False  # There is no worker, and there will be none.
        self._waiting = 0  # Threads in `flush`.
        self.waiting_threads: set[int] = set()  # They do nothing before the worker does.
        # What is to be queued when some arrays are ready.
        self._unready: collections.deque[tuple[Sink, Any, int, Sequence[Any]]] = collections.deque()
        self.misses_starts = False  # Of programs that hand over what they log at their end only.
        self._broken: BaseException | None = None

    def is_worker(self) -> bool:
        """Say whether we are on the thread that delivers."""
        return threading.current_thread() is self._worker

    def _post_ready(self) -> None:
        """Queue what has become ready."""
        while self._unready and all(map(is_ready, self._unready[0][3])):
            sink, item, size, _ = self._unready.popleft()
            if not self._backlog.add_to_pile(sink, item, size):
                self._backlog.append(Pile(sink, item, size))

    def wait_for_ends(self, always: bool = False) -> None:
        """Wait for programs of this thread that hand over what they log at their end only."""
        if self.misses_starts or always:
            with listening(None):
                jax.block_until_ready(markers())

    def drain(self) -> None:
        """Wait until what has come by now has been delivered, whatever programs still run."""
        with self._lock:
            self._post_ready()
            self._wait_until_done(self._backlog.put)
            while self._lines.any_unbounded():  # From programs that callbacks started.
                self._wait_until_done(self._backlog.put)

    def barrier(self) -> None:
        """What `jax.effects_barrier()` does as well: our callbacks are effects, too."""
        if not self.is_worker():  # It would wait for itself.
            self.wait_for_ends()
            self.drain()

    def _wait_until_done(self, number: int, timeout: float | None = None) -> bool:
        """Wait until this chunk, and all that came before it, are delivered, and say whether so."""
        self._waiting += 1
        try:
            self._arrived.notify()
            self._pressing.notify()
            return self._wait_for(lambda: self._backlog.done >= number, timeout)
        finally:
            self._waiting -= 1

    def _wait_for(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is so, and say whether it is. Without a worker, do its work."""
        begun = time.perf_counter()
        while not is_so():
            if timeout is not None and time.perf_counter() - begun > timeout:
                return False
            self._start_worker()
            if self._alone and self._lend_a_hand():
                continue
            with self._idle():
                # Alone: the device is not done, or another thread delivers.
                self._delivered.wait(GLANCE if self._alone else ASK)
        return True

    def _lend_a_hand(self) -> bool:
        """Do the work of the worker on this thread, and say whether there was any."""
        any_at_all = False
        while self._worker is None and self._lines.any_ready():
            any_at_all, self._worker = True, threading.current_thread()
            self._lock.release()
            try:
                self._deliver_all()
            finally:
                self._lock.acquire()
                self._worker = None
        return any_at_all

    @contextlib.contextmanager
    def _idle(self) -> Iterator[None]:
        """This thread does nothing before the worker does."""
        me = threading.get_ident()
        self.waiting_threads.add(me)
        try:
            yield
        finally:
            self.waiting_threads.discard(me)

    def _start_worker(self) -> None:
        if not self._alone and (self._worker is None or not self._worker.is_alive()):
            add_to_barrier(self.barrier)
            self._worker = start_thread(self._work_alone, "spoolax")
            self._alone = self._worker is None

    def _work_alone(self) -> None:
        with listening(None):  # Whoever listens to all threads does not mean this one.
            self._work()

    def _work(self) -> None:
        naps = 0
        while True:
            with self._lock:
                if self._alone:
                    return
                self._backlog.post_until(time.perf_counter())
                self._post_ready()
                if naps > NAPS and self._lines.first() is None and not self._unready:
                    self._sleep()
                    continue
                if not self._is_due():
                    self._pressing.wait(NAP)
                    naps += 1
                    continue
            try:
                if self._deliver_all():
                    naps = 0
                    continue
            except BaseException as error:  # Nobody else would deliver, nor say so.
                self._fail(error)
            with self._lock:  # The device is not done.
                self._pressing.wait(GLANCE if self._is_pressed() else NAP)

    def _sleep(self) -> None:
        """Sleep until something comes, or is to be posted."""
        self._asleep = True
        self._arrived.wait(self._backlog.pause())
        self._asleep = False

    def _is_due(self) -> bool:
        """Say whether there is something to deliver that has waited long enough."""
        first = self._lines.first()
        if first is None:
            return False
        now = time.perf_counter()
        return self._is_pressed() or now - self._backlog.came > NAP or now > first.due

    def _is_pressed(self) -> bool:
        return self._waiting > 0 or self._backlog.is_filling()

    def _deliver_all(self) -> bool:
        """Deliver what is ready, and say whether there was anything."""
        self._rested, any_at_all = time.perf_counter(), False
        while True:
            with self._lock:
                chunk = self._lines.take()
            if chunk is None:
                return any_at_all
            any_at_all = True
            self._deliver(chunk, in_turn=True)

    def _deliver(self, chunk: Chunk, in_turn: bool = False) -> None:
        """Deliver a chunk; if it was taken in turn, until it is the turn of another line."""
        begun, outer, is_over = time.perf_counter(), self._current, True
        self._current = chunk.number
        try:
            for _ in chunk.deliver if self._backlog.is_wanted(chunk) else ():
                self._progress += 1
                if not self._backlog.is_wanted(chunk):
                    break
                pauses = not chunk.is_ready()
                if time.perf_counter() - self._rested > BUSY:
                    time.sleep(1e-6)  # Gives up the interpreter, if only for an instant.
                    self._rested = time.perf_counter()
                    pauses = pauses or self._lines.should_pause(chunk, self._rested - begun)
                if pauses and in_turn:
                    is_over = False
                    break
        except Exception as error:  # One of our own: those of callbacks do not get here.
            self._fail(error)
        finally:
            self._current = outer
            with self._lock:
                if in_turn:
                    self._lines.give_back(chunk, time.perf_counter() - begun, is_over)
                if is_over:
                    self._backlog.finished(chunk)
                    self._delivered.notify_all()

    def _fail(self, error: BaseException) -> None:
        reports.error("spoolax could not deliver a chunk of entries.", exc_info=error)
        self._broken = self._broken or error
