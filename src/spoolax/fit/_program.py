"""The solver for one model, compiled once, however often it is called."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import LogValueError
from ._bounds import Bounds
from ._cache import compiled
from ._descent import Descent, Problem, Solution, Tolerances, descend
from ._listen import Listeners
from ._pointwise import is_pointwise
from ._problem import Curve

KEPT = 256  # Programs.


class Arguments(NamedTuple):
    """What a program is called with."""

    data: Any
    start: Any
    low: Any  # None: there are no bounds.
    high: Any
    scale: Any  # None: the Jacobian sets it.
    numbers: Any  # ftol, xtol and gtol.
    most: Any  # Evaluations.

    def how(self) -> Descent:
        """The way down."""
        bounds = None if self.low is None else Bounds(self.low, self.high)
        ftol, xtol, gtol = self.numbers
        until = Tolerances(ftol, xtol, gtol, self.most)
        return Descent(bounds, None if self.scale is None else 1 / self.scale, until)


class Program:
    """A solver, and what is known about it.

    `body` is what to trace. All that are equal share a program, but it is always the latest that is
    traced: what an older one encloses may have been changed since.
    """

    body: Callable[[Arguments], Solution]
    curve: Curve  # That of `body`, if data come in blocks.

    def __init__(self) -> None:
        self.solve = jax.jit(lambda given: self.body(given))
        self.facts: dict[Any, Any] = {}  # What need not be found out again.

    def __call__(self, given: Arguments) -> Solution:
        """Run the solver, compiled for this kind of arguments."""
        return self.run(self.solve, given)  # type: ignore[no-any-return]

    def run(self, jitted: Any, *args: Any) -> Any:
        """Run a function, compiled ahead of time and kept on disk."""
        if jax.config.jax_disable_jit:
            return jitted(*args)
        return self.ready(jitted, *args)(*args)

    def ready(self, jitted: Any, *args: Any) -> Any:
        """A function, compiled for this kind of arguments."""
        leaves, structure = jax.tree.flatten(args)
        about = tuple((one.shape, one.dtype, getattr(one, "sharding", None)) for one in leaves)
        kind = jitted, structure, about, jax.config.jax_default_device
        if kind not in self.facts:
            self.facts[kind] = compiled(jitted, args)
        return self.facts[kind]


_programs: collections.OrderedDict[Any, Program] = collections.OrderedDict()


def program_of(key: Any, body: Callable[[Arguments], Solution]) -> Program:
    """The program of a model, made once."""
    if key not in _programs:
        _programs[key] = Program()
        if len(_programs) > KEPT:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    _programs[key].body = body
    return _programs[key]


def solver_of(
    problem: Callable[[Any], Problem], final: Callable[[Any], Problem] | None
) -> Callable[[Arguments], Solution]:
    """What solves one problem, which is made of data."""

    def solve(given: Arguments) -> Solution:
        last = None if final is None else final(given.data)
        return descend(problem(given.data), given.start, given.how(), last)

    return solve


def solved(program: Program, given: Arguments, listeners: Listeners) -> Solution:
    """Run the solver, and let those who listen see its iterations."""
    run = listeners.around(program.solve)
    out = program(given) if run is program.solve else run(given)
    return Solution(*map(np.asarray, out))


def keeps_apart(program: Program, curve: Curve, x: Any, start: Any, pointwise: bool | None) -> bool:
    """Whether the model looks at each point by itself; and at first, whether it fits the data."""
    leaves = jax.tree.leaves(x)
    kind = jax.tree.structure(x), tuple(a.shape[:-1] for a in leaves), start.shape
    if kind not in program.facts:
        program.facts[kind] = is_pointwise(curve.model, x, start) and curve.slope is None
    return bool(program.facts[kind]) if pointwise is None else pointwise


def see_that_it_keeps_apart(
    program: Program, curve: Curve, x: Any, start: Any, pointwise: bool | None
) -> None:
    """Refuse data in blocks, if the model might look at several points at once."""
    if not keeps_apart(program, curve, x, start, pointwise):
        raise LogValueError(
            "The data come in parts, but it is not certain that the model (or `jac`) looks at each "
            "point by itself. If it does, say `pointwise=True`; if not, give the data as arrays "
            "in memory, on one device."
        )
