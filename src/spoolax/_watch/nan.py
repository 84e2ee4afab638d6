"""Find out which primitive made the first NaN or infinity.

While the program runs, only the results of every iteration are checked. The first time they are
bad, the inputs of that iteration are sent to the host, which runs it again primitive by primitive.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import arrays, tracing
from .._jax.anatomy import Call, Cond, Scan, While, anatomy
from .._jax.primitives import Jaxpr, JaxprEqn, Literal, open_jaxpr, split
from .._logdict.logdict import LogDict, Origin
from .._walk.counts import logs
from .._walk.interpret import interpret
from .._walk.meaning import Silent
from .._walk.places import Where, programs_at
from .outline import Source


class NanFound(LogDict):
    """What `watch_nan` found: a `LogDict` of the bad value, with the primitive and where it ran.

    `str(found)`, also `found.message`, says it in a sentence.

    Examples:
        >>> import spoolax, jax, jax.numpy as jnp
        >>> def f(x):
        ...     def body(x, _):
        ...         x = x - 1
        ...         return x, jnp.log(x)
        ...     return jax.lax.scan(body, x, length=4)[1].sum()
        >>> found = []
        >>> y = spoolax.watch_nan(f, found.append)(2.5)
        >>> spoolax.flush()
        >>> found[0].primitive, found[0].origin.path, found[0].origin.iteration
        ('log', 'scan[0]', (2,))
    """

    primitive: str
    backward: bool = False  # type: ignore[assignment]
    message: str

    def __str__(self) -> str:
        return self.message

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Something that ran as a whole: the body of a loop, or the whole program."""

    jaxpr: Jaxpr
    where: Where
    source: Source
    number: int = dataclasses.field(default_factory=itertools.count().__next__)

    def __post_init__(self) -> None:
        blocks[self.number] = self

    def __repr__(self) -> str:
        return f"Block({self.number})"  # The jaxpr would fill pages.


# The program that may send something about a block keeps it alive.
blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


class Culprit(NamedTuple):
    """An equation that made bad values, and the loops that it was in."""

    eqn: JaxprEqn
    source: Source
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    path: tuple[str, ...]
    iteration: tuple[int, ...]


def any_bad(values: Sequence[Any], before: Sequence[Any], infinities: bool) -> Any:
    """Say, on the device, whether there is a bad number in any array.

    The first of them are what an iteration carried on; what was bad `before` does not count.
    """
    finite = jnp.isfinite if infinities else lambda x: ~jnp.isnan(x)
    bad = jnp.bool_(False)
    for x, old in itertools.zip_longest(values, before):
        if _has_nan(x):
            bad |= jnp.any(~finite(x) if old is None else ~finite(x) & finite(old))
    return bad


def explain(block: Block, args: Sequence[Any], origin: Origin) -> NanFound:
    """Run a block again, and tell what went wrong in it."""
    jaxpr = block.jaxpr
    if logs.within(jaxpr):  # What it logs has been logged.
        jaxpr = jax.make_jaxpr(
            lambda *args: interpret(block.jaxpr, args, (), Silent(), block.where)[0]
        )(*args)
    culprit = _find(jaxpr, args, block.where, tuple(origin.iteration), block.source)
    if culprit is None:
        place = f" in {origin.path}, iteration {_shown(origin.iteration)}" if origin.path else ""
        found = NanFound()
        found.primitive, found.backward = "", False
        found.message = (
            f"There is a NaN or infinity among the results{place}, but it was already among the "
            "arguments."
            if any(map(is_bad, args))
            else f"A NaN or infinity first appeared{place}, but not when it was run again one "
            "primitive at a time: look for a result that depends on how operations are fused."
        )
        found._origin = origin
        return found
    eqn = culprit.eqn
    kind = "NaN" if any(_count(jnp.isnan, x) for x in culprit.outputs) else "infinity"
    path, (line, backward) = "/".join(culprit.path), culprit.source
    words = [f"The first {kind} came out of `{eqn.primitive}` at {line}"]
    if path:
        words.append(f"in {path}, iteration {_shown(culprit.iteration)}")
    if backward:
        words.append("in the backward pass")
    given = "; ".join(_range(x) for x in culprit.inputs if hasattr(x, "dtype")) or "nothing"
    if any(map(is_bad, culprit.inputs)):
        given += ", which was not finite to begin with"
    found = NanFound({str(eqn.primitive): np.asarray(culprit.outputs[0])})
    found.primitive, found.backward = str(eqn.primitive), backward
    found.message = f"{', '.join(words)}. It was given {given}."
    found._origin = Origin(path, culprit.iteration, (), origin.device, origin.time, (), site=line)
    return found


def _find(
    jaxpr: Jaxpr, args: Sequence[Any], where: Where, iteration: tuple[int, ...], around: Source
) -> Culprit | None:
    """Evaluate a jaxpr, and trace a bad result back to the equation that it came from."""
    jaxpr, consts = open_jaxpr(jaxpr)
    env: dict[Any, Any] = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True)
    )
    made: dict[Any, tuple[JaxprEqn, Where]] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for number, eqn in enumerate(jaxpr.eqns):
        outs = tracing.bind(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
        made.update(dict.fromkeys(eqn.outvars, (eqn, where.at(number))))
        where = where.after([eqn])

    def bad(atoms: Sequence[Any]) -> list[Any]:
        variables = [v for v in atoms if not isinstance(v, Literal)]
        return [v for v in variables if v in made and is_bad(env[v])]

    def trace_back(variable: Any) -> Culprit:
        while before := bad(made[variable][0].invars):
            variable = before[0]
        eqn, place = made[variable]
        invals = [read(atom) for atom in eqn.invars]
        source = around.of(eqn)
        inner = _look_into(eqn, invals, place, iteration, source)
        path, outs = tuple(map(str, place.path)), [env[v] for v in eqn.outvars]
        return inner or Culprit(eqn, source, invals, outs, path, iteration)

    # Something that was given bad numbers is less of a suspect than something that made them.
    culprits = [trace_back(variable) for variable in bad(jaxpr.outvars)]
    return min(culprits, key=lambda c: any(map(is_bad, c.inputs)), default=None)


def _look_into(
    eqn: JaxprEqn, invals: list[Any], where: Where, iteration: tuple[int, ...], around: Source
) -> Culprit | None:
    construct, places = anatomy(eqn), programs_at(eqn, where)
    if isinstance(construct, Call):
        return _find(construct.function, invals, where, iteration, around)
    if isinstance(construct, Cond):
        number = int(np.clip(invals[0], 0, len(places) - 1))
        return _find(places[number][0], invals[1:], places[number][1], iteration, around)
    if isinstance(construct, Scan):
        ((body, inside),) = places
        consts, carry, xs = split(invals, construct.consts, construct.carry)
        for i in range(construct.length):
            at = construct.length - 1 - i if construct.reverse else i
            args = [*consts, *carry, *(lax.index_in_dim(x, at, keepdims=False) for x in xs)]
            outs = _run(body, args)
            if _got_worse(outs, carry):
                return _find(body, args, inside, (*iteration, i), around)
            carry = outs[: construct.carry]
    if isinstance(construct, While):
        (test, _), (body, inside) = places
        test_consts, body_consts, carry = split(
            invals, construct.test_consts, construct.body_consts
        )
        i = 0
        while np.any(_run(test, [*test_consts, *carry])[0]):
            args = [*body_consts, *carry]
            outs = _run(body, args)
            if _got_worse(outs, carry):
                return _find(body, args, inside, (*iteration, i), around)
            carry, i = outs, i + 1
    return None


def _got_worse(outs: Sequence[Any], carry: Sequence[Any]) -> bool:
    pairs = itertools.zip_longest(outs, carry)
    return any(is_bad(out) and (old is None or not is_bad(old)) for out, old in pairs)


def _run(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr, consts = open_jaxpr(jaxpr)
    return jax.core.eval_jaxpr(jaxpr, consts, *args)  # type: ignore[no-any-return]


def _has_nan(x: Any) -> bool:
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def is_bad(x: Any) -> bool:
    """Say whether there is a NaN or infinity in an array."""
    return _has_nan(x) and not bool(jnp.all(jnp.isfinite(x)))


def _count(test: Any, x: Any) -> int:
    return int(jnp.sum(test(x))) if _has_nan(x) else 0


def _range(x: Any) -> str:
    text = arrays.type_text(x)
    if not jnp.size(x) or arrays.is_key(x):
        return text
    if jnp.size(x) == 1:
        return f"{text} = {np.asarray(x).reshape(-1)[0]:g}"
    if not _has_nan(x) or jnp.iscomplexobj(x):
        return text
    return f"{text} from {float(jnp.min(x)):g} to {float(jnp.max(x)):g}"


def _shown(iteration: Sequence[int]) -> str:
    return "/".join(map(str, iteration))
