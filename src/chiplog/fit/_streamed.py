"""Fits whose data come in blocks: the same way down, one iteration after the other on the host.

While the device works on one block, the next one is read.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..errors import LogValueError
from ._blocks import Blocks
from ._descent import Proposal, Solution, State, logged
from ._listen import Listeners
from ._problem import Curve, Data, bucket, padded
from ._program import Arguments, Program, keeps_apart


def solve_streamed(
    program: Program,
    curve: Curve,
    blocks: Blocks,
    given: Arguments,
    f_scale: Any,
    listeners: Listeners,
) -> Solution:
    """Go down from the start, with data that are gone through for each iteration."""
    if "steps" not in program.facts:
        program.facts["steps"] = _steps(curve)
    begin, propose, add, judge = program.facts["steps"]
    judge = listeners.around(judge)
    state = program.run(begin, given)
    while bool(given.how().running(jax.tree.map(np.asarray, state))):
        proposal = program.run(propose, given, state)
        total = curve.nothing(given.start)
        for x, y, weights in blocks:
            if not keeps_apart(program, curve.model, x, given.start):
                raise LogValueError(
                    "The model looks at several points at once, so the data cannot be gone through "
                    "in blocks. Give them as arrays in memory."
                )
            length = bucket(len(y))
            data = Data(x, y, weights, np.int32(len(y)), None, f_scale)
            data = data.mapped(lambda a: padded(a, length))
            jax.block_until_ready(total)  # One block is under way, one is being read.
            total = program.run(add, proposal.x, total, data)
        state = judge(given, state, proposal, *total)
    solution: Solution = jax.tree.map(np.asarray, given.how().solution(state))
    return solution


def _steps(curve: Curve) -> tuple[Any, ...]:
    def begin(given: Arguments) -> State:
        return given.how().start(given.start)

    def propose(given: Arguments, state: State) -> Proposal:
        return given.how().proposed(state)

    def add(p: Any, total: Any, data: Data) -> tuple[Any, Any]:
        return curve.added(p, total, data)

    def judge(given: Arguments, state: State, proposal: Proposal, cost: Any, r: Any) -> State:
        return logged(*given.how().judged(state, proposal, cost, r))

    return tuple(map(jax.jit, (begin, propose, add, judge)))
