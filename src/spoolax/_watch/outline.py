"""List the loops and primitives of a program, with the addresses that `watch` knows them by.

An address is a path: "scan[0]/while[1]/cholesky[0]" is the first Cholesky decomposition in the
second loop of the first loop of the program.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any, NamedTuple

from .._jax import tracing
from .._jax.anatomy import Call, Cond, Loop, Scan, anatomy
from .._jax.arrays import type_text
from .._jax.primitives import Jaxpr, JaxprEqn, open_jaxpr
from .._log.primitive import log_p
from .._walk.counts import is_loop
from .._walk.places import Where, programs_at


class Source(NamedTuple):
    """Where in the user's code something comes from, and whether it is of a backward pass."""

    line: str = ""
    backward: bool = False

    def of(self, eqn: JaxprEqn) -> Source:
        """The source of an equation in here. What is in a library has the line of its call."""
        backward = self.backward or "b" in tracing.passes(eqn)
        return Source(tracing.source_line(eqn) or self.line, backward)


@dataclasses.dataclass(frozen=True)
class Item:
    """A loop or a primitive, and where it is."""

    address: str
    where: Where  # Of a loop: its inside.
    eqn: JaxprEqn
    source: Source

    @property
    def is_loop(self) -> bool:
        return is_loop(self.eqn)


def outline(
    jaxpr: Jaxpr,
    where: Where,
    counts: Counter[str] | None = None,
    around: Source = Source(),  # noqa: B008 (it is a constant)
) -> list[Item]:
    """List what is in a jaxpr, in program order; calls of functions are looked through."""
    counts = Counter() if counts is None else counts
    items: list[Item] = []
    for number, eqn in enumerate(open_jaxpr(jaxpr)[0].eqns):
        here, source, construct = where.at(number), around.of(eqn), anatomy(eqn)
        if isinstance(construct, Loop):
            body, inside = programs_at(eqn, here)[-1]  # What is in the test of a loop is left out.
            items.append(Item(str(inside), inside, eqn, source))
            items += outline(body, inside, None, source)
        elif isinstance(construct, (Call, Cond)):
            for program, place in programs_at(eqn, here):
                items += outline(program, place, counts, source)
        elif eqn.primitive is not log_p:
            name = str(eqn.primitive)
            address = f"{name}[{counts[name]}]"
            counts[name] += 1
            full = "/".join([*map(str, where.path), address])
            items.append(Item(full, here, eqn, source))
        where = where.after([eqn])
    return items


def address_matches(address: str, pattern: str) -> bool:
    """Say whether a pattern means something, or a loop that it is in.

    `*` stands for anything in one part of an address, `**` for any number of parts.
    """
    parts = address.split("/")
    regex = re.compile(_translated(pattern))
    return any(regex.fullmatch("/".join(parts[:n])) for n in range(1, len(parts) + 1))


def reaches(pattern: str, address: str) -> bool:
    """Say whether a pattern may mean something inside the loop at an address."""
    wanted, parts = pattern.split("/"), address.split("/")
    if "**" in wanted[: len(parts)]:
        return True
    return len(wanted) > len(parts) and all(map(address_matches, parts, wanted))


def _translated(pattern: str) -> str:
    special = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", pattern)
    return "".join(special.get(piece, re.escape(piece)) for piece in pieces)


def as_tree(items: list[Item], name: str) -> str:
    """Draw what is in a program as a tree."""
    children: dict[str, list[Item]] = {}
    for item in items:
        parent, _, _ = item.address.rpartition("/")
        children.setdefault(parent, []).append(item)
    rows: list[tuple[str, str, str]] = [(name, "", "")]

    def add(address: str, indent: str) -> None:
        below = children.get(address, [])
        for number, item in enumerate(below):
            last = number == len(below) - 1
            label = item.address.rpartition("/")[2]
            branch = indent + ("└─ " if last else "├─ ")
            rows.append((branch + label, _describe(item), item.source.line))
            if item.is_loop:
                add(item.address, indent + ("   " if last else "│  "))

    add("", "")
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(
        f"{label:<{widths[0]}}  {what:<{widths[1]}}  {line}".rstrip() for label, what, line in rows
    )


def _describe(item: Item) -> str:
    loop = anatomy(item.eqn)
    if not isinstance(loop, Loop):
        return ", ".join(type_text(var.aval) for var in item.eqn.outvars)
    avals = [var.aval for var in open_jaxpr(loop.body)[0].outvars]
    if not isinstance(loop, Scan):
        return f"while loop, carry {_types(avals)}"
    text = f"{loop.length} iterations, carry {_types(avals[: loop.carry])}"
    outputs = avals[loop.carry :]
    return text + (f", outputs {_types(outputs)}" if outputs else "")


def _types(avals: Any) -> str:
    shown = [type_text(aval) for aval in avals[:4]]
    return "(" + ", ".join(shown + (["..."] if len(avals) > 4 else [])) + ")"
