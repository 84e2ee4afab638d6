"""What a program hands over: taken out of its reels, and queued for every sink.

This runs while the program waits, so it does no more than that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StopRun
from .deliver import Part, count_entries, deliver
from .host import host
from .lines import Chunk
from .pace import Pace
from .reel import Group, taken
from .runs import Embedded, Run
from .sinks import Sink, reports

if TYPE_CHECKING:
    from .stream import Tap


class Receiver:
    """Takes what a program hands over for its taps, and answers how long its next chunk may be."""

    def __init__(self, taps: Sequence[Tap], pace: Pace, part: Embedded | None) -> None:
        self._taps, self._pace, self._part = taps, pace, part

    def __call__(
        self,
        loop: str,
        groups: Sequence[Group],
        last: Group | None,
        is_alone: bool,
        question: Any,
        *arrays: Any,
    ) -> Any:
        number, limit, made, iteration, *counts = question.tolist()
        if number < 0:
            return question  # It was told to stop. What it logs since then did not happen.
        run = host.run(number, self._part)
        elapsed, when = run.arrived(loop), time.time()
        parts, rest = [], iter(arrays)
        for group, count in zip(groups, counts, strict=True):
            words, *large = (next(rest) for _ in range(1 + group.layout.large))
            if count:
                parts.append(Part(group, taken(words, large, count), iteration - count))
        if last is not None:
            words, *large = (x[None] for x in rest)
            parts.append(Part(last, taken(words, large, 1), 0))
        latency = math.inf
        for tap in self._taps:
            sink = tap.sink or run.sink
            assert sink is not None
            latency = min(latency, sink.latency)
            _put(parts, run, tap, sink, when)
        answer = run.answer()
        if is_alone and answer < 0:
            assert run.stop is not None
            raise run.stop  # At once: nothing is computed any more from what loops had by then.
        run.goes_on(loop)
        limit = self._pace.next(loop, limit, made, elapsed, latency)
        return np.array([answer, limit, *[0] * (len(question) - 2)], np.int32)


def raise_stop(number: Any) -> Any:
    """Raise what stopped the run with this number, negated."""
    run = host.run(-int(number))
    raise run.stop or StopRun("The program was stopped.")


def _put(parts: Sequence[Part], run: Run, tap: Tap, sink: Sink, when: float) -> None:
    mine = [part for part in parts if tap in part.group.listeners]
    if not mine:
        return
    number = size = 0
    for group, rows, _ in mine:
        number += len(rows.words) * group.entries
        size += rows.words.nbytes + sum(x.nbytes for x in rows.large)

    def wanted(meta: Any) -> str | None:
        return tap.options.prefix if tap in meta.listeners else None

    due = time.perf_counter() + sink.latency / 2
    chunk = Chunk(run, sink, deliver(mine, run, sink, wanted, when), size, number, due)
    rare = any(group.is_rare for group, _, _ in mine)
    if not host.put(chunk, "wait" if rare else sink.overflow, wait=rare):
        if not sink.dropped:
            reports.warning(
                "The callback %s is too slow, and entries are being dropped, as `overflow='drop'` "
                "says. The tapped function has their number as `.dropped`.",
                sink.name,
            )
        sink.dropped += count_entries(mine, wanted)
