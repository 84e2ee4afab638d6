"""Blocks that listen, while they are open.

A block marks what is logged while something is traced inside of it, by a tap that stands for its
options. Programs are compiled for those, and found again by other blocks with the same ones. What a
program logs goes to the blocks that are open then, of the thread that has started it: on each, the
taps are others.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._jax import processes
from .._jax.arrays import are_there, is_key
from .._jax.contexts import local_value, set_global, set_local
from .._jax.effects import markers
from .._listen.options import Options
from .._log.entry import Entry, Meta, Nodes, divided, entries, map_entries
from .._log.primitive import Around, listening
from .._logdict.logdict import LogDict
from .._logdict.origin import Origin
from ._reels.pieces import by_name
from .backlog import run_of
from .deliver import STEP
from .host import host
from .runs import Run, here
from .sinks import Sink
from .stream import Tap


class Block:
    """A block that listens."""

    def __init__(self, tap: Callable[..., BlockTap], about: Hashable, sink: Sink) -> None:
        self.sink, sink.block = sink, self
        # For what is logged outside of programs.
        self._from_python = Sink(self._deliver, owner=sink.owner)
        self._from_python.behind = sink
        self._numbering: dict[Any, tuple[Run | None, int, int]] = {}
        self._ends_before: Mapping[str, int] = {}
        self.tap = _opened(tap, about, self)

    def close(self) -> None:
        """Listen no more."""
        with _opening:
            self.tap.blocks = tuple(one for one in self.tap.blocks if one is not self)

    def numbered(self, run: Run | None, meta: Meta, iterations: np.ndarray[Any, Any]) -> Any:
        """Number the entries of a `log` call that have no step, given their iterations.

        In a loop, they are numbered as its iterations are, from where the last run has ended; else
        one by one.
        """
        call, count = (meta.site, meta.call), len(iterations)
        last, base, end = self._numbering.get(call) or self._first(call, run)
        if last is not run:
            base = end
        if iterations.shape[1] == 1:
            steps = base + iterations[:, 0].astype(np.int64)
        else:
            steps = np.arange(end, end + count)
        end = max(end, int(steps.max()) + 1) if count else end
        self._numbering[call] = run, base, end
        return steps

    def _first(self, call: Any, run: Run | None) -> tuple[Run | None, int, int]:
        end = self._ends_before.get(_name_of(call), 0)
        return run, end, end

    def numbering(self) -> dict[str, int]:
        """How far the entries of each `log` call have been numbered, by its place in the code."""
        ends = {_name_of(call): end for call, (_, _, end) in self._numbering.items()}
        return {**self._ends_before, **ends}

    def number_on(self, ends: Mapping[str, int]) -> None:
        """Go on numbering where another block has ended, in another process."""
        self._ends_before = ends

    def run_ended(self, run: Run, calls: Mapping[Any, str], totals: Mapping[str, int]) -> None:
        """A run has ended. `totals` are the iterations of its loops, some of which may not log.

        `calls` are the `log` calls in loops that are in no other, and their loops.
        """
        for call, loop in calls.items():
            last, base, end = self._numbering.get(call) or self._first(call, None)
            begin = base if last is run else end
            self._numbering[call] = run, begin, max(end, begin + totals.get(loop, 0))

    def post(self, entry: Entry) -> None:
        """Take what was logged outside of programs."""
        if self.sink.stop is not None:
            raise self.sink.stop
        leaves, tree = jax.tree.flatten(entry)
        with listening(None):  # Programs of our own are the same in all blocks.
            copies = [_copied(leaf) for leaf in leaves]
            # It comes after what programs log that have been started before.
            waits = [*markers(), *(copy for copy in copies if isinstance(copy, jax.Array))]
        size = sum(copy.nbytes for copy in copies)
        host.post_when_ready(self._from_python, (copies, tree, time.time()), size, waits)

    def _deliver(self, item: Any) -> None:
        copies, tree, when = item
        values = [x if is_key(x) else np.asarray(x) for x in copies]
        entry: Entry = jax.tree.unflatten(tree, values)
        meta = entry.meta
        prefix, none = self.tap.options.prefix, np.zeros((1, 0), np.int32)
        data = {prefix + key: value for key, value in entry.data.items()}
        steps = entry.steps or {STEP: self.numbered(None, meta, none)[0:1].reshape(())}
        if self.sink.batch:
            data, steps = (by_name(lambda x: x[None], each) for each in (data, steps))
        else:
            data, steps = (by_name(_scalar, each) for each in (data, steps))
        logs = LogDict(
            data,
            steps={name: dict.fromkeys(data, at) for name, at in steps.items()},
            stacked=data if self.sink.batch else (),
        )
        logs._origin = functools.partial(
            Origin,
            "",
            none if self.sink.batch else (),
            (),
            None,
            when,
            meta.tags,
            meta.site,
            processes.index(),
        )
        self.sink.call(run_of(self.sink), logs)


def _name_of(call: Any) -> str:
    """What a `log` call is known by, whichever process it runs in."""
    site, place = call
    return f"{site}:{place[1]}" if place else str(site)


def _scalar(x: Any) -> Any:
    """An array on the host as it is, or the number in it."""
    return x[()] if isinstance(x, np.ndarray) else x


def _copied(leaf: Any) -> Any:
    """Copy something that may be donated, or changed, right after."""
    if not isinstance(leaf, jax.Array):
        return np.array(leaf, jax.dtypes.result_type(leaf))
    if is_key(leaf) or not are_there([leaf]):
        return leaf.copy()
    return np.array(leaf)


class BlockTap(Tap):
    """What claims entries for all blocks of a thread with some options."""

    listens_to_python = True

    def __init__(self, options: Options) -> None:
        super().__init__(options, None)
        self.blocks: tuple[Block, ...] = ()  # Those that are open,
        self.thread = 0  # and their thread.

    def sinks_of(self, run: Run | None) -> list[Sink]:
        return [block.sink for block in self.blocks]

    def claimed(self, nodes: Nodes) -> Nodes:
        options = self.options

        def claim(entry: Entry) -> Entry:
            meta = entry.meta
            listeners, taken = (*meta.listeners, self), not options.keep_logs
            return entry.replace(meta=dataclasses.replace(meta, listeners=listeners, taken=taken))

        def is_new(key: str, entry: Entry) -> bool:
            return self not in entry.meta.listeners and options.selects(key, entry)

        made: Nodes = ()
        for some, is_mine in divided(nodes, is_new):
            made += map_entries(claim, some) if is_mine else some
        return made

    def heard(self, nodes: Nodes) -> None:
        for entry, block in itertools.product(entries(nodes), self.blocks):
            if self in entry.meta.listeners:
                block.post(entry)


_opening = threading.Lock()
_taps: dict[Hashable, list[BlockTap]] = {}


def _opened(make: Callable[..., BlockTap], about: Hashable, block: Block) -> BlockTap:
    """Open a block, and return the tap that listens for it: `make(about)`, made once."""
    me = threading.get_ident()
    with _opening:
        taps = _taps.setdefault((make, about), [])
        free = (tap for tap in taps if not tap.blocks or tap.thread == me)
        tap = next(free, None)
        if tap is None:
            tap = make(about)
            taps.append(tap)
        tap.thread, tap.blocks = me, (block, *tap.blocks)
        return tap


def hears_everything(owner: Any) -> bool:
    """Whether a logger gets whatever is logged on this thread already, by a block."""
    everything = Options(keep_logs=True)
    return any(
        block.sink.owner is owner
        and dataclasses.replace(block.tap.options, keep_logs=True) == everything
        for block in here.blocks
    )


def around_of(blocks: Sequence[Block]) -> Around | None:
    """What the code in some blocks is listened to by."""
    return Around(tuple(dict.fromkeys(block.tap for block in blocks))) if blocks else None


def listen(blocks: Sequence[Block]) -> None:
    """Listen to this thread from now on."""
    if not here.blocks:
        here.before = local_value(listening)
    here.blocks = (*blocks, *here.blocks)
    _apply()


def listen_no_more(blocks: Sequence[Block]) -> None:
    """Some blocks of this thread have ended: not those that began last, if tasks take turns."""
    here.blocks = tuple(block for block in here.blocks if block not in blocks)
    _apply()


def _apply() -> None:
    inside = (*here.blocks, *_everywhere)
    set_local(listening, around_of(inside) if here.blocks else here.before)


_everywhere: tuple[Block, ...] = ()  # Those that listen to all threads.


def listen_everywhere(blocks: Sequence[Block]) -> None:
    """Listen to all threads."""
    _replace_everywhere((*blocks, *_everywhere))


def listen_nowhere(blocks: Sequence[Block]) -> None:
    """Listen to all threads no more."""
    _replace_everywhere(tuple(block for block in _everywhere if block not in blocks))


def _replace_everywhere(blocks: tuple[Block, ...]) -> None:
    global _everywhere
    with _opening:
        _everywhere = blocks
        set_global(listening, around_of(blocks))
