"""Loops that stream: in chunks that end when the host wants to hear, or in blocks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ..._jax.anatomy import Scan
from ..._jax.primitives import Jaxpr
from ..._walk.cost import seconds
from ..._walk.places import Where
from ..pace import UNKNOWN
from .reeling import Reeling, StreamState, loops_at, unit_of

MOST_IN_BLOCK = 1024  # Iterations of a loop of known length that run without a pause,
BLOCK_SECONDS = 0.02  # and how long they should take at most.


class Looping(Reeling):
    """Pauses in loops, to send what they have logged."""

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
            or any(starts(group.path, where) for group in self._groups.values())
        )

    def goes_on(self, state: StreamState) -> Any:
        return state.orders[0] >= 0

    def iteration(self, state: StreamState, where: Where) -> Any:
        return state.iterations[str(where)]

    def pauses(self, state: StreamState, where: Where, first: Any, program: Jaxpr) -> Any:
        loop = str(where)
        made, over = state.iterations[loop], jnp.bool_(False)
        if loop in self._noting:
            over = made - first >= (1 if loop in self._rigid else most_at_once(program))
        if loop not in state.totals:
            return over
        if loop not in self._receiver.absolute:
            made -= first
        limit = self._limit(state, self._receiver.places[loop], program)
        return over | (limit - made <= 0) | self._any_full(where, state)  # Even if they overflow.

    def _limit(self, state: StreamState, place: int, program: Jaxpr) -> Any:
        """How many iterations a loop may make, as its orders say, or as we guess."""
        limit = state.orders[place]
        return jnp.where(limit == UNKNOWN, most_at_once(program), limit) if self._guesses else limit

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
                loop in loops_at(one)[:-1] for one in self._noting.values()
            ):
                return None
        elif loop not in self._loops:
            return None
        most = [MOST_IN_BLOCK, most_at_once(scan.body), scan.length]
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
            due |= (state.orders[1] != 0) & ~unfinished

        def call(state: StreamState) -> StreamState:
            state = self._call(self._earlier_sent(state, where), where, first=first)
            return state._replace(paused={**state.paused, loop: state.iterations[loop]})

        return lax.cond(due, call, lambda s: s, state)  # type: ignore[no-any-return]

    def chunk_ended(self, state: StreamState, where: Where, first: Any, paused: Any) -> StreamState:
        if str(where) not in state.totals:
            return state
        needed = paused if len(where.path) > 1 else paused | (state.orders[1] != 0)

        def call(state: StreamState) -> StreamState:
            return self._call(self._earlier_sent(state, where), where, first=first)

        return lax.cond(needed, call, lambda s: s, state)  # type: ignore[no-any-return]

    def left(self, state: StreamState, where: Where) -> StreamState:
        inside = set(loops_at(where))
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
            if unit_of(self._groups[name].path) in ended:
                state = state._replace(rows=state.rows + self._count(state, name))
        made, state = self._windowed(state, lambda tap, windows, its: windows.left(its, where))
        return self._send(state, where, made)


def starts(path: tuple[str, ...], where: Where) -> bool:
    outer = tuple(map(str, where.path))
    return path[: len(outer)] == outer


def most_at_once(program: Jaxpr) -> int:
    """How many times a program may run without a pause, if nobody has to hear of it."""
    return max(1, int(BLOCK_SECONDS / seconds(program)))
