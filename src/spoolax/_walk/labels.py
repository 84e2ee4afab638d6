"""Names for loops that have ended, to tell apart what they logged."""

from __future__ import annotations

import dataclasses

from .._log.entry import Label, Loop, Nodes
from .places import Where


def relabelled(nodes: Nodes, where: Where) -> Nodes:
    """Name loops that ended here differently from those that ended elsewhere in the same loop."""
    return tuple(
        dataclasses.replace(node, label=Label(f"{where.ordinal}:{node.label.name}"))
        if isinstance(node, Loop)
        else node
        for node in nodes
    )
