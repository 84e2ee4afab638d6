"""Put `log` calls into programs that have none.

A program is traced as usual, and then evaluated with an `Instrument`, which logs after the
primitives and iterations that it chooses. Everything from there on is `tap`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from .._jax.anatomy import Call, anatomy, programs_in
from .._jax.primitives import Jaxpr, JaxprEqn
from .._jax.tracing import trace
from .._listen.selection import is_heard
from .._log.entry import Nodes, restrict
from .._log.primitive import Around, emit, listening, log_p, nearer
from .._tap.blocks import BlockTap
from .._tap.streamed import Streamed
from .._walk.counts import Count, is_cond, is_loop
from .._walk.interpret import interpret
from .._walk.meaning import Body, Meaning, State
from .._walk.places import Where


class Instrument(Meaning):
    """Puts `log` calls into a program, and leaves those that are there."""

    def start(self, args: Sequence[Any]) -> State:
        """The state to begin with, given the arguments of the program."""
        del args
        return ()

    def names(self, eqn: JaxprEqn) -> bool:
        """Say whether something is to be put after a primitive."""
        del eqn
        return False

    @functools.cached_property
    def _of_interest(self) -> Count:
        return Count(
            lambda eqn: eqn.primitive is log_p or is_loop(eqn) or self.names(eqn),
            closed=lambda eqn: not _can_be_entered(eqn),
        )

    def enters(self, eqn: JaxprEqn) -> bool:
        if eqn.primitive is log_p or is_loop(eqn):
            return True
        return _can_be_entered(eqn) and any(map(self._of_interest.within, programs_in(eqn)))

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        emit(restrict(nodes, lambda key, entry: is_heard(entry)))
        return (), state

    def ended(self, body: Body, state: State, where: Where) -> State:
        """The whole program has run."""
        del body, where
        return state


def _can_be_entered(eqn: JaxprEqn) -> bool:
    return isinstance(anatomy(eqn), Call) or is_cond(eqn)


class InstrumentTap(BlockTap):
    """What puts something into the programs that are compiled in a block, and hears of it."""

    def meaning(self, closed: Jaxpr) -> Instrument:
        """What is put into a program."""
        raise NotImplementedError

    def instrumented(self, jaxpr: Jaxpr) -> Jaxpr:
        with listening(Around((self,))):
            return trace(functools.partial(put_into, jaxpr, self.meaning(jaxpr)), jaxpr.in_avals)


def put_into(closed: Jaxpr, meaning: Instrument, *args: Any) -> list[Any]:
    """Evaluate a program, with what a meaning puts into it."""
    outs, state, _ = interpret(closed, args, meaning.start(args), meaning, Where())
    meaning.ended(Body(closed, args, outs, 0, 0), state, Where())
    return outs


class Instrumented(Streamed):
    """One way of calling a function that something is put into before it is streamed."""

    warns = False  # Not in terms of tags.

    def meaning(self, closed: Jaxpr) -> Instrument:
        """What is put into the program."""
        raise NotImplementedError

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], Any]:
        instrumented = functools.partial(put_into, closed, self.meaning(closed))
        count = len(args) - self.extra
        with nearer():
            made = jax.make_jaxpr(instrumented)(*args[:count])
        return super().interpret(made, args)
