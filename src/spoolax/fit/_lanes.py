"""Many fits in one program: some lanes, each of which takes the next fit when it is free.

All lanes take a step at a time. One whose fit has ended writes down the result and begins another,
so that none waits for the slowest of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._log.primitive import log
from ._descent import Problem, Solution, State
from ._problem import Curve, Data
from ._program import Arguments

LANES = 64


class Many(NamedTuple):
    """Data of many fits along the first axis; x and the weights may be shared."""

    x: Any
    y: Any
    weights: Any
    points: Any  # How many are real, of each fit.
    f_scale: Any
    fits: Any  # How many are real.


class _Now(NamedTuple):
    lanes: State
    fit: Any  # Which one each lane is at.
    following: Any  # The next one.
    out: Solution
    iteration: Any


def solve_many(curve: Curve, shared: Any, given: Arguments) -> Solution:
    """Go down in all fits. `shared` says of the leaves of x, and of the weights, if they are."""
    many: Many = given.data
    how = given.how()
    capacity = many.y.shape[0]
    lanes = min(LANES, capacity)

    def data_of(fit: Any) -> Data:
        def pick(a: Any, is_shared: bool) -> Any:
            return a if is_shared else a[fit]

        x, weights = jax.tree.map(pick, (many.x, many.weights), shared)
        return Data(x, many.y[fit], weights, many.points, None, many.f_scale)

    def begun(fit: Any) -> State:
        return how.start(given.start[fit])

    def stepped(now: State, fit: Any) -> State:
        proposal = how.proposed(now)
        problem: Problem = curve.problem(data_of(fit))
        return how.judged(now, proposal, *problem(proposal.x))[0]

    def step(now: _Now) -> _Now:
        inside = jnp.minimum(now.fit, capacity - 1)
        after = jax.vmap(stepped)(now.lanes, inside)
        over = ~jax.vmap(how.running)(after)
        results = jax.vmap(how.solution)(after)
        where = jnp.where(over & (now.fit < many.fits), now.fit, capacity)  # Or nowhere.
        out = jax.tree.map(lambda a, one: a.at[where].set(one, mode="drop"), now.out, results)
        order = jnp.cumsum(over, dtype=jnp.int32)
        fit = jnp.where(over, now.following + order - 1, now.fit)
        fresh = jax.vmap(begun)(jnp.minimum(fit, capacity - 1))

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(over.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        running = jnp.sum(fit < many.fits, dtype=jnp.int32)
        following = now.following + order[-1]
        done = jnp.minimum(following, many.fits) - running
        log({"done": done, "running": running}, step=now.iteration, tags=("fit",))
        following_lanes = jax.tree.map(chosen, fresh, after)
        return _Now(following_lanes, fit, following, out, now.iteration + 1)

    first = jnp.arange(lanes, dtype=jnp.int32)
    begin = jax.vmap(begun)(first)
    one = jax.vmap(how.solution)(begin)
    out = jax.tree.map(lambda a: jnp.zeros((capacity, *a.shape[1:]), a.dtype), one)
    now = _Now(begin, first, jnp.int32(lanes), out, jnp.int32(0))
    now = lax.while_loop(lambda now: jnp.any(now.fit < many.fits), step, now)
    found: Solution = now.out
    final = curve.final
    if final is None:
        return found

    def last(at: Any) -> Any:
        fit, x = at
        return final.problem(data_of(fit))(x)[1]

    every = jnp.arange(capacity, dtype=jnp.int32), found.x
    return found._replace(r=lax.map(last, every, batch_size=lanes))
