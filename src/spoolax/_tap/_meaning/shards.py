"""The meaning of `log` for `tap` inside `shard_map`: every device has reels, and calls the host.

The devices do so in step, in the same iterations: see `in_step`. What decides when they call is
therefore the same on all of them. They are in step in scans, unless a branch or a while loop is
around them, which other devices may not be in. Of a while loop around everything else, all devices
run as many chunks as any of them, for which they exchange one number after each. Elsewhere, a
device only hands over what it has no room for, and the rest follows when all are in step again.

Devices of several processes would each call their own. So the first one makes their calls for all,
which send it what they have; those that not all of them make are not possible then.

A `shard_map` inside of a loop returns what it logs, as it does for `spool`, and so do those in
which the host cannot be called.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax import arrays
from ..._jax.anatomy import Scan, ShardMap, While
from ..._jax.host_call import host_call
from ..._jax.platforms import caller
from ..._jax.primitives import Jaxpr, JaxprEqn, while_p
from ..._jax.processes import spans_processes
from ..._log.entry import Entry, Nodes, entries
from ..._walk.counts import Count, host_calls, logs, running_loops
from ..._walk.meaning import Shards
from ..._walk.places import Where
from ..._walk.shard_map import devices_along
from .._devices.in_step import MORE, InStep
from .._reels.gather import ShardGroup, Spread
from .._reels.reel import PACKED, Group, Reel
from ..pace import UNLIMITED
from ..receive import Asked, Receiver
from .reeling import StreamState, name_of
from .streaming import Streaming
from .urgent import alarms

_logging_tests = Count(
    lambda eqn: eqn.primitive is while_p and logs.within(While.of(eqn).programs[0])
)


class WithShards(Streaming):
    """Streams from a whole program, and from each device of the `shard_map`s in it."""

    def __init__(self, *args: Any, late: Collection[str] = ()) -> None:
        super().__init__(*args)
        self._shards: dict[str, InShards] = {}
        self._late = late  # Those that return what they log.

    @classmethod
    def rehearsed(cls, jaxpr: Jaxpr, invals: Sequence[Any], *args: Any) -> WithShards:
        """Make one that has rehearsed a program."""
        meaning = cls(*args)
        meaning.rehearse(jaxpr, invals)
        late = [name for name, shards in meaning._shards.items() if shards.must_return]
        if late:
            meaning = cls(*args, late=late)
            meaning.rehearse(jaxpr, invals)
        return meaning

    def rehearse(self, jaxpr: Jaxpr, args: Sequence[Any]) -> None:
        super().rehearse(jaxpr, args)
        for shards in self._shards.values():
            shards.paced_like(self._receiver)

    def in_shards(self, eqn: JaxprEqn, where: Where) -> Shards | None:
        name = name_of(where)
        if self.rehearses and name not in self._late and self._is_live(eqn, where):
            self._shards[name] = InShards(name, self, ShardMap.of(eqn))
        return self._shards.get(name)

    def _is_live(self, eqn: JaxprEqn, where: Where) -> bool:
        if where.path or where.conditional or not running_loops(eqn) or _logging_tests(eqn):
            return False
        if alarms(eqn):  # They come out, and are looked at where all devices are.
            return False
        if any(tap.options.windowed for tap, _ in self._listeners):
            return False
        construct = ShardMap.of(eqn)
        return construct.axes == frozenset(construct.mesh.axis_names)  # Else JAX refuses.


class InShards(Streaming, Shards):
    """Streams from a device of a `shard_map`."""

    def __init__(self, name: str, around: Streaming, construct: ShardMap) -> None:
        receiver = around._receiver
        self._in_step = InStep(receiver.taps, receiver.pace, receiver.part)
        given = around._listeners, around._outermost, around.repeated
        super().__init__(*given, self._in_step)
        self._name, self._around, self._construct = name, around, construct
        self._packed = PACKED  # Of each device.
        self.rehearses = True
        self._spreads: dict[str, list[Spread]] = {}
        self._uneven: set[str] = set()  # Reels that are written in branches.
        self._hands_over = False  # Between calls that all devices make,
        self._calls_unevenly = False  # because not all of them make one of the user's.
        part = receiver.part
        self._spans = spans_processes(construct.mesh) or (part is not None and part.spans)

    @property
    def must_return(self) -> bool:
        """Whether devices have calls to make that not all of them do, and cannot."""
        return self._spans and self._hands_over

    def paced_like(self, receiver: Receiver) -> None:
        """Use the limits that the program around has for all loops."""
        self._in_step.places = receiver.places

    # What goes in and comes out.

    @property
    def _leaves_some(self) -> bool:
        """Whether something may be left in reels at the end: not if nobody wants what is logged.

        In somebody else's program, one device would have to hand it over, and wait for the others
        to get there, of which one may fail. So there each device does so at the end.
        """
        return not self._calls_at_end and bool(self._groups)

    @property
    def _calls_at_end(self) -> bool:
        return self._receiver.part is not None and not self._spans and bool(self._groups)

    def given(self, state: StreamState, where: Where) -> tuple[StreamState, Any]:
        if self.rehearses:
            return state, state.orders
        state = self._around._earlier_sent(state, where)
        return state, state.orders

    def begin(self, given: Any) -> StreamState:
        more = jnp.zeros(MORE, jnp.int32)
        state = self.start(jnp.concatenate([given, more]))
        if not self._construct.check_vma:
            return state
        reels = {}
        for name, reel in state.reels.items():
            axes = _varying(self._groups[name].nodes)
            words, *large = (arrays.vary(x, axes) for x in (reel.words, *reel.large))
            reels[name] = Reel(reel.count, words, tuple(large))
        return state._replace(reels=reels)

    def end(self, state: StreamState) -> tuple[Any, Any]:
        if self.rehearses:
            return (), ()
        names = list(self._groups)
        if self._calls_at_end:
            state = self._call(state, Where(), names)
        elif self._hands_over:
            state = lax.cond(
                self._most(state.orders[-1]) != 0,
                lambda s: self._call(s, Where(), names),
                lambda s: s,
                state,
            )
        common = state.orders[:-MORE], state.totals
        if not self._leaves_some:
            return common, ()
        reels = [state.reels[name] for name in names]
        numbers = jnp.stack(self._numbers(state, names))
        own = [numbers, *(x for reel in reels for x in (reel.words, *reel.large))]
        return common, [self._varied(x)[None] for x in own]

    def returned(self, state: StreamState, common: Any, own: Any) -> StreamState:
        around = self._around
        if self.rehearses:
            self._rehearsed()
            spreads = [self._spreads[name] for name in self._groups]
            groups = list(self._groups.values())
            self._in_step.group = ShardGroup(groups, spreads, self._construct.mesh.size)
            around._loops += self._loops
            around._shards_call = around._shards_call or self._calls_at_end
            if self._leaves_some:
                around._left[self._name] = self._in_step.group
            return state
        orders, totals = common
        state = state._replace(orders=orders, totals={**state.totals, **totals})
        if not self._leaves_some:
            return state
        numbers, *buffers = own
        first = jnp.zeros_like(numbers[:, :1]) + state.rows  # It is where the numbers are.
        # Whether there is anything cannot be asked if one of the devices has failed.
        reel = Reel(jnp.int32(1), jnp.concatenate([first, numbers], 1), tuple(buffers))
        return state._replace(rows=state.rows + 1, reels={**state.reels, self._name: reel})

    # Entries.

    def commit(self, nodes: Nodes, state: StreamState, where: Where) -> StreamState:
        if not nodes:
            return state
        if not where.path:
            return self._send(state, where, nodes)
        name, sure = name_of(where), len(where.path) == 1 and not where.conditional
        state = self._written(state, where, nodes, None, sure)
        if self.rehearses or name not in self._uneven:
            return state
        full = self._count(state, name) >= self._groups[name].capacity
        return self._handed_over(state, where, [name], full)

    def _written(
        self, state: StreamState, where: Where, nodes: Nodes, wanted: Any, sure: bool
    ) -> StreamState:
        if self.rehearses:
            name = name_of(where)
            self._spreads[name] = [self._spread(entry, where) for entry in entries(nodes)]
            if where.conditional:
                self._uneven.add(name)
            self._hands_over = self._hands_over or not self._is_in_step(where)
        # On all devices alike: those on which nothing happened say so by their masks.
        return super()._written(state, where, nodes, None, sure)

    def _spread(self, entry: Entry, where: Where) -> Spread:
        construct, mesh = self._construct, self._construct.mesh
        differs = construct.axes
        if construct.check_vma:
            differs = _varying(entry) | where.varies
        names = tuple(name for name in mesh.axis_names if name in differs)
        place = tuple(slice(None) if name in names else 0 for name in mesh.axis_names)
        numbers = np.arange(mesh.size).reshape([mesh.shape[name] for name in mesh.axis_names])
        devices = tuple(np.ravel(numbers[place]).tolist())
        return Spread(devices, devices_along(mesh, names) if names else None)

    def _send(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        if not nodes:
            return state
        if where.path:
            return self.commit(nodes, state, where)
        state = self._written(state, where, nodes, None, False)
        if self.rehearses:
            return state
        names = [name_of(where)]
        if where.conditional:
            return self._handed_over(state, where, names, True)
        return lax.cond(  # type: ignore[no-any-return]
            state.orders[1] != 0, lambda s: self._call(s, where, names), lambda s: s, state
        )

    # Loops.

    def _is_in_step(self, where: Where) -> bool:
        """Say whether all devices are in a loop, and pause in the same iterations."""
        if where.conditional:
            return False
        return len(where.path) <= 1 or (not where.unbounded and not self._calls_unevenly)

    def began(self, state: StreamState, where: Where, first: Any) -> Any:
        if where.path[-1].length is not None or not self._is_in_step(where):
            return first
        now = self.iteration(state, where)
        return now - self._most(now - first)

    def pauses(self, state: StreamState, where: Where, first: Any, program: Jaxpr) -> Any:
        if not self._is_in_step(where):
            return self._any_full(where, state)
        if len(where.path) > 1 or str(where) not in state.totals:
            return super().pauses(state, where, first, program)
        # Not by what is in reels, of which devices that have left the loop have less.
        room = self._limit(state, self._in_step.places[str(where)], program)
        for _, group in self._own(where):
            room = jnp.minimum(room, UNLIMITED if group.holds_all else group.capacity)
        return self.iteration(state, where) - first >= room

    def chunk_ended(self, state: StreamState, where: Where, first: Any, paused: Any) -> StreamState:
        if self._is_in_step(where):
            return super().chunk_ended(state, where, first, paused)
        if len(where.path) == 1:
            return self._handed_over(state, where, self._unit(where), True)
        names = [name for name, _ in self._own(where)]
        return self._handed_over(state, where, names, paused)

    def block_size(self, scan: Scan, where: Where) -> int | None:
        return super().block_size(scan, where) if self._is_in_step(where) else None

    def _own(self, where: Where) -> list[tuple[str, Group]]:
        return [(name, group) for name, group in super()._own(where) if name not in self._uneven]

    # Calls to the host.

    def _earlier_sent(self, state: StreamState, where: Where) -> StreamState:
        earlier = list(self._groups)
        earlier = earlier[: earlier.index(self._unit(where)[0])]
        if not earlier:
            return state
        return lax.cond(  # type: ignore[no-any-return]
            state.orders[1] == 0, lambda s: self._call(s, where, earlier), lambda s: s, state
        )

    def passed_over(self, eqn: JaxprEqn, where: Where) -> None:
        super().passed_over(eqn, where)
        if host_calls(eqn) and (where.conditional or where.unbounded):
            self._hands_over = self._calls_unevenly = True

    def _all_sent(self, state: StreamState, where: Where) -> StreamState:
        if where.conditional or where.unbounded:
            return self._handed_over(state, where, list(state.reels), True)
        return super()._all_sent(state, where)

    def _handed_over(
        self, state: StreamState, where: Where, names: Sequence[str], when: Any
    ) -> StreamState:
        """Hand over what is in reels without a call that all devices make."""
        return lax.cond(  # type: ignore[no-any-return]
            when, lambda s: self._call(s, where, names, between=True), lambda s: s, state
        )

    def _answered(
        self, asked: Asked, orders: Any, question: Sequence[Any], buffers: Sequence[Any]
    ) -> Any:
        if not self._spans:
            return super()._answered(asked, orders, question, buffers)
        axes = self._construct.mesh.axis_names
        mesh = arrays.concrete_mesh(self._construct.mesh)
        is_first = lax.axis_index(axes) == (0 if mesh is None else caller(mesh.devices.ravel()))
        given = [lax.all_gather(self._varied(x), axes) for x in (*question, *buffers)]
        receive = functools.partial(self._in_step.of_all, asked)
        answer = lax.cond(
            is_first,
            lambda: self._varied(host_call(receive, orders, *given)),
            lambda: self._varied(jnp.zeros_like(orders)),
        )
        return lax.psum(answer, axes)

    def _caller(self) -> list[Any]:
        return [lax.axis_index(self._construct.mesh.axis_names)]

    def _most(self, number: Any) -> Any:
        """The largest of the numbers that the devices have."""
        return lax.pmax(self._varied(number), self._construct.mesh.axis_names)

    def _varied(self, value: Any) -> Any:
        return arrays.vary(value, self._construct.axes) if self._construct.check_vma else value


def _varying(tree: Any) -> frozenset[str]:
    """The axes of the mesh over which arrays (or types) vary."""
    return frozenset().union(*map(arrays.varying_axes, jax.tree.leaves(tree)))
