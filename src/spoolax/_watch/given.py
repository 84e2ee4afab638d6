"""Say where a value comes from that a loop was given, without running anything.

What made it is outside of the loop: an equation, perhaps in a function that is called there, or an
argument of the user's function, or a constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._jax.anatomy import Anatomy, Call, Cond, Loop, Scan, While, anatomy
from .._jax.primitives import Jaxpr, JaxprEqn, Literal, open_jaxpr
from .._walk.places import Where, programs_at
from .outline import Source

# They pass on numbers as they are.
_MOVERS = (
    "broadcast_in_dim",
    "copy",
    "copy_p",
    "optimization_barrier",
    "reshape",
    "rev",
    "slice",
    "squeeze",
    "transpose",
)


@dataclasses.dataclass(frozen=True, eq=False)
class WholeProgram:
    """A whole program, what its arguments are called, and which of its loops are watched."""

    jaxpr: Jaxpr
    argument_names: Callable[[], Sequence[str]]
    watches: Callable[[str], bool]


class Maker(NamedTuple):
    """What a value came from, in words, and what to call it; perhaps it is a primitive."""

    words: str
    name: str
    is_primitive: bool = False
    source: Source = Source()
    path: tuple[str, ...] = ()


WRITTEN = Maker("it is a constant of the program", "constant")
CLOSED_OVER = Maker("it is in an array that the function closes over", "constant")


class _Place(NamedTuple):
    """A jaxpr, where it is, and the line that it was called from."""

    jaxpr: Jaxpr
    where: Where
    around: Source


class _Level(NamedTuple):
    """A program that we are inside of: which one of which equation, and the place of that."""

    place: _Place
    eqn: JaxprEqn
    number: int


def maker_of(program: WholeProgram, where: Where, number: int) -> Maker:
    """Tell where an argument of the program at a place, by number, comes from."""
    trail = _Trail(program)
    spot = list(where.spot)
    while spot:
        at = spot.pop(0)
        eqn = open_jaxpr(trail.place.jaxpr)[0].eqns[at]
        several = isinstance(anatomy(eqn), (While, Cond))
        trail.enter(at, spot.pop(0) if several else 0)
    return trail.follow(open_jaxpr(trail.place.jaxpr)[0].invars[number])


class _Trail:
    """Follows a value back: out of the programs that it was given to, into those that made it."""

    def __init__(self, program: WholeProgram) -> None:
        self._program = program
        self.place = _Place(program.jaxpr, Where(), Source())
        self._levels: list[_Level] = []
        self._left_a_loop = False

    def enter(self, at: int, number: int) -> None:
        """Go into a program of an equation."""
        eqn, here = self._equation(at)
        jaxpr, inside = programs_at(eqn, here)[number]
        self._levels.append(_Level(self.place, eqn, number))
        self.place = _Place(jaxpr, inside, self.place.around.of(eqn))

    def follow(self, atom: Any) -> Maker:
        """Tell what made a value of the program that we are in."""
        while not isinstance(atom, Maker):
            jaxpr, _ = open_jaxpr(self.place.jaxpr)
            number = _index(atom, jaxpr.invars)
            if isinstance(atom, Literal):
                atom = WRITTEN
            elif _index(atom, jaxpr.constvars) is not None:
                atom = CLOSED_OVER
            elif number is None:
                atom = self._before(atom)
            elif self._levels:
                atom = self._leave(number)
            else:
                name = self._program.argument_names()[number]
                atom = Maker(f"it is among the arguments, in `{name}`", name)
        return atom

    def _leave(self, number: int) -> Any:
        """Go out of a program, to what it was given as an argument."""
        eqn, inside = self._levels[-1].eqn, self.place.where
        construct = anatomy(eqn)
        position = argument_position(construct, self._levels[-1].number, number)
        if isinstance(construct, Loop):
            # The loop that something went wrong in is watched, so what it carries was bad before.
            hidden = self._left_a_loop and not self._program.watches(str(inside))
            if hidden and position in _carry(construct, eqn):
                return Maker(f"{inside} carried it, which `where` leaves out", "carry")
            self._left_a_loop = True
        self.place = self._levels.pop().place
        return eqn.invars[position]

    def _before(self, atom: Any) -> Any:
        """Tell what made a value, or go on to what that only passed on."""
        eqns = open_jaxpr(self.place.jaxpr)[0].eqns
        places = ((at, _index(atom, eqn.outvars)) for at, eqn in enumerate(eqns))
        at, which = next((at, which) for at, which in places if which is not None)
        eqn, here = self._equation(at)
        construct = anatomy(eqn)
        if isinstance(construct, Call):
            self.enter(at, 0)
            return open_jaxpr(self.place.jaxpr)[0].outvars[which]
        if _only_moves(eqn):
            return eqn.invars[which]
        if isinstance(construct, Loop):
            carry = _carry(construct, eqn)
            if which < len(carry) and self._program.watches(str(programs_at(eqn, here)[-1][1])):
                return eqn.invars[carry[which]]
        source = self.place.around.of(eqn)
        words = f"it came out of `{eqn.primitive}` at {source.line}"
        path = tuple(map(str, self.place.where.path))
        return Maker(words, str(eqn.primitive), True, source, path)

    def _equation(self, at: int) -> tuple[JaxprEqn, Where]:
        eqns = open_jaxpr(self.place.jaxpr)[0].eqns
        return eqns[at], self.place.where.after(eqns[:at]).at(at)


def _only_moves(eqn: JaxprEqn) -> bool:
    if str(eqn.primitive) == "convert_element_type":  # To fewer bits, it may make infinities.
        before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
        return bool(jnp.promote_types(before, after) == after)
    return str(eqn.primitive) in _MOVERS


def _index(atom: Any, atoms: Sequence[Any]) -> int | None:
    return next((i for i, one in enumerate(atoms) if one is atom), None)


def argument_position(construct: Anatomy | None, program: int, number: int) -> int:
    """The input of an equation that is an argument of one of its programs."""
    if isinstance(construct, Cond):
        return number + 1
    if isinstance(construct, While):
        if program == 1:
            return number + construct.test_consts
        return number + (construct.body_consts if number >= construct.test_consts else 0)
    return number


def _carry(loop: Loop, eqn: JaxprEqn) -> range:
    """The inputs of a loop that it carries on."""
    if isinstance(loop, Scan):
        return range(loop.consts, loop.consts + loop.carry)
    assert isinstance(loop, While)
    return range(loop.test_consts + loop.body_consts, len(eqn.invars))
