"""Which entries a listener gets, and which it leaves to others."""

from __future__ import annotations

import dataclasses

from .._log.entry import Entry, Nodes, divided, map_entries, restrict
from .._log.primitive import listening
from .options import Options


def is_heard(entry: Entry) -> bool:
    """Say whether others want an entry: one that has claimed it, or one further out."""
    return bool(entry.meta.listeners) or bool(listening.value)


def left_over(nodes: Nodes, options: Options) -> Nodes:
    """What a listener leaves in the program for others."""
    if options.keep_logs:
        return restrict(nodes, lambda key, entry: is_heard(entry))

    def close(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, taken=True))

    left: Nodes = ()
    for some, is_ours in divided(nodes, options.selects):
        if is_ours:
            shared = restrict(some, lambda key, entry: bool(entry.meta.listeners))
            left += map_entries(close, shared)
        else:
            left += restrict(some, lambda key, entry: is_heard(entry))
    return left
