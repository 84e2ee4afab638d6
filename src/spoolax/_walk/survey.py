"""What a program logs, found without running it."""

from __future__ import annotations

import jax

from .._jax.anatomy import ShardMap, anatomy
from .._jax.primitives import Jaxpr, open_jaxpr
from .._log.primitive import log_p, logged
from .counts import logging_whiles, logs
from .interpret import rules
from .meaning import PassOn
from .places import Where, programs_at
from .repetitions import Found, marked


def survey(
    jaxpr: Jaxpr,
    where: Where = Where(),  # noqa: B008
    unbounded: bool = False,
) -> list[Found]:
    """List what a program logs, in program order, repetitions included.

    What comes out of `shard_map` is listed with its devices. A while loop that logs in there is
    refused, unless `unbounded`: then what it logs need not come out, and is listed as it is.
    """
    found: list[Found] = []
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        construct = anatomy(eqn) if logs(eqn) else None
        here = where.inside(eqn)
        if eqn.primitive is log_p:
            found.append((marked(logged(eqn), here), here))
        elif isinstance(construct, ShardMap) and not (unbounded and logging_whiles(eqn)):
            # What comes out depends on how the values differ between devices.
            nodes = jax.eval_shape(
                lambda *args, eqn=eqn, here=here: rules[eqn.primitive](
                    eqn, list(args), (), PassOn(), here
                )[2],
                *(atom.aval for atom in eqn.invars),
            )
            found.append((nodes, here))
        elif construct is not None:
            for program, place in programs_at(eqn, here):
                found += survey(program, place, unbounded)
        where = where.after([eqn])
    return found
