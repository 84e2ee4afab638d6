"""Names for loops that have ended, to tell apart what they logged."""

from __future__ import annotations

import re
from collections.abc import Callable

from .._log.entry import Label, Loop, Nodes
from .places import Where


def relabelled(nodes: Nodes, where: Where) -> Nodes:
    """Name loops that ended here differently from those that ended elsewhere in the same loop."""
    return _renamed(placed(nodes, where), lambda name: f"{where.ordinal}:{name}")


def counted_back(nodes: Nodes, loops: int) -> Nodes:
    """Name loops, of `loops` that have just ended, by their distance from here.

    What logs them afterwards may be traced by itself, and does not know how many came before.
    """

    def rename(name: str) -> str:
        kind, index = _LOOP.fullmatch(name.rpartition(":")[2]).groups()  # type: ignore[union-attr]
        return f"{kind}[{int(index) - loops}]"

    return _renamed(nodes, rename)


def placed(nodes: Nodes, where: Where) -> Nodes:
    """Name loops by their place, where they are named by their distance from here."""

    def rename(name: str) -> str:
        found = _LOOP.fullmatch(name)
        if found is None or int(found[2]) >= 0:
            return name
        return f"{found[1]}[{where.ordinal + int(found[2])}]"

    return _renamed(nodes, rename)


_LOOP = re.compile(r"(\w+)\[(-?\d+)\]")


def _renamed(nodes: Nodes, rename: Callable[[str], str]) -> Nodes:
    return tuple(
        Loop(node.body, Label(rename(node.label.name))) if isinstance(node, Loop) else node
        for node in nodes
    )
