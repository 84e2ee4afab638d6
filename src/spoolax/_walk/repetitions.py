"""Entries that are logged again when the backward pass runs a part of the forward pass again.

Derivative rules may run anything again: the backward rule of equinox's checkpointed loop runs the
body of the loop. A `log` call in a backward pass is such a repetition if the same call, with the
same key, tags and types, is made outside of backward passes too, or, where there are derivatives of
derivatives, in the forward pass that belongs to it. All others are what only the backward pass
does; they are marked. (What JAX itself runs again, `transformations.py` makes silent.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from .._log.entry import Entry, Nodes, calls, entries, map_entries, restrict
from .places import Where

# Something that a program logs, by type, and where.
Found: TypeAlias = tuple[Nodes, Where]


def marked(nodes: Nodes, where: Where) -> Nodes:
    """Mark what is logged in a backward pass."""

    def mark(entry: Entry) -> Entry:
        # It may have been marked before, in a part of this program.
        both = (entry.meta.passes, where.passes)
        passes = max(both, key=lambda one: (one.count("b"), len(one)))
        backward = entry.meta.backward or "b" in passes
        return entry.replace(meta=dataclasses.replace(entry.meta, passes=passes, backward=backward))

    return map_entries(mark, nodes) if where.passes else nodes


def once(found: Sequence[Found]) -> tuple[list[Found], frozenset[Any]]:
    """Return what was found without repetitions, and what the walker knows those by."""
    made: dict[Any, set[str]] = {}
    for nodes, _ in found:
        for entry in entries(nodes):
            for call in calls(entry).values():
                made.setdefault(call, set()).add(entry.meta.passes)
    repeated = frozenset(
        (call, one)
        for call, places in made.items()
        for one in places
        if any(_repeats(one, other) for other in places)
    )
    return [(without(nodes, repeated), where) for nodes, where in found], repeated


def _repeats(passes: str, others: str) -> bool:
    """Say whether a `log` call in some passes repeats the same call in others.

    It does if it is in a backward pass and the other is in none, or in the forward pass that
    belongs to it.
    """
    if "b" not in others:
        return "b" in passes
    pairs = zip(passes, others, strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), None) == ("b", "f")


def all_calls(found: Sequence[Found]) -> frozenset[Any]:
    """List the `log` calls that a program makes."""
    return frozenset(
        call for nodes, _ in found for entry in entries(nodes) for call in calls(entry).values()
    )


def without(nodes: Nodes, repeated: frozenset[Any]) -> Nodes:
    """Leave out what is a repetition."""

    def is_new(key: str, entry: Entry) -> bool:
        return (calls(entry).get(key), entry.meta.passes) not in repeated

    return restrict(nodes, is_new) if repeated else nodes
