"""What a program hands over: taken out of its reels, and queued for every sink.

It does so while it runs, and waits until that is done, so no more than that is done then. What is
left in its reels at the end is among its outputs, and is taken out when these are ready.
"""

from __future__ import annotations

import collections
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from .._jax import processes
from .._log.entry import Entry
from ..errors import StopRun
from ._reels.gather import Arrived, ShardGroup, arrived, wrapped
from ._reels.pieces import Part, ends
from ._reels.reel import Group, ReelRows
from .deliver import count_entries, deliver
from .host import host
from .lines import Chunk
from .pace import UNKNOWN, Pace
from .runs import Embedded, Run
from .sinks import Sink, reports

if TYPE_CHECKING:
    from .stream import Tap

LATENCY = 0.1  # Seconds, where nobody listens.


Pause: TypeAlias = tuple[int, int] | None


class Asked(NamedTuple):
    """What a call to the host is about: it has some numbers, and then the arrays of reels."""

    loop: str
    pauses: bool  # Then the first numbers are where the chunk began, and where it is now.
    numbers: int  # Arrays of numbers.
    groups: Sequence[Group | ShardGroup]
    last: Group | None  # A row that is in no reel.
    between: bool  # Inside `shard_map`: between calls that all devices make.

    def read(self, given: Iterator[Any]) -> tuple[Pause, list[int]]:
        """Take the numbers from what a call has: where the chunk began and ended, and the rest."""
        some = itertools.islice(given, self.numbers)
        numbers = [number for x in some for number in x.ravel().tolist()]
        return ((numbers[0], numbers[1]), numbers[2:]) if self.pauses else (None, numbers)

    def parts(self, numbers: Sequence[int], arrays: Iterator[Any]) -> list[Arrived]:
        """Take the rows from what a call has."""
        parts = arrived(self.groups, iter(numbers), arrays)
        if self.last is not None:
            words, *large = (x[None] for x in arrays)
            parts.append(Part(self.last, ReelRows(words, tuple(large))))
        return parts

    @property
    def holds_up(self) -> bool:
        """Whether the program waits until it is delivered, which may stop it."""
        return self.last is not None and self.last.holds_up


class Receiver:
    """Takes what a program hands over for its taps, and answers how long its next chunk may be."""

    def __init__(self, taps: Sequence[Tap], pace: Pace, part: Embedded | None) -> None:
        self.taps, self.pace, self.part = taps, pace, part
        # Programs with the same pace may have other loops, if they differ in more than shapes.
        self.places: dict[str, int] = {}
        self.absolute: frozenset[str] = frozenset()  # Loops whose limits are iterations.
        # The last run of a program over several processes that has ended, where they call.
        self._last: Run | None = None

    def __call__(self, asked: Asked, is_alone: bool, orders: Any, *given: Any) -> Any:
        if orders[0] < 0:
            return orders  # It was told to stop. What it logs since then did not happen.
        rest = iter(given)
        pause, numbers = asked.read(rest)
        run = self.run(orders)
        elapsed = run.arrived(asked.loop)
        parts = asked.parts(numbers, rest)
        run.in_order(functools.partial(self.put, parts, run, time.time()))
        orders = self.answer(run, asked.loop, is_alone, orders, pause, elapsed)
        run.goes_on(asked.loop)
        return orders

    def run(self, orders: Any) -> Run:
        """Find the run that calls."""
        return host.run(int(orders[0]), self.part)

    def begin(self, is_alone: bool, orders: Any) -> Any:
        """Somebody else's program begins. Say how."""
        run = self.run(orders)
        run.begun = time.perf_counter()
        self._stop_with_others(run)
        orders = self.pace.begin(run.number, self._latency(run))
        orders[0] = run.answer(is_alone)
        return orders

    def _stop_with_others(self, run: Run) -> None:
        """If a block around has seen enough in another run, it has in this one."""
        stops = (sink.stop for tap, sink in self._sinks(run) if tap.listens_to_python)
        run.stop = run.stop or next(filter(None, stops), None)

    def over(self, handover: Handover, is_alone: bool, numbers: Any, *arrays: Any) -> Any:
        """Somebody else's program ends, and this is left to hand over."""
        assert self.part is not None
        if not self.part.calls:  # Many of these may come in a short time.
            for tap, sink in self._sinks(None):
                if is_alone and sink.stop is not None and tap.listens_to_python:
                    raise sink.stop
                if tap in handover.listeners:
                    deliver_some = functools.partial(_deliver_ends, handover.groups, tap, sink)
                    item = numbers, arrays, time.time()
                    if not host.put_end(sink, (tap, handover), item, handover.size, deliver_some):
                        _dropped(sink, count_entries(ends(handover.groups, [item]), _wanted(tap)))
            return numbers
        run = host.run(abs(int(numbers[0])), self.part)
        run.in_order(functools.partial(self.ended, handover, run, numbers, arrays))
        if self.part.spans:
            self._stop_with_others(run)
            numbers = numbers.copy()
            numbers[0] = run.answer(is_alone)
            self._last = run
        return numbers

    def ended(self, handover: Handover, run: Run, numbers: Any, arrays: Sequence[Any]) -> None:
        """Queue what somebody else's program has left at its end."""
        run.ended = time.perf_counter()
        self.returned(Tail(numbers, arrays, handover), run)
        if not handover.listeners:  # Else when that has been read.
            host.runs.ended(run)

    def put(self, parts: Sequence[Arrived], run: Run, when: float) -> None:
        """Queue what has arrived."""
        for tap, sink in self._sinks(run):
            self._put(parts, run, tap, sink, when)

    def answer(
        self,
        run: Run,
        loop: str,
        is_alone: bool,
        orders: Any,
        pause: Pause,
        elapsed: float | None,
    ) -> Any:
        """What to answer a loop that may have paused, after a chunk from one iteration to another.

        That took `elapsed` seconds.
        """
        if self.part is not None:
            self._stop_with_others(run)
        answer = run.answer(is_alone)
        if is_alone and answer < 0:
            assert run.stop is not None
            raise run.stop  # At once: nothing is computed any more from what loops had by then.
        orders = orders.copy()
        # It has not ended before anybody could see that, so nothing may wait for the end any more.
        orders[:2] = answer, 1
        if pause is not None:
            (first, now), place, absolute = pause, self.places[loop], loop in self.absolute
            limit, made = int(orders[place]), wrapped(now - first)
            if limit == UNKNOWN:
                limit = max(1, made)
            elif absolute:
                limit = wrapped(limit - first)
            if made and elapsed is not None:
                limit = self.pace.next(loop, limit, made, elapsed, self._latency(run))
            orders[place] = wrapped(now + limit) if absolute else limit
        return orders

    def _sinks(self, run: Run | None) -> Iterator[tuple[Tap, Sink]]:
        for tap in self.taps:
            yield from ((tap, sink) for sink in tap.sinks_of(run))

    def _latency(self, run: Run) -> float:
        return min((sink.latency for _, sink in self._sinks(run)), default=LATENCY)

    def _put(self, parts: Sequence[Arrived], run: Run, tap: Tap, sink: Sink, when: float) -> None:
        mine = [part for part in parts if tap in part.group.listeners]
        if not mine:
            return
        number, size = sum(part.entries for part in mine), sum(part.size for part in mine)
        wanted = _wanted(tap)
        due = time.perf_counter() + sink.latency / 2
        chunk = Chunk(run, sink, deliver(mine, run, sink, wanted, when), size, number, due)
        overflow = "wait" if any(part.group.is_rare for part in mine) else sink.overflow
        if not host.put(chunk, overflow, wait=any(part.group.holds_up for part in mine)):
            _dropped(sink, count_entries(mine, wanted))

    def returned(self, tail: Tail, run: Run) -> None:
        """Queue what a program that has been started will have left."""
        rows = _Left(tail, run, self.pace)
        tail.handover.is_new = False
        if not tail.is_mine:
            host.runs.ended(run)
            return
        for tap, sink in self._sinks(run):
            if tap in tail.handover.listeners:
                rows.put(tap, sink)

    def raise_stop(self, number: Any) -> None:
        """Raise what stopped the run with this number, negated."""
        spans = self.part is not None and self.part.spans
        run = (self._last or Run(0, None)) if spans else host.run(-int(number))
        if run.stop is None:  # The one process that is called knows more.
            run.stop = StopRun("Another process stopped this program.")
            for _, sink in self._sinks(run):
                sink.stop = sink.stop or run.stop
        host.made_fail = True
        raise run.stop


class Handover:
    """What is known, before a program runs, of what it returns for us."""

    def __init__(self, receiver: Receiver, groups: tuple[Group | ShardGroup, ...]) -> None:
        self.receiver, self.groups = receiver, groups
        self.listeners = frozenset(tap for group in groups for tap in group.listeners)
        self.size = sum(group.size for group in groups)
        self.is_new = True  # The first run takes longer, for the program is compiled then.

    @functools.cached_property
    def calls(self) -> dict[Any, str]:
        """The `log` calls in loops that are in no other, and their loops."""
        groups = (one for group in self.groups for one in getattr(group, "groups", [group]))
        return {
            (entry.meta.site, entry.meta.call): group.path[0]
            for group in groups
            if len(group.path) == 1
            for entry in group.nodes
            if isinstance(entry, Entry)
        }


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["numbers", "arrays"],
    meta_fields=["handover"],
)
class Tail:
    """What a program returns for us: the number of the run, counts, and the arrays of reels."""

    def __init__(self, numbers: Any, arrays: Sequence[Any], handover: Handover) -> None:
        self.numbers, self.arrays, self.handover = numbers, arrays, handover
        self.is_mine = True  # And not that of another process, which is called by the program.

    def read_here(self) -> Any:
        """Have it read by one process of those that run the program, all of which call this.

        Returns something that is ready when the program has ended.
        """
        if processes.count() > 1:
            self.is_mine = processes.calls_me(self.numbers)
            self.numbers, *self.arrays = processes.readable([self.numbers, *self.arrays])
        return self.numbers


class _Left:
    """What was left in reels at the end of a run. There is something to read when it has ended."""

    def __init__(self, tail: Tail, run: Run, pace: Pace) -> None:
        self._tail, self._run, self._pace = tail, run, pace
        self._is_timed = run.begun is not None and not tail.handover.is_new
        self._when, self._totals = 0.0, dict[str, int]()

    @functools.cached_property
    def parts(self) -> list[Arrived]:
        tail, groups = self._tail, self._tail.handover.groups
        run, self._when = self._run, time.time()
        try:
            number, *numbers = np.asarray(tail.numbers).tolist()
        except jax.errors.JaxRuntimeError:  # It surfaces from the outputs of the program.
            return []
        finally:
            host.runs.ended(run)
        rest = iter(numbers)
        parts = arrived(groups, rest, map(np.asarray, tail.arrays))
        self._totals = dict(zip(tail.handover.receiver.places, rest, strict=True))
        if self._is_timed:
            assert run.begun is not None
            self._pace.ended(run.begun, run.ended or time.perf_counter(), self._totals)
        return parts if number >= 0 else []  # What it logs after it was told to stop did not happen

    def put(self, tap: Tap, sink: Sink) -> None:
        waits: collections.deque[Sequence[Any]] = collections.deque()
        if isinstance(self._tail.numbers, jax.Array):
            waits.append([self._tail.numbers])
        wanted = _wanted(tap)

        def read() -> list[Arrived]:
            waits.clear()
            return [part for part in self.parts if tap in part.group.listeners]

        def deliver_all() -> Iterator[None]:
            yield from deliver(read(), self._run, sink, wanted, self._when)
            if sink.block is not None:
                sink.block.run_ended(self._run, self._tail.handover.calls, self._totals)

        def drop_all() -> Iterator[None]:
            _dropped(sink, count_entries(read(), wanted))
            yield

        due = time.perf_counter() + sink.latency / 2
        size = self._tail.handover.size
        chunk = Chunk(self._run, sink, deliver_all(), size, 1, due, waits, is_last=True)
        if not host.put(chunk, sink.overflow, wait=host.is_alone):
            chunk.deliver = drop_all()  # How many there are is known at the end.
            host.put(chunk, "keep")


def _deliver_ends(
    groups: Sequence[Any], tap: Tap, sink: Sink, items: Sequence[Any], run: Run
) -> Iterator[None]:
    mine = [part for part in ends(groups, items) if tap in part.group.listeners]
    _, _, when = items[0]
    return deliver(mine, run, sink, _wanted(tap), when)


def _wanted(tap: Tap) -> Callable[[Any], str | None]:
    """Say whether a tap wants an entry, and which prefix its keys get."""
    return lambda meta: tap.options.prefix if tap in meta.listeners else None


def _dropped(sink: Sink, count: int) -> None:
    if count and not sink.dropped:
        reports.warning(
            "The callback %s is too slow, and entries are being dropped, as `overflow='drop'` "
            "says. The tapped function, or the block, has their number as `.dropped`.",
            sink.name,
        )
    sink.dropped += count
