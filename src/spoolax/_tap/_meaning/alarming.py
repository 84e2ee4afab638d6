"""Alarms: entries that hardly ever happen, and of which only the first counts.

In loops, one that may have gone off is only noted, which costs next to nothing. The walker then
goes back to where the chunk began, and comes up to that iteration, to have it looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..._log.entry import Entry, Nodes, map_entries, masked
from ..._walk.interpret import interpret
from ..._walk.meaning import Body
from ..._walk.places import Where
from .claims import claimed, wanted_by
from .looping import Looping
from .reeling import StreamState, any_happened, loops_at
from .urgent import Alarms


class Alarming(Looping):
    """Notes alarms in loops, and sends them."""

    def noted(self, state: StreamState, where: Where) -> Any:
        return state.noted.get(str(where))

    def _alarm(self, state: StreamState, where: Where, nodes: Nodes) -> StreamState:
        """Alarms may have gone off."""
        each = self._alarms(where, nodes)
        if not where.path:
            return self._tell(state, where, each)
        if self.rehearses:
            self._noting[str(where)] = where
            self._sending.update(loops_at(where))
            return state
        loop = str(where)
        noted = state.noted[loop]
        for armed, mine in zip(state.armed, each, strict=True):
            noted |= armed & any_happened(mine) if mine else False
        return state._replace(noted={**state.noted, loop: noted})

    def _alarms(self, where: Where, nodes: Nodes) -> list[Nodes]:
        """The alarms for each tap."""
        return [
            claimed(wanted_by(nodes, tap, tap is self._outermost), tap)
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
        happened = [any_happened(nodes) if nodes else jnp.bool_(False) for nodes in each]
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


def _confirmed(entry: Entry) -> Entry:
    assert entry.meta.alarm is not None
    return entry.meta.alarm.confirmed(entry)
