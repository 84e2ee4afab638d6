"""Walk a jaxpr and give its `log` equations a meaning.

Equations that do not log run unchanged. The others go to `rules`, which build the construct anew
through JAX's public functions, with two things added: a state that is threaded through everything
that runs (a carry of loops), and the entries that come out (stacked by scans). What is done with
an entry, state or output, is the `Meaning`'s choice. The jaxpr itself is never modified.

To support another higher-order primitive, add its anatomy to `_jax/anatomy.py`, its rule to one of
the files beside this one, and a line to `tests/programs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from .._jax import tracing
from .._jax.primitives import Jaxpr, JaxprEqn, Literal, Primitive, open_jaxpr
from .._log.entry import Nodes
from .._log.primitive import log_p, logged
from ..errors import UnsupportedError
from .meaning import Meaning, Outcome, State
from .places import Where
from .repetitions import marked

Rule: TypeAlias = Callable[[JaxprEqn, list[Any], State, Meaning, Where], Outcome]
rules: dict[Primitive, Rule] = {}


def rule_for(*primitives: Primitive) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(primitives, rule))
        return rule

    return add


def _refuse(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    del invals, state, meaning, where
    raise UnsupportedError(
        f"There is a `spoolax.log` inside `{eqn.primitive}` at {tracing.source_line(eqn)}, and "
        "spoolax cannot take values out of that construct. Move the `log` call outside it: "
        "return the value and log it there."
    )


def interpret(
    jaxpr: Jaxpr, args: Sequence[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    """Evaluate `jaxpr`, handing what is logged to `meaning`."""
    jaxpr, consts = open_jaxpr(jaxpr)
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    nodes: Nodes = ()
    for number, eqn in enumerate(jaxpr.eqns):
        invals = [read(atom) for atom in eqn.invars]
        outs: Sequence[Any] = ()
        if not meaning.enters(eqn):
            outs = tracing.bind(eqn, invals)
            meaning.ran(eqn, outs, where.at(number))
        else:
            here = where.at(number).inside(eqn)
            if nodes and meaning.commits_before(eqn):
                nodes, state = (), meaning.commit(nodes, state, here)
            if eqn.primitive is log_p:
                given = marked(logged(eqn, [jnp.asarray(x) for x in invals]), here)
                made, state = meaning.log(given, state, here)
            else:
                rule = rules.get(eqn.primitive, _refuse)
                with tracing.at_source(eqn), eqn.ctx.manager:
                    outs, state, made = rule(eqn, invals, state, meaning, here)
            nodes += made
        env.update(zip(eqn.outvars, outs, strict=True))
        where = where.after([eqn])
    return [read(atom) for atom in jaxpr.outvars], state, nodes
