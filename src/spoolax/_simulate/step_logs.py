"""What a step logs: numbered with the step, and handed to the loggers that take entries.

The program is tapped as any other. That its entries belong to a step is known only inside of it,
where they get the number of the step as a named step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax

from .._jax.primitives import Jaxpr
from .._listen.options import Options
from .._listen.programs import trace_listening
from .._log.entry import Entry, Nodes, entries, map_entries, with_steps
from .._log.primitive import emit, listening
from .._logdict.logdict import LogDict
from .._walk.interpret import interpret
from .._walk.meaning import Meaning, State
from .._walk.places import Where
from .._walk.repetitions import once
from .._walk.survey import survey
from ..errors import NothingSelectedWarning, StopRun
from ..loggers._protocol.wrappers import AlreadyOpen

STEP = "step"


def logged_by(closed: Jaxpr) -> list[Entry]:
    """What a program logs that nobody has taken yet."""
    mine = Options()
    there = [entry for nodes, _ in survey(closed) for entry in entries(nodes)]
    return [entry for entry in there if any(mine.selects(key, entry) for key in entry.data)]


def numbered(step: Callable[..., Any], at: Any) -> Callable[..., Any]:
    """Give what a function logs a step, unless it has one of that name. Does nothing otherwise."""

    def call(*args: Any) -> Any:
        if listening.value is None:
            return step(*args)
        closed, out = trace_listening(step, *args)
        _, repeated = once(survey(closed))
        meaning = _Numbering(repeated)
        outs, _, _ = interpret(closed, jax.tree.leaves(args), at, meaning, Where())
        return jax.tree.unflatten(jax.tree.structure(out), outs)

    return call


class _Numbering(Meaning):
    """Leaves entries where they are, with a step: the state."""

    def __init__(self, repeated: frozenset[Any]) -> None:
        self.repeated = repeated

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where

        def number(entry: Entry) -> Entry:
            return entry if entry.meta.taken else with_steps(entry, {STEP: state})

        emit(map_entries(number, nodes))
        return (), state


class StepLogs(AlreadyOpen):
    """Hands a logger what steps log, besides their states, which are what counts as steps.

    A request to stop is kept for the driver: if the program were cut off, its state would be lost.
    """

    stop: StopRun | None = None

    def log(self, state: LogDict, step: int) -> None:
        """Pass an entry on."""
        state._beside_states = True
        try:
            super().log(state, step)
        except StopRun as stop:
            self.stop = self.stop or stop


def warn_of_no_taker(logged: list[Entry]) -> None:
    """Warn that no logger takes what a step logs."""
    keys = sorted({key for entry in logged for key in entry.data})
    warnings.warn(
        f"`step` logs {keys} (at {logged[0].meta.site}), but no logger takes that: those that were "
        "given have a `view`, which is of the state, or take states only. Add one without a `view`,"
        " such as `JsonlLogger(path)`, or give them to a `tap` of the step yourself.",
        NothingSelectedWarning,
        stacklevel=3,
    )
