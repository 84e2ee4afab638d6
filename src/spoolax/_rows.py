"""What loggers take out of states inside of a compiled loop, many steps at a time.

A logger that only copies what its view takes out of a state can do without the state: the view runs
in the loop, where what it takes is stacked, and the logger gets it later, as `Rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

Wants = Callable[[int], bool]  # Says so of a step.
# Takes arrays out of a state, and says what is in them. A compiled function, so it is the same one
# for as long as its view is.
Take = Callable[[Any], tuple[Any, list[Any]]]


class Rows(NamedTuple):
    """What one view took out of the states after some steps."""

    kind: Any  # What is in the arrays.
    # Each has an axis of rows in front, with room for more of them than there are.
    arrays: list[Any]
    steps: list[int]
    time: float  # When the loop was started.

    @property
    def nbytes(self) -> int:
        """Their size."""
        return sum(int(x.nbytes) for x in self.arrays)

    def fetch(self) -> list[Any]:
        """Copy the arrays to the host. Waits for the device."""
        return [np.asarray(x)[: len(self.steps)] for x in self.arrays]

    def values(self) -> dict[str, Any]:
        """The same by name, on the host, with an axis of rows in front."""
        words, *large = self.fetch()
        return self.kind.rows(words, large)  # type: ignore[no-any-return]

    def each(self) -> list[tuple[int, Sequence[Any]]]:
        """The same row by row: the step of each, and its arrays on the host."""
        return list(zip(self.steps, zip(*self.fetch(), strict=True), strict=True))


class RowView(NamedTuple):
    """A view that can run in a loop, and what becomes of its rows."""

    take: Take
    is_due: Wants  # Depends on the step alone, so it is known ahead.
    receive: Callable[[Rows], None]
    kind: Any
    types: list[jax.ShapeDtypeStruct]  # Of the arrays of one row.

    @property
    def nbytes(self) -> int:
        """The size of a row."""
        return sum(x.size * x.dtype.itemsize for x in self.types)


class InLoop(NamedTuple):
    """How a logger takes what it logs: by views that run in the loop, or out of states."""

    views: list[RowView]
    wants_state: Wants  # At which steps it has to get the state all the same.


def row_view(
    take: Take | None, state: Any, is_due: Wants, receive: Callable[[Rows], None]
) -> RowView | None:
    """Make a view of states like this one, unless it cannot be compiled."""
    if take is None:
        return None
    try:
        kind, types = jax.eval_shape(take, state)
    except Exception:  # It is raised again, and reported, when the logger gets a state.
        return None
    return RowView(take, is_due, receive, kind, types)


def never(step: int) -> bool:
    """Want no step."""
    del step
    return False


def any_of(wants: Iterable[Wants]) -> Wants:
    """Want the steps that any of these want. It is asked for every step, so it has to be quick."""
    some = [one for one in wants if one is not never]
    if len(some) < 2:
        return some[0] if some else never
    return lambda step: any(one(step) for one in some)


def overrides(logger: Any, base: type[Any], names: Iterable[str] = ("log", "wants")) -> bool:
    """Say whether the class of a logger replaces methods of a base, so that nobody else knows what
    they do.
    """
    return any(getattr(type(logger), name) is not getattr(base, name) for name in names)
