"""The host side of streaming: a bounded queue, and one thread that delivers what is in it.

Programs hand over chunks of entries while they run, and do nothing else on the host: everything
that takes time happens on the worker. When the queue is full, the program waits, or drops. A chunk
is a function that delivers it, so this file knows nothing of what entries are.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import LogTypeError, StopRun

MOST_BYTES = 64 << 20
MOST_ENTRIES = 1 << 20
MANY_BYTES = 4 << 20  # What the worker does not let wait, as it is still in the caches.
MANY_ENTRIES = 1 << 19
# The worker competes with the program for the interpreter. So it begins when no chunk has come for
# so many seconds, or when one is due,
NAP = 0.005
# lets the program's threads have a turn after so many seconds of work,
BUSY = 0.001
# and is not woken for each chunk: it looks by itself, and sleeps after so many naps for nothing.
NAPS = 100
# When the queue is full, and no entry has been delivered for so long, the program goes on.
STUCK = 5.0
KEPT_RUNS = 1024

logger = logging.getLogger("spoolax")


class Sink:
    """A callback, how it wants its entries, and what has become of it."""

    def __init__(
        self,
        callback: Callable[[Any], Any],
        batch: bool = False,
        latency: float = 0.1,
        overflow: str = "wait",
        owner: Any = None,
    ) -> None:
        self.callback, self.batch = callback, batch
        self.latency, self.overflow = latency, overflow
        self.owner = owner  # Who raises what goes wrong, if it is not left to `flush`.
        self.run: Run | None = None  # For what does not come from a program.
        self.dropped = 0
        self.failures = 0
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        name = getattr(self.callback, "__qualname__", None) or type(self.callback).__qualname__
        return f"{getattr(self.callback, '__module__', '')}.{name}".lstrip(".")

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return f"The callback {self.name}" if self.owner is None else type(self.owner).__name__

    def call(self, run: Run, logs: Any) -> None:
        """Hand something over. Whatever goes wrong is the sink's affair, not the program's."""
        try:
            self.callback(logs)
        except StopRun as stop:
            run.stop = run.stop or stop
            run.done_with.add(self)
            host.stopping(self, run)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Report an error, the first time, and keep it until somebody wants it raised."""
        first = host.first_failure(self)
        first.failures += 1
        if first.error is None:
            first.error = error
            host.failed(first)
            logger.error(
                "%s failed. The program goes on, and it gets the entries that follow. The error "
                "will be raised %s.",
                self.title,
                "when it is closed"
                if getattr(self.owner, "is_open", False)
                else "by spoolax.flush()",
                exc_info=error,
            )


class Run:
    """One execution of a program."""

    def __init__(self, number: int, sink: Sink | None) -> None:
        self.number, self.sink = number, sink
        self.stop: StopRun | None = None
        self.stopped = False  # It was asked to stop, and did; else it ended before it could.
        self.done_with: set[Sink] = set()  # Sinks that have seen enough.
        self.unbounded = False  # It was started by the worker, which must not wait for itself.
        self.token: Any = None
        self._device: str | None = None
        # If it was not registered, it is not known when it began.
        self._begun = None if sink is None else time.perf_counter()
        self._paused: dict[str, float] = {}

    @property
    def device(self) -> str | None:
        """The device that the program runs on, or None if that is not known."""
        if self._device is None and self.token is not None:
            devices = self.token.devices()
            self._device = str(min(devices, key=lambda d: d.id)) if devices else None
        return self._device

    def arrived(self, loop: str) -> float | None:
        """Seconds since this loop (or the program) went on after it last paused, if known."""
        since = self._paused.get(loop, self._begun)
        return None if since is None else time.perf_counter() - since

    def end_if_asked_to(self) -> None:
        if self.stop is not None:
            self.stopped = True
            raise self.stop

    def goes_on(self, loop: str) -> None:
        self._paused[loop] = time.perf_counter()


class Chunk(NamedTuple):
    """Something to deliver, and how much it is."""

    run: Run
    deliver: Callable[[], Iterator[None]]  # It pauses after every entry.
    size: int
    entries: int
    due: float  # It should not wait for longer than until then.
    number: int = 0  # Its place among all that were queued.


class Host:
    """Everything that is under way."""

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
        self._numbers = itertools.count(1)
        self._last = 0.0  # When the last chunk came.
        self._runs: dict[int, Run] = {}
        self._anonymous: collections.OrderedDict[int, Run] = collections.OrderedDict()
        self._dispatched: collections.deque[Run] = collections.deque()
        self._failed: list[Sink] = []
        self._stopping: collections.deque[tuple[Sink, Run]] = collections.deque(maxlen=KEPT_RUNS)
        self._broken: Exception | None = None

    def begin(self, sink: Sink) -> Run:
        """Register an execution of a program."""
        run = self._new_run(sink)
        with self._lock:
            self._start_worker()
            self._runs[run.number] = run
        return run

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

    def _new_run(self, sink: Sink | None) -> Run:
        run = Run(next(self._numbers) & 0x7FFFFFFF, sink)
        run.unbounded = self.is_worker()
        return run

    def failed_to_run(self, run: Run) -> None:
        """A program ended with an error, or was not even started."""
        with self._lock:
            self._runs.pop(run.number, None)

    def dispatched(self, run: Run, token: Any) -> None:
        """A program was started; `token` is ready when it has ended."""
        run.token = token
        with self._lock:
            self._dispatched.append(run)
            while self._dispatched and _is_ready(self._dispatched[0].token):
                self._runs.pop(self._dispatched.popleft().number, None)

    def run(self, number: int) -> Run:
        """Find the run with a number; 0 stands for one that was not registered."""
        run = self._runs.get(number) or self._anonymous.get(number)
        if run is None:
            run = self._new_run(None)
            with self._lock:
                self._anonymous[run.number] = run
                if len(self._anonymous) > KEPT_RUNS:  # Nobody says when they end.
                    self._anonymous.popitem(last=False)
        return run

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

    def first_failure(self, sink: Sink) -> Sink:
        """The first sink of the same owner that has failed, if one has."""
        with self._lock:
            mine = (s for s in self._failed if s.owner is sink.owner is not None)
            return next(mine, sink)

    def failed(self, sink: Sink) -> None:
        with self._lock:
            self._failed.append(sink)

    def stopping(self, sink: Sink, run: Run) -> None:
        with self._lock:
            self._stopping.append((sink, run))

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
        except Exception as error:  # Of our own; those of callbacks do not come here.
            logger.error("spoolax could not deliver a chunk of entries.", exc_info=error)
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
            failed, self._failed = self._failed, []
            broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
        raise_all(errors_of(failed), "Several callbacks of spoolax failed.")

    def errors_of(self, owner: Any) -> list[BaseException]:
        """Take out what went wrong in the sinks of an owner, so that it is raised once."""

        def is_mine(sink: Sink) -> bool:
            return owner is sink.owner or owner is sink.callback

        with self._lock:
            mine = list(filter(is_mine, self._failed))
            self._failed = [sink for sink in self._failed if sink not in mine]
            asked = [pair for pair in self._stopping if is_mine(pair[0])]
            for pair in asked:
                self._stopping.remove(pair)
        # A program that was over before it could be stopped has not raised anything.
        late = [run.stop for _, run in asked if run.stop is not None and not run.stopped]
        return errors_of(mine) + late

    def settle(self) -> None:
        """Wait as `wait` does; on the worker, deliver what was started there."""
        if not self.is_worker():
            self.wait()
            return
        for run in tuple(self._dispatched):
            if run.unbounded:
                _wait(run.token)
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
        for run in tuple(self._dispatched):
            _wait(run.token)
        with contextlib.suppress(RuntimeError):
            jax.effects_barrier()
        if self._closed:
            self._deliver_all()
        self.drain()

    def drain(self) -> None:
        """Wait until what has come by now has been delivered, whatever programs still run."""
        with self._lock:
            self._wait_until_done(self._put)
            while any(chunk.run.unbounded for chunk in self._queue):  # Of what callbacks started.
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


def errors_of(failed: Sequence[Sink]) -> list[BaseException]:
    """The first error of each sink; it forgets it."""
    errors = []
    for sink in failed:
        assert sink.error is not None
        if sink.failures > 1:
            sink.error.add_note(f"{sink.title} failed {sink.failures} times.")
        errors.append(sink.error)
        sink.error, sink.failures = None, 0
    return errors


def raise_all(errors: Sequence[BaseException], message: str) -> None:
    """Raise the error, if there is one; if there are several, all of them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(message, errors)


def _is_ready(token: Any) -> bool:
    try:
        return bool(token.is_ready())
    except RuntimeError:  # It failed, or was deleted.
        return True


def _wait(token: Any) -> None:
    # An error of the program surfaces from its outputs. Here it only means that it has ended.
    with contextlib.suppress(RuntimeError):
        jax.block_until_ready(token)


def _at_exit() -> None:
    # Whatever fails in a callback has been reported by now.
    with contextlib.suppress(Exception):
        host.close()


atexit.register(_at_exit)
# The worker is not in a forked child, and neither is what it was to deliver.
os.register_at_fork(after_in_child=host.__init__)  # type: ignore[misc]
