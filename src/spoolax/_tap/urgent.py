"""Entries that do not wait in reels: large ones, and those that hardly ever happen."""

from __future__ import annotations

import jax

from .._jax.arrays import raw_type
from .._jax.primitives import JaxprEqn, shard_map_p
from .._log.entry import Nodes, entries
from .._log.primitive import log_p, logged
from .._walk.counts import Count, is_host_call, is_loop, logs

LARGE = 1 << 16  # Bytes. An entry of this size is worth a call of its own.


def is_urgent(nodes: Nodes) -> bool:
    """Say whether entries should be sent at once."""
    if is_rare(nodes):
        return True
    types = [raw_type(x) for x in jax.tree.leaves(nodes)]
    return bool(sum(x.size * x.dtype.itemsize for x in types) >= LARGE)


def is_rare(nodes: Nodes) -> bool:
    return any(entry.meta.rare for entry in entries(nodes))


def _sends_itself(eqn: JaxprEqn) -> bool:
    if eqn.primitive is log_p:
        return is_urgent(logged(eqn))
    if (is_loop(eqn) or eqn.primitive is shard_map_p) and logs(eqn):
        return True
    return is_host_call(eqn)


# Whether an equation sends something itself, or fails, so that what is before it must go first.
sends = Count(_sends_itself)
