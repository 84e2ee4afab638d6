"""What waits to be delivered, and how much it is.

Chunks come from programs. What loggers are given outside of programs is piled up first, since
queueing each item by itself would cost more than delivering it.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .lines import Chunk, Lines
from .runs import Run
from .sinks import Sink

MOST_BYTES = 64 << 20
MOST_ENTRIES = 1 << 20
MANY_BYTES = 4 << 20  # More than this does not wait, as it is still in the caches.
MANY_ENTRIES = 1 << 19
# What is posted to one sink is queued together, up to this many items and bytes.
PILE = 1000
PILE_BYTES = 1 << 20
MERGED = 256  # Executions of a program that are delivered at once.
FEW = 16  # Items that are delivered without a pause, where they are only buffered.


class Pile(Chunk):
    """Things that do not come from a program, for one sink to get."""

    def __init__(
        self,
        sink: Sink,
        item: Any,
        size: int = 0,
        arrays: Sequence[Any] = (),
        kind: Any = None,
    ) -> None:
        run, due = run_of(sink), time.perf_counter() + sink.latency
        super().__init__(run, sink, self._call(), size, 1, due, collections.deque([arrays]))
        self._items = collections.deque([item])
        self._kind = kind

    def takes(self, size: int, kind: Any) -> bool:
        """Say whether something more of some kind may be added."""
        if self.is_taken or self._kind != kind:
            return False
        return self.entries < PILE and self.size + size < PILE_BYTES

    def add(self, item: Any, size: int, arrays: Sequence[Any]) -> None:
        """Add something."""
        assert self.waits is not None
        self._items.append(item)
        self.waits.append(arrays)
        self.size += size
        self.entries += 1

    def _call(self) -> Iterator[None]:
        assert self.waits is not None
        while self._items:
            self.waits.popleft()
            self.sink.call(self.run, self._items.popleft())
            # To pause takes longer than to buffer something that does not have to be waited for.
            if not self.sink.gathers or len(self._items) % FEW == 0 or self.waits[0]:
                yield


class Ends(Pile):
    """What executions of one program have left at their ends, for one sink to get."""

    def __init__(
        self,
        sink: Sink,
        kind: Any,
        item: Any,
        size: int,
        deliver: Callable[[list[Any], Run], Iterator[None]],
    ) -> None:
        super().__init__(sink, item, size, kind=kind)
        self.run, self.due = Run(0, None), time.perf_counter() + sink.latency / 2
        self._deliver_some = deliver

    def _call(self) -> Iterator[None]:
        while self._items:
            count = min(MERGED, len(self._items))
            yield from self._deliver_some([self._items.popleft() for _ in range(count)], self.run)


def run_of(sink: Sink) -> Run:
    """The run of a sink that stands for what does not come from a program."""
    if sink.run is None:
        sink.run = Run(0, sink)
    return sink.run


class Backlog:
    """Chunks that wait, by line, and what is to be posted later. Whoever uses it holds a lock."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.bytes = self.entries = 0
        self.put = self.done = 0  # The last chunk that came; all up to this one are delivered.
        self.came = 0.0  # When the last chunk came.
        self._latest: Chunk | None = None  # The last chunk that came, until it is delivered.
        self._piles: dict[Sink, Pile] = {}  # The last of each sink, until it is delivered.
        self._last_of_program = 0  # The last chunk that came from a program.
        self._early: set[int] = set()  # Delivered before one that came earlier.
        self._dropped = 0  # All up to this one are not wanted any more.
        self._later: list[tuple[float, int, Sink, Any]] = []  # A heap of what is to be posted when.
        self._later_numbers = itertools.count()

    def is_full(self, chunk: Chunk) -> bool:
        """Say whether there is no room for a chunk.

        What is ready only at the end of its program has half of it, lest it keep out what has to be
        handed over before that.
        """
        most_bytes = MOST_BYTES // 2 if chunk.is_last else MOST_BYTES
        return self.entries > 0 and (
            self.bytes + chunk.size > most_bytes or self.entries + chunk.entries > MOST_ENTRIES
        )

    def is_filling(self) -> bool:
        """Say whether so much waits that it should not wait any longer."""
        return self.entries > MANY_ENTRIES or self.bytes > MANY_BYTES

    def append(self, chunk: Chunk) -> None:
        """Add a chunk, and number it."""
        self.put += 1
        chunk.number = self.put
        if isinstance(chunk, Pile):
            self._piles[chunk.sink] = chunk
        else:
            self._last_of_program = chunk.number
        self._latest = chunk
        self.lines.append(chunk)
        self.came = time.perf_counter()
        self.bytes += chunk.size
        self.entries += chunk.entries

    def add_to_pile(
        self, sink: Sink, item: Any, size: int, arrays: Sequence[Any] = (), kind: Any = None
    ) -> bool:
        """Add something to what was posted to the same sink before, if that is possible."""
        pile = self._piles.get(sink)
        if pile is None or not pile.takes(size, kind):
            return False
        is_last = pile.line.chunks[-1] is pile if sink.gathers else self._latest is pile
        if not is_last or pile.number < self._last_of_program:
            return False  # What came in between may be for the same logger.
        pile.add(item, size, arrays)
        self.bytes += size
        self.entries += 1
        self.came = time.perf_counter()
        return True

    def finished(self, chunk: Chunk) -> None:
        """A chunk has been delivered."""
        self._early.add(chunk.number)
        while self.done + 1 in self._early:
            self.done += 1
            self._early.remove(self.done)
        self.bytes -= chunk.size
        self.entries -= chunk.entries
        if chunk is self._latest:
            self._latest = None
        if self._piles.get(chunk.sink) is chunk:
            del self._piles[chunk.sink]

    def drop(self) -> None:
        """Nobody wants what has come by now."""
        self._dropped = self.put

    def is_wanted(self, chunk: Chunk) -> bool:
        """Say whether a chunk has not been dropped."""
        return chunk.number > self._dropped

    def post_later(self, sink: Sink, item: Any, seconds: float) -> None:
        """Remember to post something after a while."""
        when = time.perf_counter() + seconds
        heapq.heappush(self._later, (when, next(self._later_numbers), sink, item))

    def cancel(self, sink: Sink) -> None:
        """Forget what was to be posted to a sink later."""
        self._later = [one for one in self._later if one[2] is not sink]
        heapq.heapify(self._later)

    def post_until(self, when: float) -> None:
        """Post what was to be posted by then."""
        while self._later and self._later[0][0] <= when:
            _, _, sink, item = heapq.heappop(self._later)
            self.append(Pile(sink, item))

    def pause(self) -> float | None:
        """The seconds until something is to be posted, if anything is."""
        return self._later[0][0] - time.perf_counter() if self._later else None
