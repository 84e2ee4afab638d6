"""Entries that do not wait in reels: large ones, and those that hardly ever happen."""

from __future__ import annotations

from typing import Any

import jax

from ..._jax.arrays import raw_type
from ..._jax.primitives import JaxprEqn, shard_map_p
from ..._log.entry import Nodes, entries, restrict
from ..._log.primitive import log_p, logged
from ..._walk.counts import Count, is_host_call, is_loop, logs
from ..._walk.meaning import Meaning, State
from ..._walk.places import Where

LARGE = 1 << 16  # Bytes. An entry of this size is worth a call of its own.


def is_urgent(nodes: Nodes) -> bool:
    """Say whether entries should be sent at once."""
    if is_rare(nodes):
        return True
    types = [raw_type(x) for x in jax.tree.leaves(nodes)]
    return bool(sum(x.size * x.dtype.itemsize for x in types) >= LARGE)


def is_rare(nodes: Nodes) -> bool:
    return any(entry.meta.rare for entry in entries(nodes))


def alarms_apart(nodes: Nodes) -> tuple[Nodes, Nodes]:
    """Entries that hardly ever happen, and the others."""
    alarms = restrict(nodes, lambda key, entry: entry.meta.rare)
    return alarms, restrict(nodes, lambda key, entry: not entry.meta.rare)


def _is_alarm(eqn: JaxprEqn) -> bool:
    return eqn.primitive is log_p and is_rare(logged(eqn))


alarms = Count(_is_alarm)
_alarms_outside_loops = Count(_is_alarm, closed=is_loop)


class Alarms(Meaning):
    """Passes on what hardly ever happens in the body of a loop, not of those inside of it."""

    def __init__(self, where: Where, repeated: frozenset[Any]) -> None:
        self._where, self.repeated = where, repeated

    def wants(self, eqn: JaxprEqn) -> bool:
        return bool(_alarms_outside_loops(eqn))

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        if where.path != self._where.path:
            return (), state
        return alarms_apart(nodes)[0], state

    def deferred(self) -> Meaning:
        return self


def _sends_itself(eqn: JaxprEqn) -> bool:
    if eqn.primitive is log_p:
        return is_urgent(logged(eqn))
    if (is_loop(eqn) or eqn.primitive is shard_map_p) and logs(eqn):
        return True
    return is_host_call(eqn)


# Whether an equation sends something itself, or fails, so that what is before it must go first.
sends = Count(_sends_itself)
