"""The meaning of `log` for `tap`: entries go into reels, and loops pause to send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..._jax import arrays
from ..._jax.primitives import Jaxpr, JaxprEqn
from ..._listen.windows import Windows
from ..._log.entry import Nodes
from ..._walk.counts import conditional_calls, host_calls
from ..._walk.interpret import interpret
from ..._walk.meaning import MOST_UNROLLED, Meaning, PassOn
from ..._walk.places import Where
from ..pace import entered_once, places
from . import looping
from .alarming import Alarming
from .claims import wanted_by
from .reeling import StreamState, any_happened, loops_at
from .urgent import alarms_apart, is_urgent, sends

if TYPE_CHECKING:
    from ..stream import Tap


class Streaming(Alarming):
    """Sends entries from reels: whenever a loop pauses, or at the end."""

    def rehearse(self, jaxpr: Jaxpr, args: Sequence[Any]) -> None:
        """Find out which reels there will be, before any loop is built."""

        def run(*args: Any) -> None:
            start = self.start(self._receiver.pace.begin(0, 0.0))
            _, state, _ = interpret(jaxpr, args, start, self, Where())
            self.finish(state)

        self.rehearses = True
        self._mesh = next(filter(None, map(arrays.mesh_of, args)), None)
        jax.eval_shape(run, *args)
        self._rehearsed()
        self._receiver.places = self._receiver.pace.places = places(self._loops)
        if not self._in_blocks:
            self._receiver.absolute = entered_once(self._receiver.places)

    def start(self, begin: Any) -> StreamState:
        """The state to begin with."""
        windows = tuple(windows.start() for _, windows in self._listeners)
        zero = jnp.int32(0)
        counted = dict.fromkeys((n for n, group in self._groups.items() if group.counted), zero)
        # A loop that is unrolled, or runs in blocks, may overstep the capacity.
        spare = looping.MOST_IN_BLOCK if self._in_blocks else MOST_UNROLLED
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

    def log(self, nodes: Nodes, state: StreamState, where: Where) -> tuple[Nodes, StreamState]:
        if any(frame.length == 0 for frame in where.path):
            return (), state  # Never.

        alarms, nodes = alarms_apart(nodes)

        def take(tap: Tap, windows: Windows, its_state: Any) -> tuple[Nodes, Any]:
            return windows.take(its_state, wanted_by(nodes, tap, tap is self._outermost), where)

        made, state = self._windowed(state, take)
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
        wanted = any_happened(nodes)
        sure = len(where.path) == 1 and wanted is None and not where.in_test
        return self._written(state, where, nodes, wanted, sure)

    # The user's own calls to the host may fail. So what was logged before them is sent before them:
    # nothing should be lost then.

    def enters(self, eqn: JaxprEqn) -> bool:
        return super().enters(eqn) or bool(conditional_calls(eqn))

    def passed_over(self, eqn: JaxprEqn, where: Where) -> None:
        if host_calls(eqn):
            self._sending.update(loops_at(where))
            self._rigid.update(loops_at(where))

    def run(
        self, eqn: JaxprEqn, invals: Sequence[Any], state: StreamState, where: Where
    ) -> tuple[list[Any], StreamState]:
        if host_calls(eqn):
            state = self._all_sent(state, where)
            invals = arrays.after(state.orders[0], invals)  # It waits for nothing else.
        return super().run(eqn, invals, state, where)
