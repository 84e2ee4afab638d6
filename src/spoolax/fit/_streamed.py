"""Fits whose data come in blocks: the same way down, one iteration after the other on the host.

While the device works on one block, the next one is read.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ._blocks import Blocks
from ._descent import Proposal, Solution, State, logged
from ._listen import Listeners
from ._problem import Curve, Data, bucket, padded
from ._program import Arguments, Program, see_that_it_keeps_apart


def solve_streamed(
    program: Program,
    curve: Curve,
    blocks: Blocks,
    given: Arguments,
    f_scale: Any,
    listeners: Listeners,
    pointwise: bool | None,
) -> Solution:
    """Go down from the start, with data that are gone through for each iteration."""
    program.curve = curve
    if "steps" not in program.facts:
        program.facts["steps"] = _steps(program)
    begin, propose, judge, add, add_last = program.facts["steps"]
    judge = listeners.around(judge)

    def total_at(p: Any, add: Any) -> tuple[Any, Any]:
        total = curve.nothing(given.start)
        for x, y, weights in blocks:
            see_that_it_keeps_apart(program, curve, x, given.start, pointwise)
            length = bucket(len(y))
            data = Data(x, y, weights, np.int32(len(y)), None, f_scale)
            data = data.mapped(lambda a: padded(a, length))
            jax.block_until_ready(total)  # One block is under way, one is being read.
            total = program.run(add, p, total, data)
        return total

    state = program.run(begin, given)
    while bool(given.how().running(jax.tree.map(np.asarray, state))):
        proposal = program.run(propose, given, state)
        state = judge(given, state, proposal, *total_at(proposal.x, add))
        listeners.check()
    found = given.how().solution(state)
    if add_last is not None:
        found = found._replace(r=total_at(found.x, add_last)[1])
    return Solution(*map(np.asarray, found))


def _steps(program: Program) -> tuple[Any, ...]:
    """The parts of an iteration. They refer to the latest of equal curves, as programs do."""

    def begin(given: Arguments) -> State:
        return given.how().start(given.start)

    def propose(given: Arguments, state: State) -> Proposal:
        return given.how().proposed(state)

    def judge(given: Arguments, state: State, proposal: Proposal, cost: Any, r: Any) -> State:
        return logged(*given.how().judged(state, proposal, cost, r))

    def add(p: Any, total: Any, data: Data) -> tuple[Any, Any]:
        return program.curve.added(p, total, data)

    def add_last(p: Any, total: Any, data: Data) -> tuple[Any, Any]:
        assert program.curve.final is not None
        return program.curve.final.added(p, total, data)

    steps = [jax.jit(one) for one in (begin, propose, judge, add, add_last)]
    return *steps[:4], None if program.curve.final is None else steps[4]
