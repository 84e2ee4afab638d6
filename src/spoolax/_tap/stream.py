"""The meaning of `log` for `tap`: hand entries to the host while the program runs.

A call to the host costs microseconds, so there is none per entry. Loops fill reels, one for each
run of `log` calls in their bodies, and pause from time to time to send all of them at once. How
many iterations there are between pauses is the host's answer to each call: few at first, and then
as many as keep to the latency that was asked for. Rows of several reels are put back into program
order by a number that each of them has. Calls are chained by the host's answers, so they arrive in
order themselves. An answer may also be that the program is to stop: then it leaves all of these
loops, on every device in the same iteration, and what it computes from there on is discarded.

Entries outside loops, and large ones, are sent at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import arrays
from .._jax.host_call import host_call, tell_host
from .._jax.primitives import Jaxpr, JaxprEqn, shard_map_p
from .._listen.keys import keys_of
from .._listen.options import Options
from .._listen.windows import Windows, WindowState
from .._log.entry import Entry, Nodes, entries, map_entries, restrict
from .._log.primitive import log_p, logged
from .._walk.counts import Count, host_calls, is_loop, logs
from .._walk.interpret import interpret
from .._walk.labels import placed
from .._walk.meaning import MOST_UNROLLED, Meaning, PassOn
from .._walk.places import Where
from .._walk.repetitions import Found, once
from .._walk.survey import survey
from .pace import Pace
from .receive import Receiver, raise_stop
from .reel import Group, Reel, write
from .runs import Embedded, execute
from .sinks import Sink

LARGE = 1 << 16  # Bytes. An entry of this size is worth a call of its own.
UNLIMITED = (1 << 31) - 1  # Iterations between pauses of a loop that has nothing to send then.


class Tap:
    """A listener that streams: its options, and its sink (None: that of the run)."""

    def __init__(self, options: Options, sink: Sink | None) -> None:
        self.options, self.sink = options, sink

    @staticmethod
    def compile(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """Stream what taps have claimed in a part of a larger program."""
        part, begin = Embedded(), np.array([0, 1], np.int32)
        outs, run = stream(jaxpr, *once(survey(jaxpr)), args, None, begin, Pace(), part)
        # What stopped it can be raised only if it fails, once no device waits for another.
        run, _ = lax.optimization_barrier((run, outs))
        lax.cond(run < 0, lambda: tell_host(raise_stop, run, part, execute), lambda: None)
        return outs


class StreamState(NamedTuple):
    """What a streaming program carries."""

    run: Any  # Which execution this is; 0 until the host has given it a number; < 0: it is to stop.
    first: Any  # How many iterations the first chunk of a loop may have.
    rows: Any  # How many rows have been written since the last call.
    iterations: dict[str, Any]  # Of the loops that we are in.
    limits: dict[str, Any]  # By loop, how many iterations a chunk may have.
    reels: dict[str, Reel]
    windows: tuple[WindowState, ...]  # One for each tap.


def stream(
    jaxpr: Jaxpr,
    found: Sequence[Found],
    repeated: frozenset[Any],
    args: Sequence[Any],
    tap: Tap | None,
    begin: Any,
    pace: Pace,
    part: Embedded | None = None,
) -> tuple[list[Any], Any]:
    """Evaluate a jaxpr, streaming what `tap` wants and what belongs to other taps already.

    `found` is what it logs, as `survey` says, and `repeated` what of it is not to be logged.
    `begin` is two numbers: that of the run, and how many iterations the first chunk of a loop may
    have. Returns the outputs, and a number that is there when everything has been handed over. If
    it is negative, the program was stopped, and the outputs mean nothing. `part` is what this is
    of somebody else's program.
    """
    claiming: dict[Any, None] = dict.fromkeys(
        one for nodes, _ in found for entry in entries(nodes) for one in entry.meta.listeners
    )
    listeners: list[tuple[Tap, Windows]] = []
    for one in [*([tap] if tap else []), *claiming]:
        mine = [(_wanted(nodes, one, one is tap), where) for nodes, where in found]
        mine = [(_unclaimed(nodes), where) for nodes, where in mine if not _is_rare(nodes)]
        everything = dataclasses.replace(one.options, argnames=None, tags=None)
        keys = keys_of(mine, everything) if everything.windowed else {}
        listeners.append((one, Windows(keys, everything)))
    receiver = Receiver([tap for tap, _ in listeners], pace, part)
    meaning = _Streaming(listeners, tap, repeated, receiver)
    meaning.rehearse(jaxpr, args)
    outs, state, nodes = interpret(jaxpr, args, meaning.start(*begin), meaning, Where())
    assert not nodes, "everything was sent"
    return outs, meaning.finish(state).run


def _wanted(nodes: Nodes, tap: Tap, outermost: bool) -> Nodes:
    """What a tap gets."""

    def mine(key: str, entry: Entry) -> bool:
        return tap.options.selects(key, entry) if outermost else tap in entry.meta.listeners

    return restrict(nodes, mine)


def _claimed(nodes: Nodes, tap: Tap) -> Nodes:
    def claim(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, listeners=(tap,), taken=True))

    return map_entries(claim, nodes)


def _unclaimed(nodes: Nodes) -> Nodes:
    """The same entries, unclaimed."""

    def unclaim(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, taken=False, explicit=False))

    return map_entries(unclaim, nodes)


class _Streaming(Meaning):
    """Sends entries: at once, or from reels whenever a loop pauses."""

    def __init__(
        self,
        listeners: list[tuple[Tap, Windows]],
        outermost: Tap | None,
        repeated: frozenset[Any],
        receiver: Receiver,
    ) -> None:
        self._listeners, self._outermost, self.repeated = listeners, outermost, repeated
        self._receiver = receiver
        self._groups: dict[str, Group] = {}
        self._sending: set[str] = set()  # Loops that send amid iterations.
        self._calling: set[str] = set()  # Loops that call the user's Python functions.
        self._rehearsing = False

    def rehearse(self, jaxpr: Jaxpr, args: Sequence[Any]) -> None:
        """Find out which reels there will be, before any loop is built."""

        def run(*args: Any) -> None:
            interpret(jaxpr, args, self.start(jnp.int32(0), jnp.int32(1)), self, Where())

        self._rehearsing = True
        jax.eval_shape(run, *args)
        self._rehearsing = False
        loops = [group.path[0] for group in self._groups.values()] + list(self._sending) * 2
        for name, group in self._groups.items():
            if group.counted and loops.count(group.path[0]) > 1:
                # There are others, so it takes a number to put them in order.
                self._groups[name] = Group(group.nodes, group.path, group.most, counted=False)

    def start(self, run: Any, first: Any) -> StreamState:
        windows = tuple(windows.start() for _, windows in self._listeners)
        return StreamState(run, first, jnp.int32(0), {}, {}, {}, windows)

    def finish(self, state: StreamState) -> StreamState:
        made, state = self._windowed(state, lambda tap, windows, its: (windows.finish(its), its))
        return self._send(state, Where(), made)

    def _windowed(
        self, state: StreamState, act: Callable[[Tap, Windows, Any], tuple[Nodes, Any]]
    ) -> tuple[Nodes, StreamState]:
        """Do something to the windows of every listener, and return the entries that come out."""
        made: Nodes = ()
        states = []
        for (tap, windows), its_state in zip(self._listeners, state.windows, strict=True):
            nodes, its_state = act(tap, windows, its_state)
            made += _claimed(nodes, tap)
            states.append(its_state)
        return made, state._replace(windows=tuple(states))

    # Entries.

    def log(self, nodes: Nodes, state: StreamState, where: Where) -> tuple[Nodes, StreamState]:
        if any(frame.length == 0 for frame in where.path):
            return (), state  # Never.

        def take(tap: Tap, windows: Windows, its_state: Any) -> tuple[Nodes, Any]:
            mine = _wanted(nodes, tap, tap is self._outermost)
            if _is_rare(mine):
                return mine, its_state
            return windows.take(its_state, mine, where)

        made, state = self._windowed(state, take)
        made = placed(made, where)
        if not where.path or _is_urgent(made):
            return (), self._send(state, where, made)
        return made, state

    def deferred(self) -> Meaning:
        return PassOn(self.repeated)

    def commits_before(self, eqn: JaxprEqn) -> bool:
        return bool(_sends(eqn))

    def commit(self, nodes: Nodes, state: StreamState, where: Where) -> StreamState:
        if not nodes:
            return state
        if not where.path:
            return self._send(state, where, nodes)
        name = f"{where}@{'.'.join(map(str, where.spot))}"
        wanted = _any_happened(nodes)
        if self._rehearsing:
            sure = len(where.path) == 1 and wanted is None and not where.in_test
            self._groups[name] = _group(nodes, where, counted=sure)
            return state
        words, large = self._groups[name].layout.pack(self._header(name, state, where), nodes)
        reel = write(state.reels[name], words, large, wanted)
        return state._replace(rows=state.rows + 1, reels={**state.reels, name: reel})

    def _header(self, name: str, state: StreamState, where: Where) -> list[Any]:
        if self._groups[name].counted:
            return []
        return [state.rows, *(state.iterations[loop] for loop in _loops(where))]

    def ran(self, eqn: JaxprEqn, outs: Sequence[Any], where: Where) -> None:
        if self._rehearsing and where.path and host_calls(eqn):
            self._calling.update(_loops(where))

    # Loops.

    def entered(self, state: StreamState, where: Where) -> StreamState:
        loop = str(where)
        state = state._replace(iterations={**state.iterations, loop: jnp.int32(0)})
        if self._rehearsing or len(where.path) > 1:
            return state
        names = [name for name, group in self._groups.items() if _starts(group.path, where)]
        loops = {str(frame) for name in names for frame in _prefixes(self._groups[name].path)}
        return state._replace(
            # An unrolled loop may overstep the capacity.
            reels={name: self._groups[name].start(MOST_UNROLLED) for name in names},
            limits=dict.fromkeys(sorted(loops), state.first),
        )

    def chunked(self, where: Where) -> bool:
        if where.path[-1].length == 0:
            return False
        return (
            self._rehearsing
            or str(where) in self._sending
            or any(_starts(group.path, where) for group in self._groups.values())
        )

    def goes_on(self, state: StreamState) -> Any:
        return state.run >= 0

    def chunk_size(self, state: StreamState, where: Where) -> Any:
        if self._rehearsing:
            return jnp.int32(1)
        if str(where) not in state.limits:
            return jnp.int32(UNLIMITED)
        if str(where) in self._calling:
            # That takes longer than our own call, and may fail: nothing should be lost then.
            return jnp.int32(1)
        room = state.limits[str(where)]
        for name, group in self._own(where):
            room = jnp.minimum(room, group.capacity - state.reels[name].count)
        return room

    def iterated(self, state: StreamState, where: Where) -> StreamState:
        made, state = self._windowed(state, lambda tap, windows, its: windows.iterated(its, where))
        state = self.commit(made, state, where.at(-1))
        loop = str(where)
        return state._replace(iterations={**state.iterations, loop: state.iterations[loop] + 1})

    def chunk_ended(
        self, state: StreamState, where: Where, made: Any, unfinished: Any
    ) -> StreamState:
        if self._rehearsing or str(where) not in state.limits:
            return state
        if len(where.path) == 1:
            return self._call(state, where, made=made)
        full = jnp.bool_(False)
        for name, group in self._own(where):
            full |= state.reels[name].count >= group.capacity
        return lax.cond(  # type: ignore[no-any-return]
            full | unfinished, lambda s: self._call(s, where, made=made), lambda s: s, state
        )

    def left(self, state: StreamState, where: Where) -> StreamState:
        inside = set(_loops(where))
        state = state._replace(
            iterations={loop: i for loop, i in state.iterations.items() if loop in inside}
        )
        if where.path:
            return state
        state = state._replace(reels={}, limits={})
        made, state = self._windowed(state, lambda tap, windows, its: windows.left(its, where))
        return self._send(state, where, made)

    def _own(self, where: Where) -> list[tuple[str, Group]]:
        path = tuple(map(str, where.path))
        return [(name, group) for name, group in self._groups.items() if group.path == path]

    # Calls to the host.

    def _send(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        """Send what is in the reels, and then `nodes`, if any of them happened."""
        if self._rehearsing and nodes:
            self._sending.update(_loops(where))
        if self._rehearsing or not nodes:
            return state
        happened = _any_happened(nodes)
        if happened is None:
            return self._call(state, where, nodes)
        return lax.cond(  # type: ignore[no-any-return]
            happened, lambda s: self._call(s, where, nodes), lambda s: s, state
        )

    def _call(
        self, state: StreamState, where: Where, nodes: Nodes | None = None, made: Any = None
    ) -> StreamState:
        """Call the host. A loop that pauses says how many iterations it made."""
        loop, names = str(where), list(state.reels)
        zero = jnp.int32(0)
        question = [
            state.run,
            state.limits.get(loop, zero),
            zero if made is None else made,
            state.iterations[_loops(where)[0]] if where.path else zero,
            *(state.reels[name].count for name in names),
        ]
        arrays = [x for name in names for x in (state.reels[name].words, *state.reels[name].large)]
        last = None
        if nodes is not None:
            header = [state.rows, *(state.iterations[loop] for loop in _loops(where))]
            last = _group(nodes, where, False)
            words, large = last.layout.pack(header, nodes)
            arrays += [words, *large]
        receive = functools.partial(self._receiver, loop, [self._groups[n] for n in names], last)
        answer = host_call(receive, jnp.stack(question), *arrays)
        limits = state.limits
        if nodes is None:
            limits = {**limits, loop: answer[1]}
        reels = {name: reel._replace(count=jnp.int32(0)) for name, reel in state.reels.items()}
        return state._replace(run=answer[0], rows=jnp.int32(0), limits=limits, reels=reels)


def _group(nodes: Nodes, where: Where, counted: bool) -> Group:
    # A loop that is in no other has no more rows than iterations.
    most = where.path[0].length if len(where.path) == 1 else None
    return Group(jax.tree.map(jax.typeof, nodes), tuple(map(str, where.path)), most, counted)


def _loops(where: Where) -> list[str]:
    """The names of the loops that we are in."""
    return _prefixes(tuple(map(str, where.path)))


def _prefixes(path: tuple[str, ...]) -> list[str]:
    return ["/".join(path[: i + 1]) for i in range(len(path))]


def _starts(path: tuple[str, ...], where: Where) -> bool:
    outer = tuple(map(str, where.path))
    return path[: len(outer)] == outer


def _any_happened(nodes: Nodes) -> Any:
    """Whether any of the entries happened; None if one of them certainly did."""
    masks = [entry.mask for entry in entries(nodes)]
    if any(mask is None for mask in masks):
        return None
    return functools.reduce(jnp.logical_or, map(jnp.any, masks))


def _is_urgent(nodes: Nodes) -> bool:
    """Say whether entries should be sent at once."""
    if _is_rare(nodes):
        return True
    types = [arrays.raw_type(x) for x in jax.tree.leaves(nodes)]
    return bool(sum(x.size * x.dtype.itemsize for x in types) >= LARGE)


def _is_rare(nodes: Nodes) -> bool:
    return any(entry.meta.rare for entry in entries(nodes))


def _sends_itself(eqn: JaxprEqn) -> bool:
    if eqn.primitive is log_p:
        return _is_urgent(logged(eqn))
    return bool((is_loop(eqn) or eqn.primitive is shard_map_p) and logs(eqn))


# Whether an equation sends something itself, so that what is before it must go first.
_sends = Count(_sends_itself)
