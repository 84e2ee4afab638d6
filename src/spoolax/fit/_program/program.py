"""The solver for one model, compiled once, however often it is called."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ..._log.primitive import around_here
from ...errors import LogValueError
from .._model.curve import Curve
from .._model.pointwise import is_pointwise
from .._solver.solver import Problem, Solution, Solver, minimize
from .cache import compiled
from .listeners import Listeners

MAX_PROGRAMS = 256  # That are kept; the least recently used are dropped first.


class Inputs(NamedTuple):
    """What a program is called with: a pytree of arrays."""

    data: Any
    start: Any
    solver: Solver


class FitProgram:
    """A solver for one model, and what is known about the model.

    `body` is what to trace. Equal models share a program, but the latest one is traced: the closure
    of an older one may have been changed since.
    """

    body: Callable[[Inputs], Solution]
    curve: Curve  # The one in `body`, if data come in blocks.

    def __init__(self) -> None:
        self.solve = jax.jit(lambda inputs: self.body(inputs))
        self.parts: Any = None  # The jitted parts of an iteration, if data come in blocks.
        self._compiled: dict[Any, Any] = {}
        self._pointwise: dict[Any, bool] = {}

    def run(self, jitted: Any, *args: Any) -> Any:
        """Run a jitted function, which is compiled ahead of time and kept on disk."""
        if jax.config.jax_disable_jit:
            return jitted(*args)
        return self.compiled(jitted, *args)(*args)

    def compiled(self, jitted: Any, *args: Any) -> Any:
        """Return a jitted function compiled for the types of its arguments."""
        if around_here():  # In a block that listens it is another program, which calls the host.
            return jitted
        leaves, structure = jax.tree.flatten(args)
        types = tuple((one.shape, one.dtype, getattr(one, "sharding", None)) for one in leaves)
        key = jitted, structure, types, jax.config.jax_default_device
        if key not in self._compiled:
            self._compiled[key] = compiled(jitted, args)
        return self._compiled[key]

    def is_pointwise(self, curve: Curve, x: Any, start: Any, declared: bool | None) -> bool:
        """Return whether the model looks at each point by itself, as proved or as declared.

        The first call also finds out whether the model can be called with these data at all.
        """
        leaves = jax.tree.leaves(x)
        key = jax.tree.structure(x), tuple(a.shape[:-1] for a in leaves), start.shape
        if key not in self._pointwise:
            proved = is_pointwise(curve.model, x, start)
            self._pointwise[key] = proved and curve.jacobian is None
        return self._pointwise[key] if declared is None else declared

    def check_pointwise(self, curve: Curve, x: Any, start: Any, declared: bool | None) -> None:
        """Refuse data in parts, unless the model looks at each point by itself."""
        if not self.is_pointwise(curve, x, start, declared):
            raise LogValueError(
                "The data come in parts, but it is not certain that the model (or `jac`) looks at "
                "each point by itself. If it does, pass `pointwise=True`; if not, pass the data as "
                "arrays in memory, on one device."
            )


_programs: collections.OrderedDict[Any, FitProgram] = collections.OrderedDict()


def program_of(key: Any, body: Callable[[Inputs], Solution]) -> FitProgram:
    """Return the program of a model, which is made once."""
    if key not in _programs:
        _programs[key] = FitProgram()
        if len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    _programs[key].body = body
    return _programs[key]


def minimizer(
    problem: Callable[[Any], Problem], final: Callable[[Any], Problem] | None
) -> Callable[[Inputs], Solution]:
    """Return the body of a program, given how to make problems from data."""

    def solve(inputs: Inputs) -> Solution:
        last = None if final is None else final(inputs.data)
        return minimize(problem(inputs.data), inputs.start, inputs.solver, last)

    return solve


def run_with_listeners(program: FitProgram, inputs: Inputs, listeners: Listeners) -> Solution:
    """Run the solver, and let listeners see its iterations."""
    run = listeners.around(program.solve)
    found = program.run(run, inputs) if run is program.solve else run(inputs)
    return Solution(*map(np.asarray, found))
