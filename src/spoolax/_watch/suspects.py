"""Run something again, primitive by primitive, to find out where its bad numbers come from."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import arrays, tracing
from .._jax.anatomy import Call, Cond, Scan, While, anatomy
from .._jax.primitives import Jaxpr, JaxprEqn, Literal, open_jaxpr, split
from .._walk.places import Where, programs_at
from .given import CLOSED_OVER, WRITTEN, Maker, argument_position
from .outline import Source

# Arrays of more numbers than this are looked at by their sums of squares, if they are of a type
# that is summed fast.
FEW = 64
SUMMED = ("float16", "bfloat16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class Suspect:
    """An equation with bad results, and where it ran.

    If something bad was `given` to it, that is `value`, and it came from an argument, by number, of
    the program that ran, or else from a constant. Without an equation, it came out as it was given.
    """

    eqn: JaxprEqn | None
    source: Source
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    path: tuple[str, ...]
    iteration: tuple[int, ...]
    given: int | Maker | None = None
    value: Any = None


def may_be_bad(x: Any) -> bool:
    """Say whether an array has a type that knows NaN."""
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def any_bad(values: Sequence[Any], before: Sequence[Any], infinities: bool, lanes: int = 0) -> Any:
    """Say, on the device, whether there is a bad number in any array.

    The first of them are what an iteration carried on; what was bad `before` does not count. The
    first axes of all arrays, as many as `lanes`, are kept apart.
    """
    finite = jnp.isfinite if infinities else lambda x: ~jnp.isnan(x)
    bad = jnp.bool_(False)
    for x, old in itertools.zip_longest(values, before):
        if may_be_bad(x):
            worse = ~finite(x) if old is None else ~finite(x) & finite(old)
            bad |= jnp.any(worse, axis=tuple(range(lanes, jnp.ndim(x))))
    return bad


def looks_bad(values: Sequence[Any], before: Sequence[Any], infinities: bool) -> Any:
    """Say, on the device and in no time, whether `any_bad` should be asked.

    A sum of squares is not finite if a number is not, and it is not a number only if one is not.
    It takes a tenth of the time to tell, but knows nothing of what was there before, and overflows.
    """
    bad = jnp.bool_(False)
    for x, old in itertools.zip_longest(values, before):
        if not may_be_bad(x):
            continue
        if jnp.size(x) <= FEW or x.dtype not in SUMMED or arrays.is_sharded(x):
            bad |= any_bad([x], [old], infinities)
        else:
            axes = tuple(range(jnp.ndim(x)))
            kind = x.dtype if x.dtype.itemsize > 4 else jnp.float32
            squares = lax.dot_general(x, x, ((axes, axes), ((), ())), preferred_element_type=kind)
            bad |= any_bad([squares], (), infinities)
    return bad


class Spot(NamedTuple):
    """Where a program runs: its place, the iterations of the loops around it, and its line."""

    where: Where
    iteration: tuple[int, ...]
    around: Source


@dataclasses.dataclass(frozen=True)
class Search:
    """Looks for what made a bad number: a NaN, or an infinity, if those count."""

    infinities: bool

    def find(
        self,
        jaxpr: Jaxpr,
        args: Sequence[Any],
        spot: Spot,
        before: Sequence[Any] = (),
        only: int | None = None,
    ) -> Suspect | None:
        """Evaluate a program, and trace its bad results, or one of them, back to their causes.

        The first results are what an iteration carried on; what was bad `before` does not count.
        """
        values = _Values(self, jaxpr, args, spot)
        pairs = itertools.zip_longest(values.jaxpr.outvars, before)
        suspects = [
            values.trace_back(atom)
            for number, (atom, old) in enumerate(pairs)
            if only in (None, number) and any_bad([values.read(atom)], [old], self.infinities)
        ]
        # Something that was given bad numbers is less of a suspect than something that made them.
        return min(suspects, key=lambda s: (s.given is not None, s.eqn is None), default=None)

    def look_into(
        self, eqn: JaxprEqn, invals: Sequence[Any], spot: Spot, only: int
    ) -> Suspect | None:
        """Find the cause of a bad result inside an equation; what is given are its inputs."""
        construct, places = anatomy(eqn), programs_at(eqn, spot.where)
        number, found = 0, None
        if isinstance(construct, Call):
            found = self.find(construct.function, invals, spot, only=only)
        elif isinstance(construct, Cond):
            number = int(np.clip(invals[0], 0, len(places) - 1))
            branch, place = places[number]
            found = self.find(branch, invals[1:], spot._replace(where=place), only=only)
        elif isinstance(construct, (Scan, While)):
            number = len(places) - 1
            body, inside = places[number]
            got_worse = jax.jit(functools.partial(any_bad, infinities=self.infinities))
            for i, (args, carry, outs) in enumerate(_iterations(construct, invals)):
                if got_worse(outs, carry):
                    then = Spot(inside, (*spot.iteration, i), spot.around)
                    found = self.find(body, args, then, carry)
                    break
        if found is not None and isinstance(found.given, int):
            position = argument_position(construct, number, found.given)
            return dataclasses.replace(found, given=position)
        return found


class _Values:
    """All values of a program that has run, and what made them."""

    def __init__(self, search: Search, jaxpr: Jaxpr, args: Sequence[Any], spot: Spot) -> None:
        self.jaxpr, consts = open_jaxpr(jaxpr)
        self._search, self._spot = search, spot
        given = [*self.jaxpr.constvars, *self.jaxpr.invars]
        self._env: dict[Any, Any] = dict(zip(given, [*consts, *args], strict=True))
        self._made: dict[Any, tuple[JaxprEqn, Where]] = {}
        where = spot.where
        for number, eqn in enumerate(self.jaxpr.eqns):
            outs = tracing.bind(eqn, [self.read(atom) for atom in eqn.invars])
            self._env.update(zip(eqn.outvars, outs, strict=True))
            self._made.update(dict.fromkeys(eqn.outvars, (eqn, where.at(number))))
            where = where.after([eqn])

    def read(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._env[atom]

    def trace_back(self, atom: Any) -> Suspect:
        """Find the equation that a bad value comes from."""
        source, iteration = self._spot.around, self._spot.iteration
        path = tuple(map(str, self._spot.where.path))
        if not self._is_made(atom):
            nothing = Suspect(None, source, (), (), path, iteration)
            return self._with_cause(nothing, atom)
        earlier = atom
        while earlier is not None:
            atom = earlier
            earlier = self._worst(filter(self._is_made, self._made[atom][0].invars))
        eqn, place = self._made[atom]
        invals, source = [self.read(a) for a in eqn.invars], source.of(eqn)
        which = next(i for i, var in enumerate(eqn.outvars) if var is atom)
        inner = self._search.look_into(eqn, invals, Spot(place, iteration, source), which)
        if inner is None:
            outs = [self._env[var] for var in eqn.outvars]
            itself = Suspect(eqn, source, invals, outs, path, iteration)
            return self._with_cause(itself, self._worst(eqn.invars))
        if isinstance(inner.given, int):
            return dataclasses.replace(inner, given=self._given(eqn.invars[inner.given]))
        return inner

    def _with_cause(self, suspect: Suspect, atom: Any) -> Suspect:
        if atom is None:
            return suspect
        return dataclasses.replace(suspect, given=self._given(atom), value=self.read(atom))

    def _given(self, atom: Any) -> int | Maker:
        if isinstance(atom, Literal):
            return WRITTEN
        return CLOSED_OVER if atom in self.jaxpr.constvars else self.jaxpr.invars.index(atom)

    def _is_made(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self._made

    def _worst(self, atoms: Iterable[Any]) -> Any:
        """Of the values that are bad, one with a NaN, if there is one."""
        infinities = self._search.infinities
        bad = [atom for atom in atoms if any_bad([self.read(atom)], (), infinities)]
        return next((a for a in bad if any_bad([self.read(a)], (), False)), bad[0] if bad else None)


def _iterations(loop: Scan | While, invals: Sequence[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Run a loop again: what each iteration is given, what of that is carried, and its results."""
    run = _compiled(loop.body)
    if isinstance(loop, Scan):
        consts, carry, xs = split(invals, loop.consts, loop.carry)
        for i in range(loop.length):
            at = loop.length - 1 - i if loop.reverse else i
            args = [*consts, *carry, *(lax.index_in_dim(x, at, keepdims=False) for x in xs)]
            outs = run(*args)
            yield args, carry, outs
            carry = outs[: loop.carry]
    else:
        test = _compiled(loop.test)
        test_consts, consts, carry = split(invals, loop.test_consts, loop.body_consts)
        while np.any(test(*test_consts, *carry)[0]):
            args = [*consts, *carry]
            outs = run(*args)
            yield args, carry, outs
            carry = outs


def _compiled(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    jaxpr, consts = open_jaxpr(jaxpr)
    return jax.jit(lambda *args: jax.core.eval_jaxpr(jaxpr, consts, *args))  # type: ignore[no-any-return]
