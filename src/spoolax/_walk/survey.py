"""What a program logs, found without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from .._jax.anatomy import Checkpoint, ShardMap, anatomy
from .._jax.primitives import Jaxpr, open_jaxpr
from .._log.entry import Nodes, entries
from .._log.primitive import log_p, logged
from .counts import logs
from .interpret import rules
from .meaning import PassOn
from .places import Where, programs_at


class Found(NamedTuple):
    """Something that a program logs, by type, and where."""

    nodes: Nodes
    where: Where
    again: bool  # It is in the backward pass of a checkpointed function.


def survey(jaxpr: Jaxpr, where: Where = Where(), again: bool = False) -> list[Found]:  # noqa: B008
    """List what a program logs, in program order."""
    found: list[Found] = []
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        construct = anatomy(eqn) if logs(eqn) else None
        if eqn.primitive is log_p:
            found.append(Found(logged(eqn), where, again))
        elif isinstance(construct, ShardMap):
            # What comes out depends on how the values differ between devices.
            nodes = jax.eval_shape(
                lambda *args, eqn=eqn, where=where: rules[eqn.primitive](
                    eqn, list(args), (), PassOn(), where
                )[2],
                *(atom.aval for atom in eqn.invars),
            )
            found.append(Found(nodes, where, again))
        elif construct is not None:
            second = isinstance(construct, Checkpoint) and construct.is_repeated
            for program, place in programs_at(eqn, where):
                found += survey(program, place, again or second)
        where = where.after([eqn])
    return found


def repetitions(found: Sequence[Found]) -> frozenset[Any]:
    """Find the entries that are logged again when a checkpointed function is run again.

    Of the entries with one token, the first is the forward pass, whatever it is inside of.
    """
    seen: set[int] = set()
    repeated = set()
    for nodes, where, again in found:
        for entry in entries(nodes):
            token = entry.meta.token
            if token is not None and token in seen and again:
                repeated.add((token, where))
            elif token is not None:
                seen.add(token)
    return frozenset(repeated)


def without(nodes: Nodes, where: Where, repeated: frozenset[Any]) -> Nodes:
    """Leave out entries that are repetitions."""
    if not repeated:
        return nodes
    return tuple(
        node
        for node in nodes
        if not any((entry.meta.token, where) in repeated for entry in entries([node]))
    )
