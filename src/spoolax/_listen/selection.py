"""Which entries a listener gets, and which it leaves to others."""

from __future__ import annotations

import dataclasses

from .._log.entry import Entry, Nodes, map_entries, restrict
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

    not_ours = restrict(nodes, lambda k, e: is_heard(e) and not options.selects(k, e))
    shared = restrict(nodes, lambda k, e: bool(e.meta.listeners) and options.selects(k, e))
    return not_ours + map_entries(close, shared)
