"""Walk a jaxpr and give its `log` equations a meaning.

Equations that do not log run unchanged. The others go to `rules`, which build the construct anew
through JAX's public functions, with two things added: a state that is threaded through everything
that runs (a carry of loops), and the entries that come out (stacked by scans). What is done with
an entry, state or output, is the `Meaning`'s choice. The jaxpr itself is never modified.

To support another higher-order primitive, add its rule here and a line to `tests/programs.py`.
"""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._jax import tracing
from .._jax.anatomy import subjaxprs
from .._jax.primitives import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    cond_p,
    linear_solve_p,
    open_jaxpr,
    remat_p,
    scan_p,
    shard_map_p,
    while_p,
)
from .._log.entry import Label, Loop, Nodes, entries
from .._log.primitive import log_p, logged
from ..errors import UnsupportedError

# Iterations of a chunked loop that may be unrolled into one.
MOST_UNROLLED = 8

State: TypeAlias = Any
Outcome: TypeAlias = tuple[list[Any], State, Nodes]


class Body(NamedTuple):
    """One iteration of a loop: what ran, on what, and what came out.

    `carried` of the results are carried on: the first of them. They come in as as many arguments,
    from number `first_carried` on.
    """

    jaxpr: Jaxpr
    args: Sequence[Any]
    outs: Sequence[Any]
    carried: int
    first_carried: int


class Meaning:
    """What becomes of an entry. Methods may be called more than once for the same equation."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        """Take entries in: into the state, or passed on as outputs, or both."""
        raise NotImplementedError

    def enters(self, eqn: JaxprEqn) -> bool:
        """Say whether to look into an equation. The others run unchanged."""
        return logs(eqn)

    def ran(self, eqn: JaxprEqn, outs: Sequence[Any], where: Where) -> None:
        """An equation ran that was not looked into."""

    def stepped(self, body: Body, state: State, where: Where) -> State:
        """The body of the loop `where` ran once."""
        del body, where
        return state

    def later(self) -> Meaning | None:
        """The meaning in branches, if their entries may be handed to `log` after them.

        That keeps the state out of the branches, which matters if it is large.
        """
        return None

    def iterated(self, state: State, where: Where) -> State:
        """An iteration of the loop `where` has ended."""
        del where
        return state

    def left(self, state: State, where: Where) -> State:
        """A loop has ended, and we are back at `where`."""
        del where
        return state

    def entered(self, state: State, where: Where) -> State:
        """The loop `where` is about to begin."""
        del where
        return state

    # A meaning may want loops to run in chunks of iterations, and act in between. Then entries do
    # not come out of loops: they are settled, at the end of an iteration at the latest.

    def chunked(self, where: Where) -> bool:
        """Say whether the loop `where` should run in chunks."""
        del where
        return False

    def room(self, state: State, where: Where) -> Any:
        """How many iterations of the loop `where` the next chunk may have, at least one.

        If the loop is unrolled, it may overstep that by `MOST_UNROLLED`.
        """
        raise NotImplementedError

    def paused(self, state: State, where: Where, made: Any, unfinished: Any) -> State:
        """A chunk of `made` iterations is over, and the loop may go on."""
        raise NotImplementedError

    def settled(self, nodes: Nodes, state: State, where: Where) -> State:
        """Take in entries that `log` passed on."""
        raise NotImplementedError

    def unsettling(self, eqn: JaxprEqn) -> bool:
        """Say whether the entries before an equation must be settled before it runs."""
        del eqn
        return False


@dataclasses.dataclass(frozen=True)
class Frame:
    """A loop that we are in: the `index`-th of those directly inside the loop around it."""

    kind: str
    index: int
    length: int | None  # None: not known before the program runs.

    def __str__(self) -> str:
        return f"{self.kind}[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in the program: the loops around it, and how many loops precede it there."""

    path: tuple[Frame, ...] = ()
    ordinal: int = 0
    conditional: bool = False
    # The equations that we are in, by number. It tells apart places between the same two loops.
    spot: tuple[int, ...] = dataclasses.field(default=(), compare=False)

    def enter(self, kind: str, length: int | None) -> Where:
        frame = Frame(kind, self.ordinal, length)
        return Where((*self.path, frame), 0, self.conditional, self.spot)

    def at(self, number: int) -> Where:
        return dataclasses.replace(self, spot=(*self.spot, number))

    def after(self, *eqns: JaxprEqn) -> Where:
        skipped = sum(map(_count_loops, eqns))
        return dataclasses.replace(self, ordinal=self.ordinal + skipped)

    @property
    def in_test(self) -> bool:
        """Whether we are at the end of the test of a while loop, which runs once more than it."""
        return bool(self.path) and self.path[-1].kind == "while" and self.spot[-1] == 0

    @property
    def unbounded(self) -> bool:
        return any(frame.length is None for frame in self.path)

    def __str__(self) -> str:
        return "/".join(map(str, self.path))


def while_places(eqn: JaxprEqn, where: Where) -> tuple[Where, Where]:
    """Where the test and the body of a while loop are."""
    test = where.enter("while", None).at(0)
    body = test.after(*open_jaxpr(eqn.params["cond_jaxpr"])[0].eqns)
    return test, dataclasses.replace(body, spot=(*where.spot, 1))


def branch_places(eqn: JaxprEqn, where: Where) -> list[Where]:
    """Where the branches of a conditional are."""
    places = []
    for number, branch in enumerate(eqn.params["branches"]):
        places.append(dataclasses.replace(where, spot=(*where.spot, number)))
        where = where.after(*open_jaxpr(branch)[0].eqns)
    return places


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
            here = where.at(number)
            if nodes and meaning.unsettling(eqn):
                nodes, state = (), meaning.settled(nodes, state, here)
            if eqn.primitive is log_p:
                given = logged(eqn.params, [jnp.asarray(x) for x in invals])
                made, state = meaning.log(given, state, here)
            else:
                rule = rules.get(eqn.primitive, _refuse)
                with tracing.at_source(eqn), eqn.ctx.manager:
                    outs, state, made = rule(eqn, invals, state, meaning, here)
            nodes += made
        env.update(zip(eqn.outvars, outs, strict=True))
        where = where.after(eqn)
    return [read(atom) for atom in jaxpr.outvars], state, nodes


class Found(NamedTuple):
    """Something that a jaxpr logs, by type, and where."""

    nodes: Nodes
    where: Where
    again: bool  # It is in the backward pass of a checkpointed function.


def survey(jaxpr: Jaxpr, where: Where, again: bool = False) -> list[Found]:
    """List what a jaxpr logs, in program order and without running anything."""
    jaxpr, _ = open_jaxpr(jaxpr)
    found: list[Found] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is log_p:
            nodes = logged(eqn.params, [atom.aval for atom in eqn.invars])
            found.append(Found(nodes, where, again))
        elif eqn.primitive is shard_map_p and logs(eqn):
            # What comes out depends on how the values differ between devices.
            nodes = jax.eval_shape(
                lambda *args, eqn=eqn, where=where: rules[shard_map_p](
                    eqn, list(args), (), PassOn(), where
                )[2],
                *(atom.aval for atom in eqn.invars),
            )
            found.append(Found(nodes, where, again))
        elif logs(eqn):
            inside = where
            if eqn.primitive is scan_p:
                inside = where.enter("scan", eqn.params["length"])
            elif eqn.primitive is while_p:
                inside = where.enter("while", None)
            elif eqn.primitive is cond_p:
                inside = dataclasses.replace(where, conditional=True)
            second = eqn.primitive is remat_p and eqn.params["differentiated"]
            for sub in _running(eqn):
                found += survey(sub, inside, again or second)
                inside = inside.after(*open_jaxpr(sub)[0].eqns)
        where = where.after(eqn)
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


def _running(eqn: JaxprEqn) -> list[Jaxpr]:
    """The jaxprs of an equation that run when it runs."""
    if eqn.primitive is linear_solve_p:
        return [eqn.params["jaxprs"].solve]
    if eqn.primitive is while_p:
        return [eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]]
    return list(subjaxprs(eqn))


Rule: TypeAlias = Callable[[JaxprEqn, list[Any], State, Meaning, Where], Outcome]
rules: dict[Primitive, Rule] = {}


def logs(eqn: JaxprEqn) -> bool:
    """Say whether an equation logs, at any depth."""
    return eqn.primitive is log_p or any(jaxpr_logs(jaxpr) for jaxpr in subjaxprs(eqn))


def jaxpr_logs(jaxpr: Jaxpr) -> bool:
    """Say whether a jaxpr logs, at any depth."""
    # Not by its effects: some constructs, such as `custom_linear_solve`, do not pass them on.
    jaxpr, _ = open_jaxpr(jaxpr)
    if jaxpr not in _logs_cache:
        _logs_cache[jaxpr] = any(map(logs, jaxpr.eqns))
    return _logs_cache[jaxpr]


_logs_cache: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_loops_cache: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def has_logging_loop(jaxpr: Jaxpr) -> bool:
    """Say whether there is a loop in a jaxpr, at any depth, that logs."""
    return any(
        logs(eqn)
        and (eqn.primitive in (scan_p, while_p) or any(map(has_logging_loop, subjaxprs(eqn))))
        for eqn in open_jaxpr(jaxpr)[0].eqns
    )


def _count_loops(eqn: JaxprEqn) -> int:
    if eqn.primitive in (scan_p, while_p):
        return 1
    total = 0
    for sub in subjaxprs(eqn):
        jaxpr, _ = open_jaxpr(sub)
        if jaxpr not in _loops_cache:
            _loops_cache[jaxpr] = sum(map(_count_loops, jaxpr.eqns))
        total += _loops_cache[jaxpr]
    return total


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
        "spoolax cannot take values out of that construct. Move the `log` call outside of it: "
        "return the value and log it there."
    )


class Silent(Meaning):
    """Drops every entry."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del nodes, where
        return (), state


def relabelled(nodes: Nodes, where: Where) -> Nodes:
    """Tell loops that ended here apart from those that ended elsewhere in the same loop."""
    return _renamed(placed(nodes, where), lambda name: f"{where.ordinal}:{name}")


def counted_back(nodes: Nodes, loops: int) -> Nodes:
    """Name loops, of `loops` that have just ended, by their distance from here.

    What logs them afterwards may be traced by itself, and does not know how many came before.
    """

    def rename(name: str) -> str:
        kind, index = _LOOP.fullmatch(name.rpartition(":")[2]).groups()  # type: ignore[union-attr]
        return f"{kind}[{int(index) - loops}]"

    return _renamed(nodes, rename)


def placed(nodes: Nodes, where: Where) -> Nodes:
    """Name loops by their place, where they are named by their distance from here."""

    def rename(name: str) -> str:
        found = _LOOP.fullmatch(name)
        if found is None or int(found[2]) >= 0:
            return name
        return f"{found[1]}[{where.ordinal + int(found[2])}]"

    return _renamed(nodes, rename)


_LOOP = re.compile(r"(\w+)\[(-?\d+)\]")


def _renamed(nodes: Nodes, rename: Callable[[str], str]) -> Nodes:
    return tuple(
        Loop(node.body, Label(rename(node.label.name))) if isinstance(node, Loop) else node
        for node in nodes
    )


class PassOn(Meaning):
    """Passes every entry on as it is."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        return nodes, state

    def later(self) -> Meaning:
        return self


class Collect(Meaning):
    """Passes every entry on as an output, which is possible outside of while loops only."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        if where.unbounded:
            keys = sorted({key for entry in entries(nodes) for key in entry.data})
            raise UnsupportedError(
                f"Cannot log {keys} from a `jax.lax.while_loop` inside `jax.shard_map`: the "
                "number of entries is unknown, and may differ from device to device. Use "
                "`jax.lax.scan` or `fori_loop` with a fixed length there, or carry the value out "
                "of the `shard_map` and log it outside."
            )
        return relabelled(nodes, where), state
