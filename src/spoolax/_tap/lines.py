"""A queue of several lines that take turns, so that none keeps the others waiting.

What is for the same callback or logger is a line, and is delivered in order. As long as that does
not take long, everything is delivered in the order in which it came. A line whose first chunk is
not ready on the device, or that has had its slice of time, lets the others go first. Lines of
loggers that belong together share their slices: else a logger might get something from one of them
before what came earlier through another.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from .._jax.arrays import is_ready
from .runs import Run
from .sinks import Sink

SLICE = 0.05  # Seconds that lines have in every round.
MANY = 100  # Lines. If there are more, those that are idle are forgotten.


@dataclasses.dataclass(slots=True, eq=False)
class Chunk:
    """Something to deliver, and how much it is."""

    run: Run
    sink: Sink
    deliver: Iterator[None]  # It pauses after every entry.
    size: int
    entries: int
    due: float  # When it should be delivered at the latest.
    # Arrays that entries still have to wait for, one sequence for each.
    waits: collections.deque[Sequence[Any]] | None = None
    number: int = 0  # Its place among all that were queued.
    line: Any = None
    is_last: bool = False  # Of what comes from its run, though it may be queued before the rest.
    is_taken: bool = False  # From then on, nothing is added to it.

    def is_ready(self) -> bool:
        """Say whether delivering its next entry would not wait for the device."""
        return not self.waits or all(map(is_ready, self.waits[0]))

    def is_last_of(self, run: Run) -> bool:
        """Say whether this comes after everything else of a run."""
        return self.is_last and self.run is run


class Share:
    """In which round some lines may go on, and how many seconds of it they have had."""

    def __init__(self) -> None:
        self.round, self.spent = 0, 0.0
        self.last: list[Chunk] = []  # What waits for the end of its program.


class Line:
    """Chunks in order."""

    def __init__(self) -> None:
        self.share = Share()
        self.chunks: collections.deque[Chunk] = collections.deque()
        self.is_idle = True  # It has no turn, and nothing of it is being delivered.


class Lines:
    """The queue. Whoever uses it holds a lock."""

    def __init__(self) -> None:
        self._lines: dict[Any, Line] = {}
        # Lines with chunks, except that of which one is being delivered; by round, then by chunk.
        self._turns: list[tuple[int, int, Line]] = []
        self._round = 0
        self._shares: weakref.WeakValueDictionary[Any, Share] = weakref.WeakValueDictionary()

    def append(self, chunk: Chunk) -> None:
        """Add a chunk to the line of its sink."""
        name = chunk.sink.line
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) > MANY:
                self._lines = {name: x for name, x in self._lines.items() if not x.is_idle}
            line = self._lines[name] = Line()
        chunk.line = line
        if chunk.run.waited or chunk.is_last:
            line.chunks.append(chunk)
        else:
            behind = (i for i, other in enumerate(line.chunks) if other.is_last_of(chunk.run))
            line.chunks.insert(next(behind, len(line.chunks)), chunk)
        if line.is_idle:
            # Each time: a line may have been that of a sink which is gone, and had the same name.
            line.share = self._shares.setdefault(chunk.sink.group, Share())
            line.is_idle = False
            heapq.heappush(self._turns, (self._round, chunk.number, line))
        if chunk.is_last:
            line.share.last.append(chunk)

    def first(self) -> Chunk | None:
        """The chunk whose turn it is, ready or not."""
        while self._turns:
            line = self._turns[0][2]
            if line.chunks:
                return line.chunks[0]
            heapq.heappop(self._turns)  # All of it was taken out of turn.
            line.is_idle = True
        return None

    def any_ready(self) -> bool:
        """Say whether `take` would find something."""
        return any(line.chunks and _may_go(line.chunks[0]) for _, _, line in self._turns)

    def take(self) -> Chunk | None:
        """Take out the first chunk that is ready. Give it back afterwards."""
        passed: list[tuple[int, int, Line]] = []
        taken = None
        while (chunk := self.first()) is not None:
            round_, _, line = turn = heapq.heappop(self._turns)
            if round_ < line.share.round:
                heapq.heappush(self._turns, (line.share.round, chunk.number, line))
                continue
            passed.append(turn)
            if _may_go(chunk):
                # By now, one that came before it may be ready as well.
                taken = next((turn for turn in passed if _may_go(turn[2].chunks[0])), turn)
                passed.remove(taken)
                break
        for turn in passed:
            heapq.heappush(self._turns, turn)
        if taken is None:
            return None
        round_, _, line = taken
        self._round = max(self._round, round_)
        if line.share.round < self._round:
            line.share.round, line.share.spent = self._round, 0.0
        return _taken(line.chunks.popleft())

    def should_pause(self, chunk: Chunk, seconds: float) -> bool:
        """Say whether it is the turn of others, after a chunk has had so many seconds."""
        return bool(self._turns) and chunk.line.share.spent + seconds > SLICE

    def give_back(self, chunk: Chunk, seconds: float, is_over: bool) -> None:
        """End the turn of a chunk that was taken out; it has another one unless it is over."""
        line: Line = chunk.line
        share = line.share
        share.spent += seconds
        if share.spent > SLICE:
            share.round, share.spent = self._round + 1, 0.0
        if not is_over:
            line.chunks.appendleft(chunk)
        if line.chunks:
            heapq.heappush(self._turns, (share.round, line.chunks[0].number, line))
        else:
            line.is_idle = True

    def take_before(self, sink: Sink, number: int) -> Chunk | None:
        """Take out the first chunk of a sink's line, if it came before the one with a number."""
        line = self._lines.get(sink.line)
        if line is None or not line.chunks or line.chunks[0].number > number:
            return None
        return _taken(line.chunks.popleft())

    def take_unbounded(self) -> Chunk | None:
        """Take out a chunk of a program that the worker started."""
        for chunk in self._unbounded():
            chunk.line.chunks.remove(chunk)
            return _taken(chunk)
        return None

    def any_unbounded(self) -> bool:
        """Say whether there is a chunk of a program that the worker started."""
        return any(True for _ in self._unbounded())

    def _unbounded(self) -> Iterator[Chunk]:
        chunks = (chunk for line in self._lines.values() for chunk in line.chunks)
        return (chunk for chunk in chunks if chunk.run.unbounded)


def _may_go(chunk: Chunk) -> bool:
    """Say whether a chunk is ready, and so is what programs that began before it have left.

    That may be for the same logger, by way of another line.
    """
    return chunk.is_ready() and all(
        other.number > chunk.number or other.run is chunk.run or other.is_ready()
        for other in chunk.line.share.last
    )


def _taken(chunk: Chunk) -> Chunk:
    if chunk.is_last and not chunk.is_taken:  # It may have been taken before, and given back.
        chunk.line.share.last.remove(chunk)
    chunk.is_taken = True
    return chunk
