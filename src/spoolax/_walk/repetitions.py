"""Entries that are logged again when the backward pass runs a part of the forward pass again.

JAX runs checkpointed functions again, and derivative rules may do the same with anything: the
backward rule of equinox's checkpointed loop runs the body of the loop. A `log` call in a backward
pass is such a repetition if the same call, with the same keys, tags and types, is there outside of
it too. All others are what only the backward pass does; they are marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._log.entry import Entry, Loop, Nodes, calls, entries, map_entries
from .places import Where


class Found(NamedTuple):
    """Something that a program logs, by type, and where."""

    nodes: Nodes
    where: Where
    again: bool  # It is in the backward pass of a checkpointed function.


def marked(nodes: Nodes, where: Where) -> Nodes:
    """Mark what is logged in a backward pass."""

    def mark(entry: Entry) -> Entry:
        depth = max(entry.meta.backward, where.backward)
        return entry.replace(meta=dataclasses.replace(entry.meta, backward=depth))

    return map_entries(mark, nodes) if where.backward else nodes


def repetitions(found: Sequence[Found]) -> frozenset[Any]:
    """Find the entries that are repetitions.

    Of the entries with one token, the first is the forward pass, whatever it is inside of.
    """
    seen: set[int] = set()
    repeated: set[Any] = set()
    depths: dict[Any, set[int]] = {}
    for nodes, where, again in found:
        for entry in entries(nodes):
            token = entry.meta.token
            if token is not None and token in seen and again:
                repeated.add((token, where))
            elif token is not None:
                seen.add(token)
            for call in calls(entry).values():
                depths.setdefault(call, set()).add(entry.meta.backward)
    for call, there in depths.items():
        repeated.update((call, depth) for depth in there - {min(there)})
    return frozenset(repeated)


def all_calls(found: Sequence[Found]) -> frozenset[Any]:
    """List the `log` calls that a program makes."""
    return frozenset(
        call for one in found for entry in entries(one.nodes) for call in calls(entry).values()
    )


def without(nodes: Nodes, where: Where, repeated: frozenset[Any]) -> Nodes:
    """Leave out what is a repetition."""
    return tuple(_kept(nodes, where, repeated)) if repeated else nodes


def _kept(nodes: Nodes, where: Where, repeated: frozenset[Any]) -> Iterator[Entry | Loop]:
    for node in nodes:
        if isinstance(node, Loop):
            body = tuple(_kept(node.body, where, repeated))
            if body:
                yield Loop(body, node.label)
            continue
        depth = node.meta.backward
        again = [key for key, call in calls(node).items() if (call, depth) in repeated]
        if (node.meta.token, where) in repeated or len(again) == len(node.data):
            continue
        data = {key: value for key, value in node.data.items() if key not in again}
        yield node.replace(data=data) if again else node
