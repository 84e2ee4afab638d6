"""The host side of streaming: one thread that delivers what programs hand over.

Programs hand over chunks of entries while they run, and do nothing else on the host: everything
that takes time happens on the worker. What waits is the `Backlog`; when that is full, the program
waits, or drops. A chunk is an iterator that delivers it, so this file knows nothing of what entries
are.

When the interpreter shuts down, there is no worker any more, and none can be started. Threads that
are still there then deliver what they hand over.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .._jax.arrays import is_ready
from .._jax.effects import add_to_barrier, forget_failures, markers
from .._log.primitive import listening
from .._processes import wait_for_all
from .._threads import start_thread
from ..errors import LogTypeError
from .backlog import Backlog, Ends, Pile, run_of
from .lines import Chunk
from .runs import Embedded, Run, Runs
from .sinks import Sink, failures, raise_all, reports

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
# What Python has logged, and waits for programs that are still running, at most.
MOST_UNREADY = 1000
# When the queue is full and nothing has been delivered for this long, the program goes on.
STUCK = 5.0
# Who has pressed Ctrl-C is told after this long why nothing happens.
PATIENCE = 1.0


class Host:
    """Takes what is to be delivered, and has a thread that does it."""

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
        self.runs = Runs()
        # What is to be queued when some arrays are ready.
        self._unready: collections.deque[tuple[Sink, Any, int, Sequence[Any]]] = collections.deque()
        self.misses_starts = False  # Of programs that hand over what they log at their end only.
        self.made_fail = False  # A program, to stop it. Whoever asked for that is told.
        self._broken: BaseException | None = None

    def begin(self, sink: Sink) -> Run:
        """Register an execution of a program."""
        return self.runs.begin(sink, unbounded=self.is_worker())

    def is_worker(self) -> bool:
        """Say whether we are on the thread that delivers."""
        return threading.current_thread() is self._worker

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

    def _post_ready(self) -> None:
        """Queue what has become ready."""
        while self._unready and all(map(is_ready, self._unready[0][3])):
            sink, item, size, _ = self._unready.popleft()
            if not self._backlog.add_to_pile(sink, item, size):
                self._backlog.append(Pile(sink, item, size))

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
            room = self._wait_for(lambda: not is_full(chunk) or chunk.run.is_to_stop(), STUCK)
            # A callback that makes no progress may itself wait for the program that waits here.
            if room or progress == self._progress:
                return

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
            add_to_barrier(_barrier)
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
        if self.made_fail:
            self.made_fail = False
            forget_failures()
        self.drain()

    def wait_for_ends(self) -> None:
        """Wait for programs of this thread that hand over what they log at their end only."""
        if self.misses_starts:
            with listening(None):
                jax.block_until_ready(markers())

    def drain(self) -> None:
        """Wait until what has come by now has been delivered, whatever programs still run."""
        with self._lock:
            self._post_ready()
            self._wait_until_done(self._backlog.put)
            while self._lines.any_unbounded():  # From programs that callbacks started.
                self._wait_until_done(self._backlog.put)

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
    """Wait until everything that was logged so far has been delivered.

    Waits for all tapped programs that have been started, on any thread, and for their callbacks.
    Raises the first error of each callback that failed since the last time.

    Args:
        everywhere: Wait for the other processes of `jax.distributed` as well, which have to call
            this, too.
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
        host.flush()
    finally:  # An error here must not keep the others waiting.
        if everywhere:
            wait_for_all("spoolax.flush(everywhere=True)", timeout)


def _barrier() -> None:
    """What `jax.effects_barrier()` does as well: our callbacks are effects, too."""
    if not host.is_worker():  # It would wait for itself.
        host.wait_for_ends()
        host.drain()


def _at_exit() -> None:
    # Errors in callbacks have been reported by now.
    with contextlib.suppress(Exception):
        host.close()


atexit.register(_at_exit)
# A forked child has neither the worker nor what it was to deliver.
os.register_at_fork(after_in_child=host.__init__)  # type: ignore[misc]
