"""Reels, and the calls that send them: what a streaming program writes, counts and hands over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..._jax.host_call import host_call
from ..._jax.platforms import most_devices, platforms, waits_for_loops
from ..._jax.spread_call import can_call_apart
from ..._listen.windows import Windows, WindowState
from ..._log.entry import Nodes, entries
from ..._walk.meaning import Meaning
from ..._walk.places import Where
from .._devices import in_pieces
from .._reels.gather import ShardGroup
from .._reels.reel import MOST_BYTES, PACKED, PACKED_IF_SPREAD, Group, Reel
from ..receive import Asked, Handover, Receiver, Tail
from .claims import claimed
from .urgent import is_urgent

if TYPE_CHECKING:
    from ..stream import Tap

FEW_NUMBERS = 8  # That go to the host one by one: to put them together is a kernel to compile.


class StreamState(NamedTuple):
    """What a streaming program carries."""

    orders: Any  # What `Pace.begin` returned, or the host has answered.
    rows: Any  # How many rows have been written since there were none in any reel.
    iterations: dict[str, Any]  # Of the loops that we are in.
    totals: dict[str, Any]  # By loop, how many iterations it made in all, if we are not in it.
    reels: dict[str, Reel]
    # Of reels whose rows are counted: the number of the first row, and its iteration.
    bases: dict[str, Any]
    since: dict[str, Any]
    paused: dict[str, Any]  # Of loops that run in blocks: the iteration at which they last paused.
    windows: tuple[WindowState, ...]  # One for each tap.
    noted: dict[str, Any]  # Of loops that we are in: whether an alarm may have gone off in a chunk.
    armed: tuple[Any, ...]  # For each tap: whether none did, for only the first one counts.


class Reeling(Meaning):
    """Has reels, which it fills and sends."""

    def __init__(
        self,
        listeners: list[tuple[Tap, Windows]],
        outermost: Tap | None,
        repeated: frozenset[Any],
        receiver: Receiver,
    ) -> None:
        self._listeners, self._outermost, self.repeated = listeners, outermost, repeated
        self._receiver = receiver
        self._groups: dict[str, Group] = {}  # In program order.
        self._left: dict[str, ShardGroup] = {}  # What each `shard_map` may leave.
        self._loops: list[str] = []  # Those that have reels, on any device.
        self._sending: set[str] = set()  # Loops that send amid iterations.
        self._sends_spread = False  # Outside of loops, and without a reel.
        self._shards_call = False  # The devices of a `shard_map` call the host at its end.
        self._noting: dict[str, Where] = {}  # Those in which an alarm may go off,
        self._rigid: set[str] = set()  # and those that send more, so they cannot be repeated.
        self.rehearses = False
        self.waits_for_end = False  # All that can wait does, whatever the orders are.
        self._mesh: Any = None  # That the arguments are spread over.
        self._packed = PACKED_IF_SPREAD if most_devices() > 1 else PACKED
        self._in_blocks = waits_for_loops()
        self._guesses = jax.process_count() > 1  # How far loops may go without a pause, at first.

    def _rehearsed(self) -> None:
        """Now it is known which reels there will be."""
        self.rehearses = False
        loops = [unit_of(group.path) for group in self._groups.values()] + list(self._sending) * 2
        share = MOST_BYTES // max(1, len(self._groups))
        for name, group in self._groups.items():
            # If there are others, it takes a number to put them in order.
            counted = group.counted and loops.count(unit_of(group.path)) == 1
            about = group.nodes, group.path, group.most
            self._groups[name] = Group(*about, counted, share, self._mesh, self._packed)
        paths = (path for group in self._groups.values() for path in prefixes(group.path))
        self._loops = list(dict.fromkeys([*paths, *self._loops]))
        for group in self._groups.values():
            self._rigid.update(prefixes(group.path[:-1]))
        for where in self._noting.values():  # An alarm sends all reels of its unit.
            self._rigid.update(loops_at(where)[:-1] if self._unit(where) else [])

    @property
    def calls(self) -> bool:
        """Whether the program may call the host before it ends.

        If devices hand over pieces, it does, to be told which pieces belong together.
        """
        calls = self._loops or self._sending or self._noting or self._shards_call
        return bool(calls) or self._sends_spread or any(map(self._is_spread, self._groups.values()))

    @staticmethod
    def _is_spread(group: Group) -> bool:
        """Whether devices may have pieces of a group."""
        return group.layout.large > 0 and most_devices() > 1 and can_call_apart(platforms())

    def tail(self, state: StreamState) -> Tail:
        """What is left to hand over."""
        names = [*self._groups, *self._left]
        numbers = [*self._numbers(state, names), *(state.totals[loop] for loop in self._loops)]
        groups = tuple(map(self._group_of, names))
        buffers = _buffers(state, names)
        return Tail(
            jnp.stack([state.orders[0], *numbers]), buffers, Handover(self._receiver, groups)
        )

    def _windowed(
        self, state: StreamState, act: Callable[[Tap, Windows, Any], tuple[Nodes, Any]]
    ) -> tuple[Nodes, StreamState]:
        """Do something to the windows of every listener, and return the entries that come out."""
        made: Nodes = ()
        states = []
        for (tap, windows), its_state in zip(self._listeners, state.windows, strict=True):
            nodes, its_state = act(tap, windows, its_state)
            made += claimed(nodes, tap)
            states.append(its_state)
        return made, state._replace(windows=tuple(states))

    def _written(
        self, state: StreamState, where: Where, nodes: Nodes, wanted: Any, sure: bool
    ) -> StreamState:
        """Write a row into the reel of this place."""
        name = name_of(where)
        if self.rehearses:
            self._groups[name] = group_of(nodes, where, counted=sure)
            return state
        group, reel = self._groups[name], state.reels[name]
        if group.counted:  # As few numbers as possible change in every iteration.
            row = group.layout.pack([], nodes)
            reel = group.layout.write(reel, self._count(state, name), *row)
            return state._replace(reels={**state.reels, name: reel})
        row = group.layout.pack(self._header(state, where), nodes)
        reel = group.layout.write(reel, reel.count, *row)
        # A row that is not wanted will be overwritten by the next.
        more = jnp.int32(1) if wanted is None else wanted.astype(jnp.int32)
        reel = reel._replace(count=reel.count + more)
        return state._replace(rows=state.rows + 1, reels={**state.reels, name: reel})

    def _count(self, state: StreamState, name: str) -> Any:
        """How many rows there are in a reel."""
        if name in state.since:
            return self._made(state, name) - state.since[name]
        return state.reels[name].count

    def _made(self, state: StreamState, name: str) -> Any:
        """How many iterations the loop of a reel has made, whose rows are counted."""
        loop = unit_of(self._groups[name].path)
        return state.iterations.get(loop, state.totals[loop])

    @staticmethod
    def _header(state: StreamState, where: Where) -> list[Any]:
        return [state.rows, *(state.iterations[loop] for loop in loops_at(where))]

    def _group_of(self, name: str) -> Group | ShardGroup:
        return self._left[name] if name in self._left else self._groups[name]

    def _own(self, where: Where) -> list[tuple[str, Group]]:
        path = tuple(map(str, where.path))
        return [(name, group) for name, group in self._groups.items() if group.path == path]

    def _any_full(self, where: Where, state: StreamState) -> Any:
        """Whether a reel of the loop that we are in has to be sent."""
        full = jnp.bool_(False)
        for name, group in self._own(where):
            if not group.holds_all:
                full |= self._count(state, name) >= group.capacity
        return full

    def _unit(self, where: Where) -> list[str]:
        """The reels of the outermost loop that we are in."""
        unit = str(where.path[0])
        return [name for name, group in self._groups.items() if unit_of(group.path) == unit]

    def _send(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        """Send entries if any of them happened, after what is in the reels of the same loop."""
        if not nodes:
            return state
        happened = any_happened(nodes)
        waits = not where.path and not is_urgent(nodes)
        if waits:
            state = self._written(state, where, nodes, happened, False)
        elif self.rehearses:
            self._sending.update(loops_at(where))
            self._rigid.update(loops_at(where))
            self._sends_spread = self._sends_spread or self._is_spread(
                self._sent_alone(nodes, where)
            )
        if self.rehearses or (waits and self.waits_for_end):
            return state

        def call(state: StreamState) -> StreamState:
            if waits:
                return self._call(state, where, [name_of(where)])
            return self._call(self._earlier_sent(state, where), where, nodes=nodes)

        if waits:
            at_once = state.orders[1] != 0
            happened = at_once if happened is None else at_once & happened
        if happened is None:
            return call(state)
        return lax.cond(happened, call, lambda s: s, state)  # type: ignore[no-any-return]

    def _earlier_sent(self, state: StreamState, where: Where) -> StreamState:
        """Send what is in reels of other places, which has waited for the end so far."""
        mine = self._unit(where) if where.path else []
        others = list(self._groups)
        if mine:  # It sends its own, and those after it are empty.
            others = others[: others.index(mine[0])]
        others += [name for name in self._left if name in state.reels]
        if not others:
            return state
        waiting = functools.reduce(jnp.maximum, [self._count(state, name) for name in others])
        return lax.cond(  # type: ignore[no-any-return]
            waiting > 0, lambda s: self._call(s, where, others), lambda s: s, state
        )

    def _all_sent(self, state: StreamState, where: Where) -> StreamState:
        """Send what is in any reel."""
        if not state.reels:
            return state
        waiting = functools.reduce(jnp.maximum, [self._count(state, name) for name in state.reels])
        return lax.cond(  # type: ignore[no-any-return]
            waiting > 0, lambda s: self._call(s, where, list(s.reels)), lambda s: s, state
        )

    def _numbers(self, state: StreamState, names: Sequence[str]) -> list[Any]:
        """For each reel, how many rows there are; and of rows that are counted, which they are."""
        numbers = []
        for name in names:
            if name in state.bases:
                numbers += [state.since[name], self._made(state, name), state.bases[name]]
            else:
                numbers.append(state.reels[name].count)
        return numbers

    def _call(
        self,
        state: StreamState,
        where: Where,
        names: Sequence[str] | None = None,
        nodes: Nodes = (),
        first: Any = None,
        between: bool = False,
    ) -> StreamState:
        """Call the host, with some reels: those of the loop that we are in, if not told otherwise.

        A loop that pauses says with which iteration its chunk began.
        """
        mine = names is None  # What is in others has been sent.
        if names is None:
            names = self._unit(where) if where.path else []
        is_all = len(names) == len(state.reels) or mine
        loop, zero = str(where), jnp.int32(0)
        pause = [] if first is None else [first, state.iterations[loop]]
        question = [*pause, *self._caller(), *self._numbers(state, names)]
        buffers = _buffers(state, names)
        last = None
        if nodes:
            last = self._sent_alone(nodes, where)
            words, large = last.layout.pack(self._header(state, where), nodes)
            buffers += [words, *large]
        groups = [self._group_of(name) for name in names]
        if len(question) > FEW_NUMBERS:
            question = [jnp.stack(question)]
        asked = Asked(loop, bool(pause), len(question), groups, last, between)
        orders = self._answered(asked, state.orders, question, buffers)
        empty = {name: state.reels[name]._replace(count=zero) for name in names}
        counted = [name for name in names if name in state.bases]
        state = state._replace(
            orders=orders,
            reels={**state.reels, **empty},
            bases={**state.bases, **dict.fromkeys(counted, zero)},
            since={**state.since, **{name: self._made(state, name) for name in counted}},
        )
        return state._replace(rows=zero) if is_all else state

    def _answered(
        self, asked: Asked, orders: Any, question: Sequence[Any], buffers: Sequence[Any]
    ) -> Any:
        """What the host answers."""
        receive = functools.partial(self._receiver, asked)
        each = functools.partial(in_pieces.called, self._receiver, asked)
        return host_call(receive, orders, *question, *buffers, each=each, common=len(question))

    def _sent_alone(self, nodes: Nodes, where: Where) -> Group:
        """What describes entries that are in no reel."""
        group = group_of(nodes, where, False)
        return Group(
            group.nodes, group.path, group.most, False, mesh=self._mesh, packed=self._packed
        )

    def _caller(self) -> list[Any]:
        """Which device calls the host, if there are several that do."""
        return []


def _buffers(state: StreamState, names: Sequence[str]) -> list[Any]:
    """The arrays of some reels."""
    return [x for name in names for x in (state.reels[name].words, *state.reels[name].large)]


def group_of(nodes: Nodes, where: Where, counted: bool) -> Group:
    # A loop that is in no other has no more rows than iterations.
    most = where.path[0].length if len(where.path) == 1 else None if where.path else 1
    return Group(jax.tree.map(jax.typeof, nodes), tuple(map(str, where.path)), most, counted)


def name_of(where: Where) -> str:
    """What the reel of a place is known by."""
    return f"{where}@{'.'.join(map(str, where.spot))}"


def unit_of(path: tuple[str, ...]) -> str:
    """The outermost loop of a path; "" if there is none."""
    return path[0] if path else ""


def loops_at(where: Where) -> list[str]:
    """The names of the loops that we are in."""
    return prefixes(tuple(map(str, where.path)))


def prefixes(path: tuple[str, ...]) -> list[str]:
    return ["/".join(path[: i + 1]) for i in range(len(path))]


def any_happened(nodes: Nodes) -> Any:
    """Whether any of the entries happened; None if one of them certainly did."""
    masks = [entry.mask for entry in entries(nodes)]
    if any(mask is None for mask in masks):
        return None
    return functools.reduce(jnp.logical_or, map(jnp.any, masks))
