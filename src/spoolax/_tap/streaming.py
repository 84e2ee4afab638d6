"""The meaning of `log` for `tap`: entries go into reels, and loops pause to send them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import arrays
from .._jax.anatomy import Scan
from .._jax.host_call import host_call
from .._jax.platforms import waits_for_loops
from .._jax.primitives import Jaxpr, JaxprEqn
from .._listen.windows import Windows, WindowState
from .._log.entry import Entry, Nodes, entries, map_entries, masked, restrict
from .._walk.cost import seconds
from .._walk.counts import conditional_calls, host_calls
from .._walk.interpret import interpret
from .._walk.labels import placed
from .._walk.meaning import MOST_UNROLLED, Body, Meaning, PassOn
from .._walk.places import Where
from ._reels.gather import ShardGroup
from ._reels.reel import MOST_BYTES, Group, Reel
from .pace import entered_once, places
from .receive import Asked, Handover, Receiver, Tail
from .urgent import Alarms, is_urgent, sends

if TYPE_CHECKING:
    from .stream import Tap

MOST_IN_BLOCK = 1024  # Iterations of a loop of known length that run without a pause,
BLOCK_SECONDS = 0.02  # and how long they should take at most.
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


class Streaming(Meaning):
    """Sends entries from reels: whenever a loop pauses, or at the end."""

    def __init__(
        self,
        listeners: list[tuple[Tap, Windows]],
        outermost: Tap | None,
        repeated: frozenset[Any],
        receiver: Receiver,
        returns: bool,
    ) -> None:
        self._listeners, self._outermost, self.repeated = listeners, outermost, repeated
        self._receiver, self._returns = receiver, returns
        self._groups: dict[str, Group] = {}  # In program order.
        self._left: dict[str, ShardGroup] = {}  # What each `shard_map` may leave.
        self._loops: list[str] = []  # Those that have reels, on any device.
        self._sending: set[str] = set()  # Loops that send amid iterations.
        self._noting: dict[str, Where] = {}  # Those in which an alarm may go off,
        self._rigid: set[str] = set()  # and those that send more, so they cannot be repeated.
        self.rehearses = False
        self._in_blocks = waits_for_loops()

    def rehearse(self, jaxpr: Jaxpr, args: Sequence[Any]) -> None:
        """Find out which reels there will be, before any loop is built."""

        def run(*args: Any) -> None:
            start = self.start(self._receiver.pace.begin(0, 0.0))
            _, state, _ = interpret(jaxpr, args, start, self, Where())
            self.finish(state)

        self.rehearses = True
        jax.eval_shape(run, *args)
        self._rehearsed()
        self._receiver.places = self._receiver.pace.places = places(self._loops)
        if not self._in_blocks:
            self._receiver.absolute = entered_once(self._receiver.places)

    def _rehearsed(self) -> None:
        """Now it is known which reels there will be."""
        self.rehearses = False
        loops = [_unit(group.path) for group in self._groups.values()] + list(self._sending) * 2
        share = MOST_BYTES // max(1, len(self._groups))
        for name, group in self._groups.items():
            # If there are others, it takes a number to put them in order.
            counted = group.counted and loops.count(_unit(group.path)) == 1
            self._groups[name] = Group(group.nodes, group.path, group.most, counted, share)
        paths = (path for group in self._groups.values() for path in _prefixes(group.path))
        self._loops = list(dict.fromkeys([*paths, *self._loops]))
        for group in self._groups.values():
            self._rigid.update(_prefixes(group.path[:-1]))
        for where in self._noting.values():  # An alarm sends all reels of its unit.
            self._rigid.update(_loops(where)[:-1] if self._unit(where) else [])

    def start(self, begin: Any) -> StreamState:
        """The state to begin with."""
        windows = tuple(windows.start() for _, windows in self._listeners)
        zero = jnp.int32(0)
        counted = dict.fromkeys((n for n, group in self._groups.items() if group.counted), zero)
        # A loop that is unrolled, or runs in blocks, may overstep the capacity.
        spare = MOST_IN_BLOCK if self._in_blocks else MOST_UNROLLED
        return StreamState(
            orders=jnp.asarray(begin),
            rows=zero,
            iterations={},
            totals=dict.fromkeys(self._loops, zero),
            reels={name: group.start(spare) for name, group in self._groups.items()},
            bases=counted,
            since=counted,
            paused=dict.fromkeys(self._loops, zero) if self._in_blocks else {},
            windows=windows,
            noted={},
            armed=(jnp.bool_(True),) * len(windows),
        )

    def finish(self, state: StreamState) -> StreamState:
        """Log what is left in windows."""
        made, state = self._windowed(state, lambda tap, windows, its: (windows.finish(its), its))
        return self._send(state, Where(), made)

    def tail(self, state: StreamState) -> Tail:
        """What is left to hand over."""
        names = [*self._groups, *self._left] if self._returns else []
        numbers = [*self._numbers(state, names), *(state.totals[loop] for loop in self._loops)]
        groups = tuple(map(self._group_of, names))
        buffers = [x for name in names for x in (state.reels[name].words, *state.reels[name].large)]
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
            made += _claimed(nodes, tap)
            states.append(its_state)
        return made, state._replace(windows=tuple(states))

    # Entries.

    def log(self, nodes: Nodes, state: StreamState, where: Where) -> tuple[Nodes, StreamState]:
        if any(frame.length == 0 for frame in where.path):
            return (), state  # Never.

        alarms = restrict(nodes, lambda key, entry: entry.meta.rare)
        nodes = restrict(nodes, lambda key, entry: not entry.meta.rare)

        def take(tap: Tap, windows: Windows, its_state: Any) -> tuple[Nodes, Any]:
            return windows.take(its_state, wanted_by(nodes, tap, tap is self._outermost), where)

        made, state = self._windowed(state, take)
        made = placed(made, where)
        if not where.path or is_urgent(made):
            made, state = (), self._send(state, where, made)
        return made, self._alarm(state, where, alarms) if alarms else state

    def deferred(self) -> Meaning:
        return PassOn(self.repeated)

    def commits_before(self, eqn: JaxprEqn) -> bool:
        return bool(sends(eqn))

    def commit(self, nodes: Nodes, state: StreamState, where: Where) -> StreamState:
        if not nodes:
            return state
        if not where.path:
            return self._send(state, where, nodes)
        wanted = _any_happened(nodes)
        sure = len(where.path) == 1 and wanted is None and not where.in_test
        return self._written(state, where, nodes, wanted, sure)

    def _written(
        self, state: StreamState, where: Where, nodes: Nodes, wanted: Any, sure: bool
    ) -> StreamState:
        """Write a row into the reel of this place."""
        name = name_of(where)
        if self.rehearses:
            self._groups[name] = _group(nodes, where, counted=sure)
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
        loop = _unit(self._groups[name].path)
        return state.iterations.get(loop, state.totals[loop])

    @staticmethod
    def _header(state: StreamState, where: Where) -> list[Any]:
        return [state.rows, *(state.iterations[loop] for loop in _loops(where))]

    # The user's own calls to the host may fail. So what was logged before them is sent before them:
    # nothing should be lost then.

    def enters(self, eqn: JaxprEqn) -> bool:
        return super().enters(eqn) or bool(conditional_calls(eqn))

    def passed_over(self, eqn: JaxprEqn, where: Where) -> None:
        if host_calls(eqn):
            self._sending.update(_loops(where))
            self._rigid.update(_loops(where))

    def run(
        self, eqn: JaxprEqn, invals: Sequence[Any], state: StreamState, where: Where
    ) -> tuple[list[Any], StreamState]:
        if host_calls(eqn):
            state = self._all_sent(state, where)
            invals = arrays.after(state.orders[0], invals)  # It waits for nothing else.
        return super().run(eqn, invals, state, where)

    # Loops.

    def entered(self, state: StreamState, where: Where) -> StreamState:
        state = state._replace(iterations={**state.iterations, str(where): jnp.int32(0)})
        if str(where) in state.paused:
            state = state._replace(paused={**state.paused, str(where): jnp.int32(0)})
        if str(where) in self._noting:
            state = state._replace(noted={**state.noted, str(where): jnp.bool_(False)})
        bases = {name: state.rows for name in self._unit(where) if name in state.bases}
        return state._replace(bases={**state.bases, **bases}) if len(where.path) == 1 else state

    def chunked(self, where: Where) -> bool:
        if where.path[-1].length == 0:
            return False
        return (
            self.rehearses
            or str(where) in self._sending
            or any(_starts(group.path, where) for group in self._groups.values())
        )

    def goes_on(self, state: StreamState) -> Any:
        return state.orders[0] >= 0

    def iteration(self, state: StreamState, where: Where) -> Any:
        return state.iterations[str(where)]

    def pauses(self, state: StreamState, where: Where, first: Any, program: Jaxpr) -> Any:
        loop = str(where)
        made, over = state.iterations[loop], jnp.bool_(False)
        if loop in self._noting:
            over = made - first >= (1 if loop in self._rigid else _most(program))
        if loop not in state.totals:
            return over
        if loop not in self._receiver.absolute:
            made -= first
        limit = state.orders[self._receiver.places[loop]]
        return over | (limit - made <= 0) | self._any_full(where, state)  # Even if they overflow.

    def iterated(self, state: StreamState, where: Where) -> StreamState:
        made, state = self._windowed(state, lambda tap, windows, its: windows.iterated(its, where))
        state = self.commit(made, state, where.at(-1))
        loop = str(where)
        return state._replace(iterations={**state.iterations, loop: state.iterations[loop] + 1})

    def block_size(self, scan: Scan, where: Where) -> int | None:
        loop = str(where)
        if not self._in_blocks or not isinstance(scan.length, int):
            return None
        if loop in self._noting:
            # That takes the loop twice, so only the innermost, in which most time is spent.
            if loop in self._rigid or any(
                loop in _loops(one)[:-1] for one in self._noting.values()
            ):
                return None
        elif loop not in self._loops:
            return None
        most = [MOST_IN_BLOCK, _most(scan.body), scan.length]
        most += [group.capacity for _, group in self._own(where) if not group.holds_all]
        size = max(1, min(most))
        # One that divides the length saves compiling the body once more for the rest.
        divisors = [one for one in range(max(1, size // 4), size + 1) if scan.length % one == 0]
        return max(divisors, default=size)

    def block_ended(
        self, state: StreamState, where: Where, size: int, unfinished: Any
    ) -> StreamState:
        loop = str(where)
        if loop not in state.totals:
            return state
        first = state.paused[loop]
        made = state.iterations[loop] - first
        due = unfinished & (made + size > state.orders[self._receiver.places[loop]])
        due |= self._any_full(where, state)
        if len(where.path) == 1:
            at_end = (state.orders[1] != 0) if self._returns else jnp.bool_(True)
            due |= at_end & ~unfinished

        def call(state: StreamState) -> StreamState:
            state = self._call(self._earlier_sent(state, where), where, first=first)
            return state._replace(paused={**state.paused, loop: state.iterations[loop]})

        return lax.cond(due, call, lambda s: s, state)  # type: ignore[no-any-return]

    def chunk_ended(self, state: StreamState, where: Where, first: Any, paused: Any) -> StreamState:
        if str(where) not in state.totals:
            return state
        if len(where.path) > 1:
            needed = paused
        elif self._returns:
            needed = paused | (state.orders[1] != 0)
        else:
            return self._call(state, where, first=first)

        def call(state: StreamState) -> StreamState:
            return self._call(self._earlier_sent(state, where), where, first=first)

        return lax.cond(needed, call, lambda s: s, state)  # type: ignore[no-any-return]

    def left(self, state: StreamState, where: Where) -> StreamState:
        inside = set(_loops(where))
        ended = {loop: i for loop, i in state.iterations.items() if loop not in inside}
        totals = {loop: i + ended.get(loop, 0) for loop, i in state.totals.items()}
        state = state._replace(
            iterations={loop: i for loop, i in state.iterations.items() if loop in inside},
            totals=totals,
            noted={loop: flag for loop, flag in state.noted.items() if loop in inside},
        )
        if where.path:
            return state
        for name in state.since:  # They were not numbered one by one.
            if _unit(self._groups[name].path) in ended:
                state = state._replace(rows=state.rows + self._count(state, name))
        made, state = self._windowed(state, lambda tap, windows, its: windows.left(its, where))
        return self._send(state, where, made)

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
        return [name for name, group in self._groups.items() if _unit(group.path) == unit]

    # Alarms. In loops, one that may have gone off is only noted, which costs next to nothing.

    def noted(self, state: StreamState, where: Where) -> Any:
        return state.noted.get(str(where))

    def _alarm(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        """Alarms may have gone off."""
        each = self._alarms(where, nodes)
        if not where.path:
            return self._tell(state, where, each)
        if self.rehearses:
            self._noting[str(where)] = where
            self._sending.update(_loops(where))
            return state
        loop = str(where)
        noted = state.noted[loop]
        for armed, mine in zip(state.armed, each, strict=True):
            noted |= armed & _any_happened(mine) if mine else False
        return state._replace(noted={**state.noted, loop: noted})

    def _alarms(self, where: Where, nodes: Nodes) -> list[Nodes]:
        """The alarms for each tap."""
        nodes = placed(nodes, where)
        return [
            _claimed(wanted_by(nodes, tap, tap is self._outermost), tap)
            for tap, _ in self._listeners
        ]

    def _tell(self, state: StreamState, where: Where, each: Sequence[Nodes]) -> StreamState:
        """Send alarms, if they did go off, and for each tap if it is the first one."""
        if self.rehearses:
            return state
        each = [
            masked(map_entries(_confirmed, nodes), armed)
            for nodes, armed in zip(each, state.armed, strict=True)
        ]
        happened = [_any_happened(nodes) if nodes else jnp.bool_(False) for nodes in each]
        nodes = tuple(node for nodes in each for node in nodes)

        def call(state: StreamState) -> StreamState:
            state = self._call(self._earlier_sent(state, where), where, nodes=nodes)
            armed = zip(state.armed, happened, strict=True)
            return state._replace(armed=tuple(one & ~other for one, other in armed))

        any_of_them = functools.reduce(jnp.logical_or, happened)
        return lax.cond(any_of_them, call, lambda s: s, state)  # type: ignore[no-any-return]

    def rewound(self, before: StreamState, state: StreamState, where: Where) -> StreamState:
        # Rows that were written since will be written again, as they are.
        reels = {
            name: reel._replace(count=before.reels[name].count)
            for name, reel in state.reels.items()
        }
        noted = {**before.noted, str(where): jnp.bool_(False)}
        return before._replace(orders=state.orders, armed=state.armed, reels=reels, noted=noted)

    def looked_at(self, body: Body, state: StreamState, where: Where) -> StreamState:
        meaning, loop = Alarms(where, self.repeated), str(where)
        _, _, nodes = interpret(body.jaxpr, body.args, (), meaning, where, body.outs)
        now = state.iterations
        then = state._replace(iterations={**now, loop: now[loop] - 1})
        return self._tell(then, where, self._alarms(where, nodes))._replace(iterations=now)

    # Calls to the host.

    def _send(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        """Send entries if any of them happened, after what is in the reels of the same loop."""
        if not nodes:
            return state
        happened = _any_happened(nodes)
        waits = self._returns and not where.path and not is_urgent(nodes)
        if waits:
            state = self._written(state, where, nodes, happened, False)
        elif self.rehearses:
            self._sending.update(_loops(where))
            self._rigid.update(_loops(where))
        if self.rehearses:
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
        if not self._returns or not others:
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
        buffers = [x for name in names for x in (state.reels[name].words, *state.reels[name].large)]
        last = None
        if nodes:
            last = _group(nodes, where, False)
            words, large = last.layout.pack(self._header(state, where), nodes)
            buffers += [words, *large]
        groups = [self._group_of(name) for name in names]
        if len(question) > FEW_NUMBERS:
            question = [jnp.stack(question)]
        asked = Asked(loop, bool(pause), len(question), groups, last, between)
        receive = functools.partial(self._receiver, asked)
        orders = host_call(receive, state.orders, *question, *buffers)
        empty = {name: state.reels[name]._replace(count=zero) for name in names}
        counted = [name for name in names if name in state.bases]
        state = state._replace(
            orders=orders,
            reels={**state.reels, **empty},
            bases={**state.bases, **dict.fromkeys(counted, zero)},
            since={**state.since, **{name: self._made(state, name) for name in counted}},
        )
        return state._replace(rows=zero) if is_all else state

    def _caller(self) -> list[Any]:
        """Which device calls the host, if there are several that do."""
        return []


def wanted_by(nodes: Nodes, tap: Tap, outermost: bool) -> Nodes:
    """What a tap gets."""

    def mine(key: str, entry: Entry) -> bool:
        return tap.options.selects(key, entry) if outermost else tap in entry.meta.listeners

    return restrict(nodes, mine)


def _claimed(nodes: Nodes, tap: Tap) -> Nodes:
    def claim(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, listeners=(tap,), taken=True))

    return map_entries(claim, nodes)


def _group(nodes: Nodes, where: Where, counted: bool) -> Group:
    # A loop that is in no other has no more rows than iterations.
    most = where.path[0].length if len(where.path) == 1 else None if where.path else 1
    return Group(jax.tree.map(jax.typeof, nodes), tuple(map(str, where.path)), most, counted)


def name_of(where: Where) -> str:
    """What the reel of a place is known by."""
    return f"{where}@{'.'.join(map(str, where.spot))}"


def _unit(path: tuple[str, ...]) -> str:
    """The outermost loop of a path; "" if there is none."""
    return path[0] if path else ""


def _loops(where: Where) -> list[str]:
    """The names of the loops that we are in."""
    return _prefixes(tuple(map(str, where.path)))


def _prefixes(path: tuple[str, ...]) -> list[str]:
    return ["/".join(path[: i + 1]) for i in range(len(path))]


def _starts(path: tuple[str, ...], where: Where) -> bool:
    outer = tuple(map(str, where.path))
    return path[: len(outer)] == outer


def _confirmed(entry: Entry) -> Entry:
    assert entry.meta.alarm is not None
    return entry.meta.alarm.confirmed(entry)


def _most(program: Jaxpr) -> int:
    """How many times a program may run without a pause, if nobody has to hear of it."""
    return max(1, int(BLOCK_SECONDS / seconds(program)))


def _any_happened(nodes: Nodes) -> Any:
    """Whether any of the entries happened; None if one of them certainly did."""
    masks = [entry.mask for entry in entries(nodes)]
    if any(mask is None for mask in masks):
        return None
    return functools.reduce(jnp.logical_or, map(jnp.any, masks))
