"""Which entries a listener gets, and which it leaves to others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from .._log.entry import Entry, Loop, Node, Nodes, map_entries
from .._log.primitive import listening
from .options import Options


def restrict(nodes: Sequence[Node], wanted: Callable[[str, Entry], bool]) -> Nodes:
    """Keep only some keys of entries, and only entries with keys left."""

    def keys(entry: Entry) -> Entry:
        return entry.replace(
            data={key: value for key, value in entry.data.items() if wanted(key, entry)}
        )

    return _pruned(map_entries(keys, nodes))


def _pruned(nodes: Sequence[Node]) -> Nodes:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            node = Loop(_pruned(node.body), node.label)
            if node.body:
                kept.append(node)
        elif node.data:
            kept.append(node)
    return tuple(kept)


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
