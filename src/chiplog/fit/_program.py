"""The solver for one model, compiled once, however often it is called."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax

from ._bounds import Bounds
from ._loss import Loss
from ._model import checked_model, is_pointwise
from ._problem import blockwise
from ._solve import Solution, Tolerances, descend

KEPT = 256  # Programs.


class Program:
    """The solver for a model, and what is known about it."""

    def __init__(
        self,
        model: Callable[[Any, Any], Any],
        slope: Callable[[Any, Any], Any] | None,
        loss: Loss,
        bounded: bool,
    ) -> None:
        self._model = model
        self._pointwise: dict[Any, bool] = {}  # By the kind of data.

        def solve(
            x: Any,
            y: Any,
            weights: Any,
            whiten: Any,
            start: Any,
            low: Any,
            high: Any,
            scale: Any,
            f_scale: Any,
            until: Tolerances,
        ) -> Solution:
            model_of, slope_of = model, slope
            if whiten is not None:

                def white(a: Any) -> Any:
                    return jax.scipy.linalg.solve_triangular(whiten, a, lower=True)

                y = white(y)

                def model_of(x: Any, p: Any) -> Any:
                    return white(model(x, p))

                if slope is not None:

                    def slope_of(x: Any, p: Any) -> Any:
                        return white(slope(x, p))

            problem = blockwise(model_of, x, y, weights, loss, f_scale, slope_of)
            bounds = Bounds(low, high) if bounded else None
            return descend(problem, start, bounds, None if scale is None else 1 / scale, until)

        self.solve = jax.jit(solve)

    def is_pointwise(self, x: Any, start: Any, shape: tuple[int, ...]) -> bool:
        """Whether data can be padded; the first time, see that the model fits the data."""
        kind = jax.tree.structure(x), tuple(a.shape[:-1] for a in jax.tree.leaves(x)), start.shape
        if not self._pointwise.get(kind):
            checked_model(self._model, x, start, shape)
        if kind not in self._pointwise:
            self._pointwise[kind] = is_pointwise(self._model, x, start)
        return self._pointwise[kind]


_programs: collections.OrderedDict[Any, Program] = collections.OrderedDict()


def program_of(how: Any, *about: Any) -> Program:
    """The program of a model, made once."""
    if how not in _programs:
        _programs[how] = Program(*about)
        if len(_programs) > KEPT:
            _programs.popitem(last=False)
    _programs.move_to_end(how)
    return _programs[how]
