"""Places in a program: the loops around an equation, and which equation it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from .._jax import tracing
from .._jax.anatomy import Cond, Scan, While, anatomy
from .._jax.arrays import varying_axes
from .._jax.primitives import Jaxpr, JaxprEqn, open_jaxpr
from .counts import loops


@dataclasses.dataclass(frozen=True)
class Frame:
    """A loop that we are in: the `index`-th of those directly inside the loop around it."""

    kind: str
    index: int
    length: int | None  # None: not known before the program runs.

    def __str__(self) -> str:
        return f"{self.kind}[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in the program: the loops around it, and how many loops precede it there."""

    path: tuple[Frame, ...] = ()
    ordinal: int = 0
    conditional: bool = False
    passes: str = ""  # The passes of derivatives that we are in, as `tracing.passes` has them.
    # Inside `shard_map`: the axes of the mesh along which only some devices may be here.
    varies: frozenset[str] = frozenset()
    # The equations that we are in, by number. It tells apart places between the same two loops.
    spot: tuple[int, ...] = dataclasses.field(default=(), compare=False)

    def enter(self, kind: str, length: int | None) -> Where:
        frame = Frame(kind, self.ordinal, length)
        return dataclasses.replace(self, path=(*self.path, frame), ordinal=0)

    def at(self, number: int) -> Where:
        return dataclasses.replace(self, spot=(*self.spot, number))

    def inside(self, eqn: JaxprEqn) -> Where:
        """The place of what an equation does, which may be part of the pass of a derivative."""
        more = tracing.passes(eqn)
        return dataclasses.replace(self, passes=self.passes + more) if more else self

    def after(self, eqns: Iterable[JaxprEqn]) -> Where:
        more = sum(map(loops, eqns))
        return dataclasses.replace(self, ordinal=self.ordinal + more) if more else self

    def decided_by(self, value: Any) -> Where:
        """The place of what runs if a value of the program says so."""
        return dataclasses.replace(self, varies=self.varies | varying_axes(value.aval))

    @property
    def in_test(self) -> bool:
        """Whether we are at the end of the test of a while loop, which runs once more than it."""
        return bool(self.path) and self.path[-1].kind == "while" and self.spot[-1] == 0

    @property
    def unbounded(self) -> bool:
        return any(frame.length is None for frame in self.path)

    def __str__(self) -> str:
        return "/".join(map(str, self.path))


def programs_at(eqn: JaxprEqn, where: Where) -> list[tuple[Jaxpr, Where]]:
    """List the programs that run with an equation, and the place of each."""
    found = anatomy(eqn)
    if found is None:
        return []
    numbered = isinstance(found, (While, Cond))  # Several programs, which are one equation.
    if isinstance(found, Scan):
        where = where.enter("scan", found.length)
    elif isinstance(found, While):
        where = where.enter("while", None).decided_by(open_jaxpr(found.programs[0])[0].outvars[0])
    elif isinstance(found, Cond):
        where = dataclasses.replace(where, conditional=True).decided_by(eqn.invars[0])
    placed = []
    for number, program in enumerate(found.programs):
        placed.append((program, where.at(number) if numbered else where))
        where = where.after(open_jaxpr(program)[0].eqns)
    return placed
