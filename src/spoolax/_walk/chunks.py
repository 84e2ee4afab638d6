"""Loops that pause: in chunks of any length, or in blocks of known length.

A meaning may want to act between iterations, and to look at some of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._jax.primitives import Jaxpr
from .meaning import Body, Meaning, State
from .places import Where

# What to do when a chunk has ended: look at its only iteration, or go back to where it began.
_GO_ON, _LOOK, _GO_BACK = range(3)


class PausingLoop(NamedTuple):
    """A loop that pauses: what it does with what it carries, and the state."""

    go_on: Callable[[Any, State], Any]
    step: Callable[[Any, State], tuple[Any, State]]
    ran: Callable[[Any, Any, Any], Body]  # From what it carried before and after an iteration.
    rewound: Callable[[Any, Any], Any]  # What it carries, if it goes back from after to before.
    program: Jaxpr
    unroll: int = 1


def in_chunks(
    loop: PausingLoop, carry: Any, state: State, meaning: Meaning, inside: Where
) -> tuple[Any, State]:
    """Run a loop that pauses whenever the meaning says so.

    The test is compiled once only, so one that fails just when a chunk is over is noticed in the
    next one, which is empty. A program that is not to go on leaves the loop amid a chunk. So does
    one that has noted an iteration. It goes back then, and that iteration becomes the first of a
    chunk: running the same code again is the only way to what it was given, to the bit.
    """
    notes = meaning.noted(state, inside) is not None

    def iterate(c: Any) -> Any:
        carry, state = c
        for _ in range(1 if notes else loop.unroll):
            carry, state = loop.step(carry, state)
            state = meaning.iterated(state, inside)
        return carry, state

    # Every number that is computed between chunks is a kernel of its own, which takes longer to
    # compile than anything that is added to the test of the loop.
    def chunk(c: Any) -> Any:
        _, back, *before = c
        first = meaning.iteration(before[1], inside)

        def pauses(state: State) -> Any:
            over = meaning.pauses(state, inside, first, loop.program)
            if not notes:
                return over
            what, last = back
            arrived = last - 1 - meaning.iteration(state, inside) <= 0
            return over | meaning.noted(state, inside) | ((what == _GO_BACK) & arrived)

        def more(c: Any) -> Any:
            carry, state = c
            return ~pauses(state) & meaning.goes_on(state) & loop.go_on(carry, state)

        def look(carry: Any, state: State) -> tuple[Any, State]:
            ran = loop.ran(before[0], carry, first)
            return carry, meaning.looked_at(ran, meaning.rewound(state, state, inside), inside)

        def go_back(carry: Any, state: State) -> tuple[Any, State]:
            return _rewound(loop, before, (carry, state), meaning, inside)

        carry, state = lax.while_loop(more, iterate, tuple(before))
        first = meaning.began(state, inside, first)  # All that follows is about that.
        paused = pauses(state)
        if notes:
            last = meaning.iteration(state, inside)  # It is what was noted, if anything was.
            what = jnp.where(last - first > 1, _GO_BACK, _LOOK)
            what = jnp.where(meaning.noted(state, inside), what, _GO_ON)
            carry, state = lax.switch(what, [lambda *c: c, look, go_back], carry, state)
            back = what, last
        state = meaning.chunk_ended(state, inside, first, paused)
        return paused & meaning.goes_on(state), back, carry, state

    back = (jnp.int32(_GO_ON), jnp.int32(0)) if notes else ()
    start = jnp.bool_(True), back, carry, state
    *_, carry, state = lax.while_loop(lambda c: c[0], chunk, start)
    return carry, state


def _rewound(
    loop: PausingLoop, before: Any, after: Any, meaning: Meaning, inside: Where
) -> tuple[Any, State]:
    """Go back to what there was before."""
    carry, state = (pair for pair in zip(before, after, strict=True))
    return loop.rewound(*carry), meaning.rewound(*state, inside)


def in_blocks(
    loop: PausingLoop,
    carry: Any,
    state: State,
    meaning: Meaning,
    inside: Where,
    length: int,
    size: int,
) -> tuple[Any, State]:
    """Run as much of a loop as makes whole blocks, each a loop of known length without pauses.

    If an iteration is noted, it goes back to the start of the block, and that is all.
    """

    def iterate(c: Any, _: None) -> tuple[Any, None]:
        carry, state = loop.step(*c)
        return (carry, meaning.iterated(state, inside)), None

    def block(c: Any) -> Any:
        _, *before = c
        (carry, state), _ = lax.scan(iterate, tuple(before), length=size)
        noted = meaning.noted(state, inside)
        if noted is not None:
            carry, state = lax.cond(
                noted,
                lambda *c: _rewound(loop, before, c, meaning, inside),
                lambda *c: c,
                carry,
                state,
            )
        state = meaning.block_ended(state, inside, size, loop.go_on(carry, state))
        return jnp.bool_(True) if noted is None else ~noted, carry, state

    c = jnp.bool_(True), carry, state
    if length < 2 * size:
        return block(c)[1:]  # type: ignore[no-any-return]
    end = length - length % size

    def more(c: Any) -> Any:
        return c[0] & (meaning.iteration(c[2], inside) < end) & meaning.goes_on(c[2])

    return lax.while_loop(more, block, c)[1:]  # type: ignore[no-any-return]
