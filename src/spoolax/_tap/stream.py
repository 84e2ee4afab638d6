"""Programs that stream: entries reach the host while they run, or with their outputs.

A call to the host costs microseconds, so there is none per entry. Loops fill reels, one for each
run of `log` calls in their bodies, and pause from time to time to send all of them at once. How
many iterations there are between pauses is the host's answer to each call: few at first, and then
as many as keep to the latency that was asked for. Rows of several reels are put back into program
order by a number that each of them has. Calls are chained by the host's answers, so they arrive in
order themselves. An answer may also be that the program is to stop: then it leaves all of these
loops, on every device in the same iteration, and what it computes from there on is discarded.

Nothing has to be sent while a program runs if it is over before anybody could see that. So what is
in the reels at the end is returned, with the outputs; entries outside loops have reels of one row.
If a program was over within the latency the last time, that is all there is: it calls the host only
if one of its loops makes more iterations than would have taken so long. Other programs send what is
logged outside loops at once. So do parts of larger programs, where nothing can be returned.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax.filtered import trace_filtered
from .._jax.host_call import host_call, tell_hosts
from .._jax.lowering import watch_executions
from .._jax.platforms import devices
from .._jax.primitives import Jaxpr
from .._listen.keys import keys_of
from .._listen.options import Options
from .._listen.windows import Windows
from .._log.entry import Entry, Nodes, entries, map_entries
from .._walk.interpret import interpret
from .._walk.places import Where
from .._walk.repetitions import Found, once
from .._walk.survey import survey
from ._devices import in_pieces
from ._meaning.claims import wanted_by
from ._meaning.shards import WithShards
from ._meaning.urgent import alarms_apart, is_rare
from .host import host
from .pace import Pace
from .receive import Receiver, Tail
from .runs import Embedded, Run, execute
from .sinks import Sink


class Tap:
    """A listener that streams: its options, and its sink (None: that of the run)."""

    listens_to_python = False

    def __init__(self, options: Options, sink: Sink | None) -> None:
        self.options, self.sink = options, sink

    def claimed(self, nodes: Nodes) -> Nodes:
        """Claim what nobody nearer has taken, if it is the tap of blocks around some code."""
        raise NotImplementedError

    def heard(self, nodes: Nodes) -> None:
        """Something was logged outside of programs, if it is the tap of blocks around that."""
        raise NotImplementedError

    def wants(self, jaxpr: Jaxpr) -> bool:
        """Say whether it puts something of its own into programs."""
        del jaxpr
        return False

    def instrumented(self, jaxpr: Jaxpr) -> Jaxpr:
        """The program with that in it."""
        raise NotImplementedError

    def sinks_of(self, run: Run | None) -> Sequence[Sink]:
        """Who gets what it has claimed in a run."""
        if self.sink is not None:
            return [self.sink]
        assert run is not None
        assert run.sink is not None
        return [run.sink]

    @staticmethod
    def compile(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """Stream what taps have claimed in somebody else's program."""
        trace_filtered(jaxpr)  # There may be host calls in them.
        part, pace = Embedded(), Pace()
        part.spans = jax.process_count() > 1 and devices() > 1
        outs, tail = stream(
            jaxpr, *once(survey(jaxpr, unbounded=True)), args, None, None, pace, part
        )
        if part.calls:
            watch_executions(part, execute)
            # What stopped it can be raised only if it fails: on all devices, so that none waits
            # for another in a program that follows, and once none waits for another in this one.
            awaited = outs if devices() > 1 else []
            fail = functools.partial(_fail, tail.handover.receiver)
            lax.cond(tail.numbers[0] < 0, fail, _go_on, tail.numbers, awaited)
        return outs


def _fail(receiver: Receiver, numbers: Any, awaited: Sequence[Any]) -> None:
    # XLA drops barriers before it decides on an order. But a branch waits for all it is given.
    run, _ = lax.optimization_barrier((numbers[0], awaited))
    tell_hosts(receiver.raise_stop, run, devices())


def _go_on(*_: Any) -> None:
    pass


def stream(
    jaxpr: Jaxpr,
    found: Sequence[Found],
    repeated: frozenset[Any],
    args: Sequence[Any],
    tap: Tap | None,
    begin: Any,
    pace: Pace,
    part: Embedded | None = None,
) -> tuple[list[Any], Tail]:
    """Evaluate a jaxpr, streaming what `tap` wants and what belongs to other taps already.

    `found` is what it logs, as `survey` says, and `repeated` what of it is not to be logged.
    `begin` is what `Pace.begin` returns. Returns the outputs, and what is left to hand over. In
    `part`, somebody else's program, that cannot be returned, so it is handed over at the end.
    """
    claiming: dict[Any, None] = dict.fromkeys(
        one for nodes, _ in found for entry in entries(nodes) for one in entry.meta.listeners
    )
    listeners: list[tuple[Tap, Windows]] = []
    for one in [*([tap] if tap else []), *claiming]:
        mine = [(wanted_by(nodes, one, one is tap), where) for nodes, where in found]
        mine = [(_unclaimed(nodes), where) for nodes, where in mine]
        everything = dataclasses.replace(one.options, argnames=None, tags=None)
        keys = keys_of(mine, everything) if everything.windowed else {}
        listeners.append((one, Windows(keys, everything)))
    receiver = Receiver([tap for tap, _ in listeners], pace, part)
    meaning = WithShards.rehearsed(jaxpr, args, listeners, tap, repeated, receiver)
    pace.awaited = any(is_rare(nodes) for nodes, _ in found)  # That may stop the program.
    if part is not None:
        begin = _begin(receiver, part, pace, meaning.calls)
        meaning.waits_for_end = not part.calls
    outs, state, nodes = interpret(jaxpr, args, meaning.start(begin), meaning, Where())
    assert not nodes, "everything was sent"
    tail = meaning.tail(meaning.finish(state))
    if part is not None:
        over = functools.partial(receiver.over, tail.handover)
        each = functools.partial(in_pieces.over, receiver, tail.handover) if part.calls else None
        answer = host_call(over, tail.numbers, *tail.arrays, each=each)
        # Else nobody waits for it: if one of the devices has failed, the others would for ever.
        if part.spans:
            tail.numbers = answer
    return outs, tail


def _begin(receiver: Receiver, part: Embedded, pace: Pace, calls: bool) -> np.ndarray | jax.Array:
    """What somebody else's program begins with. If it `calls` the host, it asks for that.

    All processes of one ask the first at its end whether it is to stop, and not before: it costs
    more than the pace is worth, which is known there only.
    """
    part.calls = calls or part.spans
    begin = pace.begin(0, 0.0)
    if not part.calls:
        begin[1] = 0  # All it logs can wait for the end.
        host.misses_starts = True
    return host_call(receiver.begin, jnp.asarray(begin)) if calls and not part.spans else begin


def _unclaimed(nodes: Nodes) -> Nodes:
    """The same entries, unclaimed. Alarms are no matter of windows."""
    _, nodes = alarms_apart(nodes)

    def unclaim(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, taken=False, explicit=False))

    return map_entries(unclaim, nodes)
