"""List the loops and primitives of a program, with the addresses that `watch` knows them by.

An address is a path: "scan[0]/while[1]/cholesky[0]" is the first Cholesky decomposition in the
second loop of the first loop of the program.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import NamedTuple

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


@dataclasses.dataclass(frozen=True, repr=False)
class Item:
    """A loop or a primitive of a program, and where it is: an entry of an `Outline`."""

    address: str  # For `where`, such as "scan[0]/while[1]".
    where: Where  # Of a loop: its inside.
    eqn: JaxprEqn
    source: Source

    @property
    def is_loop(self) -> bool:
        """Whether it is a loop."""
        return is_loop(self.eqn)

    @property
    def primitive(self) -> str:
        """The name of the primitive: of a loop, "scan" or "while"."""
        return str(self.eqn.primitive)

    @property
    def line(self) -> str:
        """The line of the user's code that it comes from."""
        return self.source.line

    @property
    def length(self) -> int | None:
        """How many iterations a loop makes, if that is known."""
        return self.where.path[-1].length if self.is_loop else None

    @property
    def carry(self) -> list[str]:
        """The types of what a loop carries, in the order in which `watch` numbers them."""
        loop = anatomy(self.eqn)
        if isinstance(loop, Scan):
            return self._types[: loop.carry]
        return self._types if self.is_loop else []

    @property
    def outputs(self) -> list[str]:
        """The types of what comes out: of a scan, of what it stacks in every iteration."""
        return self._types[len(self.carry) :]

    @property
    def _types(self) -> list[str]:
        loop = anatomy(self.eqn)
        of = open_jaxpr(loop.body)[0] if isinstance(loop, Loop) else self.eqn
        return [type_text(var.aval) for var in of.outvars]

    def __repr__(self) -> str:
        return f"<{self.address}: {self.description()}>"

    def description(self) -> str:
        """What it is, in a few words."""
        if not self.is_loop:
            return ", ".join(self.outputs)
        many = "while loop" if self.length is None else f"{self.length} iterations"
        text = f"{many}, carry {_some(self.carry)}"
        text += f", outputs {_some(self.outputs)}" if self.outputs else ""
        return text + (", in the backward pass" if self.source.backward else "")


def _some(types: list[str]) -> str:
    more = [f"{len(types) - 3} more"] if len(types) > 4 else types[3:]
    return f"({', '.join(types[:3] + more)})"


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
