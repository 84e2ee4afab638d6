"""Many fits in one program: lanes, each of which takes the next fit when its own has ended.

All lanes take a step at a time. A lane whose fit has ended stores the result and starts another
one, so no lane waits for the slowest fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..._log.primitive import log
from .._data.points import Data
from .._model.curve import Curve
from .._solver.solver import Problem, Solution, SolverState
from .program import Inputs

LANES = 64


class BatchData(NamedTuple):
    """Data of many fits along the first axis; x and the weights may be shared."""

    x: Any
    y: Any
    weights: Any
    points: Any  # How many are real, in each fit.
    f_scale: Any
    fits: Any  # How many are real.


class _LanesState(NamedTuple):
    lanes: SolverState
    fit: Any  # The number of the fit that each lane works on.
    following: Any  # The number of the fit that starts next.
    out: Solution
    iteration: Any


def solve_batch(curve: Curve, shared: Any, inputs: Inputs) -> Solution:
    """Solve all fits. `shared` says which leaves of x, and whether the weights, are shared."""
    batch: BatchData = inputs.data
    solver = inputs.solver
    capacity = batch.y.shape[0]
    lanes = min(LANES, capacity)

    def data_of(fit: Any) -> Data:
        def pick(a: Any, is_shared: bool) -> Any:
            return a if is_shared else a[fit]

        x, weights = jax.tree.map(pick, (batch.x, batch.weights), shared)
        return Data(x, batch.y[fit], weights, batch.points, None, batch.f_scale)

    def init(fit: Any) -> SolverState:
        return solver.init(inputs.start[fit])

    def update(state: SolverState, fit: Any) -> SolverState:
        proposal = solver.propose(state)
        problem: Problem = curve.problem(data_of(fit))
        return solver.update(state, proposal, *problem(proposal.x))[0]

    def step(state: _LanesState) -> _LanesState:
        after = jax.vmap(update)(state.lanes, jnp.minimum(state.fit, capacity - 1))
        ended = ~jax.vmap(solver.is_running)(after)
        results = jax.vmap(solver.solution)(after)
        where = jnp.where(ended & (state.fit < batch.fits), state.fit, capacity)  # Or nowhere.
        out = jax.tree.map(lambda a, one: a.at[where].set(one, mode="drop"), state.out, results)
        order = jnp.cumsum(ended, dtype=jnp.int32)
        fit = jnp.where(ended, state.following + order - 1, state.fit)
        fresh = jax.vmap(init)(jnp.minimum(fit, capacity - 1))

        def select(new: Any, old: Any) -> Any:
            return jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        running = jnp.sum(fit < batch.fits, dtype=jnp.int32)
        following = state.following + order[-1]
        done = jnp.minimum(following, batch.fits) - running
        log({"done": done, "running": running}, step=state.iteration, tags=("fit",))
        following_lanes = jax.tree.map(select, fresh, after)
        return _LanesState(following_lanes, fit, following, out, state.iteration + 1)

    first = jnp.arange(lanes, dtype=jnp.int32)
    begin = jax.vmap(init)(first)
    results = jax.vmap(solver.solution)(begin)
    out = jax.tree.map(lambda a: jnp.zeros((capacity, *a.shape[1:]), a.dtype), results)
    state = _LanesState(begin, first, jnp.int32(lanes), out, jnp.int32(0))
    state = lax.while_loop(lambda state: jnp.any(state.fit < batch.fits), step, state)
    found: Solution = state.out
    final = curve.final
    if final is None:
        return found

    def final_factor(fit_and_x: Any) -> Any:
        fit, x = fit_and_x
        return final.problem(data_of(fit))(x)[1]

    every = jnp.arange(capacity, dtype=jnp.int32), found.x
    return found._replace(r=lax.map(final_factor, every, batch_size=lanes))
