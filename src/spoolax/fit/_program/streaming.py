"""Fits whose data come in blocks: the same iterations, one after the other on the host.

While the device works on one block, the next one is read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from .._data.blocks import Blocks
from .._data.points import Data
from .._model.curve import Curve
from .._solver.solver import Proposal, Solution, SolverState, log_iteration
from .listeners import Listeners
from .program import FitProgram, Inputs


def solve_in_blocks(
    program: FitProgram,
    curve: Curve,
    blocks: Blocks,
    inputs: Inputs,
    f_scale: Any,
    listeners: Listeners,
    pointwise: bool | None,
) -> Solution:
    """Solve a problem, going through all blocks for each evaluation."""
    program.curve = curve
    if program.parts is None:
        program.parts = _parts(program)
    parts: _Parts = program.parts
    update = listeners.around(parts.update)

    def evaluate(p: Any, add: Any) -> tuple[Any, Any]:
        total = curve.zero(inputs.start)
        for x, y, weights in blocks:
            program.check_pointwise(curve, x, inputs.start, pointwise)
            data = Data(x, y, weights, np.int32(len(y)), None, f_scale).padded()
            jax.block_until_ready(total)  # At most one block is computed while one is read.
            total = program.run(add, p, total, data)
        return total

    state = program.run(parts.init, inputs)
    while bool(inputs.solver.is_running(jax.tree.map(np.asarray, state))):
        proposal = program.run(parts.propose, inputs, state)
        state = update(inputs, state, proposal, *evaluate(proposal.x, parts.add))
        listeners.check()
    found = inputs.solver.solution(state)
    if curve.final is not None:
        found = found._replace(r=evaluate(found.x, parts.add_final)[1])
    return Solution(*map(np.asarray, found))


class _Parts(NamedTuple):
    """The jitted parts of an iteration."""

    init: Any
    propose: Any
    update: Any
    add: Any
    add_final: Any


def _parts(program: FitProgram) -> _Parts:
    """Make the parts. They look up the latest of equal curves, as programs do."""

    def init(inputs: Inputs) -> SolverState:
        return inputs.solver.init(inputs.start)

    def propose(inputs: Inputs, state: SolverState) -> Proposal:
        return inputs.solver.propose(state)

    def update(
        inputs: Inputs, state: SolverState, proposal: Proposal, cost: Any, r: Any
    ) -> SolverState:
        return log_iteration(*inputs.solver.update(state, proposal, cost, r))

    def add(p: Any, total: Any, data: Data) -> tuple[Any, Any]:
        return program.curve.add(p, total, data)

    def add_final(p: Any, total: Any, data: Data) -> tuple[Any, Any]:
        assert program.curve.final is not None
        return program.curve.final.add(p, total, data)

    return _Parts(*(jax.jit(part) for part in (init, propose, update, add, add_final)))
