"""What a program hands over: taken out of its reels, and queued for every sink.

It does so while it runs, and waits until that is done, so no more than that is done then. What is
left in its reels at the end is among its outputs, and is taken out when these are ready.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..errors import StopRun
from .deliver import Part, count_entries, deliver
from .host import host
from .lines import Chunk
from .pace import Pace
from .reel import Group, ReelRows
from .runs import Embedded, Run
from .sinks import Sink, reports

if TYPE_CHECKING:
    from .stream import Tap


class Asked(NamedTuple):
    """What a call to the host is about: it has some numbers, and then the arrays of reels."""

    loop: str
    pauses: bool  # Then the first numbers are where the chunk began, and where it is now.
    numbers: int  # Arrays of numbers.
    groups: Sequence[Group]
    last: Group | None  # A row that is in no reel.


class Receiver:
    """Takes what a program hands over for its taps, and answers how long its next chunk may be."""

    def __init__(self, taps: Sequence[Tap], pace: Pace, part: Embedded | None) -> None:
        self._taps, self.pace, self._part = taps, pace, part
        # Programs with the same pace may have other loops, if they differ in more than shapes.
        self.places: dict[str, int] = {}
        self.absolute: frozenset[str] = frozenset()  # Loops whose limits are iterations.

    def __call__(self, asked: Asked, is_alone: bool, orders: Any, *given: Any) -> Any:
        if orders[0] < 0:
            return orders  # It was told to stop. What it logs since then did not happen.
        loop = asked.loop
        rest = iter(given)
        numbers = [n for x in itertools.islice(rest, asked.numbers) for n in x.ravel().tolist()]
        first, now, *numbers = numbers if asked.pauses else (0, 0, *numbers)
        run = host.run(int(orders[0]), self._part)
        elapsed, when = run.arrived(loop), time.time()
        parts = _parts(asked.groups, iter(numbers), rest)
        if asked.last is not None:
            words, *large = (x[None] for x in rest)
            parts.append(Part(asked.last, ReelRows(words, tuple(large))))
        latency = math.inf
        for tap, sink in self._sinks(run):
            latency = min(latency, sink.latency)
            self._put(parts, run, tap, sink, when)
        answer = run.answer(is_alone)
        if is_alone and answer < 0:
            assert run.stop is not None
            raise run.stop  # At once: nothing is computed any more from what loops had by then.
        run.goes_on(loop)
        orders = orders.copy()
        # It has not ended before anybody could see that, so nothing may wait for the end any more.
        orders[:2] = answer, 1
        if now != first and elapsed is not None:
            place, since = self.places[loop], first if loop in self.absolute else 0
            made, limit = _wrapped(now - first), _wrapped(int(orders[place]) - since)
            limit = self.pace.next(loop, limit, made, elapsed, latency)
            orders[place] = _wrapped(limit + (now if loop in self.absolute else 0))
        return orders

    def _sinks(self, run: Run) -> Iterator[tuple[Tap, Sink]]:
        for tap in self._taps:
            sink = tap.sink or run.sink
            assert sink is not None
            yield tap, sink

    def _put(self, parts: Sequence[Part], run: Run, tap: Tap, sink: Sink, when: float) -> None:
        mine = [part for part in parts if tap in part.group.listeners]
        if not mine:
            return
        number = size = 0
        for group, rows, *_ in mine:
            number += len(rows.words) * group.entries
            size += rows.words.nbytes + sum(x.nbytes for x in rows.large)
        wanted = _wanted(tap)
        due = time.perf_counter() + sink.latency / 2
        chunk = Chunk(run, sink, deliver(mine, run, sink, wanted, when), size, number, due)
        rare = any(part.group.is_rare for part in mine)
        if not host.put(chunk, "wait" if rare else sink.overflow, wait=rare):
            _dropped(sink, count_entries(mine, wanted))

    def returned(self, tail: Tail, run: Run) -> None:
        """Queue what a program that has been started will have left."""
        rows = _Left(tail, run, self.pace)
        tail.handover.is_new = False
        for tap, sink in self._sinks(run):
            if tap in tail.handover.listeners:
                rows.put(tap, sink)


def _wrapped(number: int) -> int:
    """A number as 32 bits have it: loops may make more iterations than that."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class Handover:
    """What is known, before a program runs, of what it returns for us."""

    def __init__(self, receiver: Receiver, groups: tuple[Group, ...]) -> None:
        self.receiver, self.groups = receiver, groups
        self.listeners = frozenset(tap for group in groups for tap in group.listeners)
        self.size = sum(group.capacity * group.layout.row_bytes for group in groups)
        self.is_new = True  # The first run takes longer, for the program is compiled then.


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["numbers", "arrays"],
    meta_fields=["handover"],
)
class Tail:
    """What a program returns for us: the number of the run, counts, and the arrays of reels."""

    def __init__(self, numbers: Any, arrays: Sequence[Any], handover: Handover) -> None:
        self.numbers, self.arrays, self.handover = numbers, arrays, handover


class _Left:
    """What was left in reels at the end of a run. There is something to read when it has ended."""

    def __init__(self, tail: Tail, run: Run, pace: Pace) -> None:
        self._tail, self._run, self._pace = tail, run, pace
        self._is_timed = run.begun is not None and not tail.handover.is_new
        self._when = 0.0

    @functools.cached_property
    def parts(self) -> list[Part]:
        tail, groups = self._tail, self._tail.handover.groups
        run, self._when = self._run, time.time()
        try:
            number, *numbers = np.asarray(tail.numbers).tolist()
        except jax.errors.JaxRuntimeError:  # It surfaces from the outputs of the program.
            return []
        finally:
            host.runs.ended(run)
        rest = iter(numbers)
        parts = _parts(groups, rest, map(np.asarray, tail.arrays))
        if self._is_timed:
            assert run.begun is not None
            totals = dict(zip(tail.handover.receiver.places, rest, strict=True))
            self._pace.ended(run.begun, run.ended or time.perf_counter(), totals)
        return parts if number > 0 else []  # What it logs after it was told to stop did not happen.

    def put(self, tap: Tap, sink: Sink) -> None:
        waits: collections.deque[Sequence[Any]] = collections.deque([[self._tail.numbers]])
        wanted = _wanted(tap)

        def read() -> list[Part]:
            waits.clear()
            return [part for part in self.parts if tap in part.group.listeners]

        def deliver_all() -> Iterator[None]:
            yield from deliver(read(), self._run, sink, wanted, self._when)

        def drop_all() -> Iterator[None]:
            _dropped(sink, count_entries(read(), wanted))
            yield

        due = time.perf_counter() + sink.latency / 2
        size = self._tail.handover.size
        chunk = Chunk(self._run, sink, deliver_all(), size, 1, due, waits, is_last=True)
        if not host.put(chunk, sink.overflow, wait=host.is_alone):
            chunk.deliver = drop_all()  # How many there are is known at the end.
            host.put(chunk, "keep")


def _parts(groups: Sequence[Group], numbers: Iterator[int], arrays: Iterator[Any]) -> list[Part]:
    """Take the rows out of reels. For each, there are some numbers, and then its arrays."""
    parts = []
    for group in groups:
        count, iteration, number = next(numbers), 0, 0
        if group.counted:
            iteration, count, number = count, _wrapped(next(numbers) - count), next(numbers)
        words, *large = (next(arrays) for _ in range(1 + group.layout.large))
        if count:
            parts.append(Part(group, group.layout.taken(count, words, large), number, iteration))
    return parts


def _wanted(tap: Tap) -> Callable[[Any], str | None]:
    """Say whether a tap wants an entry, and which prefix its keys get."""
    return lambda meta: tap.options.prefix if tap in meta.listeners else None


def _dropped(sink: Sink, count: int) -> None:
    if count and not sink.dropped:
        reports.warning(
            "The callback %s is too slow, and entries are being dropped, as `overflow='drop'` "
            "says. The tapped function has their number as `.dropped`.",
            sink.name,
        )
    sink.dropped += count


def raise_stop(number: Any) -> Any:
    """Raise what stopped the run with this number, negated."""
    run = host.run(-int(number))
    raise run.stop or StopRun("The program was stopped.")
