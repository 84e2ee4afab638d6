"""Which entries are for which tap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..._log.entry import Entry, Nodes, map_entries, restrict

if TYPE_CHECKING:
    from ..stream import Tap


def wanted_by(nodes: Nodes, tap: Tap, outermost: bool) -> Nodes:
    """What a tap gets."""

    def mine(key: str, entry: Entry) -> bool:
        return tap.options.selects(key, entry) if outermost else tap in entry.meta.listeners

    return restrict(nodes, mine)


def claimed(nodes: Nodes, tap: Tap) -> Nodes:
    def claim(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, listeners=(tap,), taken=True))

    return map_entries(claim, nodes)
