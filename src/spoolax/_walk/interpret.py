"""Walk a jaxpr and give its `log` equations a meaning.

Equations that do not log run unchanged. The others go to `rules`, which build the construct anew
through JAX's public functions, with two things added: a state that is threaded through everything
that runs (a carry of loops), and the entries that come out (stacked by scans). What is done with
an entry, state or output, is the `Meaning`'s choice. The jaxpr itself is never modified.

To support another higher-order primitive, add its anatomy to `_jax/anatomy.py`, its rule to one of
the files beside this one, and a line to `tests/programs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp

from .._jax import arrays, tracing
from .._jax.anatomy import anatomy, programs_in
from .._jax.primitives import Jaxpr, JaxprEqn, Literal, open_jaxpr
from .._log.entry import Entry, Nodes, entries
from .._log.primitive import log_p, logged
from ..errors import UnsupportedError
from .meaning import Meaning, Outcome, State
from .places import Where
from .repetitions import marked, without

Rule: TypeAlias = Callable[[JaxprEqn, list[Any], State, Meaning, Where], Outcome]
# By primitive; if there are many of one kind, by the type of their anatomy.
rules: dict[Any, Rule] = {}


def rule_for(*primitives: Any) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(primitives, rule))
        return rule

    return add


def _rule_of(eqn: JaxprEqn) -> Rule:
    if eqn.primitive in rules:
        return rules[eqn.primitive]
    return rules.get(type(anatomy(eqn)), _refuse)


def _refuse(
    eqn: JaxprEqn, invals: list[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    del invals, state, meaning, where
    raise refusal(eqn, str(eqn.primitive))


def refusal(eqn: JaxprEqn, construct: str) -> UnsupportedError:
    """The error that says that there are logs in a construct which values cannot come out of."""
    found = [entry for program in programs_in(eqn) for entry in logged_in(program)]
    keys = sorted({key for entry in found for key in entry.data})
    sites = " and ".join(dict.fromkeys(entry.meta.site for entry in found if entry.meta.site))
    return UnsupportedError(
        f"The `spoolax.log` of {keys} at {sites or 'some place'} runs inside `{construct}`, "
        f"which is called at {tracing.source_line(eqn)}, and spoolax cannot take values out of "
        "that construct. Return the values from there, and log them outside it."
    )


def logged_in(jaxpr: Jaxpr) -> Iterator[Entry]:
    """List what the `log` equations of a program hold, at any depth."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive is log_p:
            yield from entries(logged(eqn))
        for program in programs_in(eqn):
            yield from logged_in(program)


def interpret(
    jaxpr: Jaxpr, args: Sequence[Any], state: State, meaning: Meaning, where: Where
) -> Outcome:
    """Evaluate `jaxpr`, handing what is logged to `meaning`."""
    jaxpr, consts = open_jaxpr(jaxpr)
    names, values = [*jaxpr.constvars, *jaxpr.invars], [*consts, *args]
    env = dict(zip(names, values, strict=not meaning.rehearses))

    def read(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in env:
            assert meaning.rehearses, "it was passed over"
            env[atom] = arrays.stand_in(atom.aval)
        return env[atom]

    nodes: Nodes = ()
    for number, eqn in enumerate(jaxpr.eqns):
        outs: Sequence[Any] = ()
        enters, here = meaning.enters(eqn), where.at(number)
        if nodes and meaning.commits_before(eqn):
            nodes, state = (), meaning.commit(nodes, state, here.inside(eqn) if enters else here)
        if not enters and meaning.rehearses and all(map(arrays.has_stand_in, eqn.outvars)):
            meaning.passed_over(eqn, here)
            where = where.after([eqn])
            continue
        invals = [read(atom) for atom in eqn.invars]
        if not enters:
            outs, state = meaning.run(eqn, invals, state, here)
        else:
            here = here.inside(eqn)
            if eqn.primitive is log_p:
                given = marked(logged(eqn, [jnp.asarray(x) for x in invals]), here)
                given = without(given, meaning.repeated)
                made, state = meaning.log(given, state, here) if given else ((), state)
            else:
                with tracing.at_source(eqn), eqn.ctx.manager:
                    outs, state, made = _rule_of(eqn)(eqn, invals, state, meaning, here)
            nodes += made
        env.update(zip(eqn.outvars, outs, strict=True))
        where = where.after([eqn])
    return [read(atom) for atom in jaxpr.outvars], state, nodes
