"""Find out which primitive made the first NaN or infinity.

While the program runs, only the results of every iteration are checked. The first time they are
bad, the inputs of that iteration are sent to the host, which runs it again primitive by primitive.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import arrays
from .._jax.primitives import Jaxpr, open_jaxpr, split
from .._log.entry import Entry
from .._logdict.logdict import LogDict
from .._logdict.origin import Origin
from .._walk.counts import logs, shard_maps
from .._walk.interpret import interpret
from .._walk.meaning import Silent
from .._walk.places import Where
from .given import WholeProgram, maker_of
from .outline import Source
from .suspects import Search, Spot, Suspect, any_bad, may_be_bad


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

    primitive: str  # "" if the bad value was there from the start.
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
    carry: slice  # Which of its arguments are carried.
    program: WholeProgram
    infinities: bool  # Whether they count.
    number: int = dataclasses.field(default_factory=itertools.count().__next__)

    def __post_init__(self) -> None:
        blocks[self.number] = self

    @property
    def holds_up(self) -> bool:
        """Not if running it again takes the devices on which the program would wait."""
        return not shard_maps.within(self.program.jaxpr)

    def confirmed(self, entry: Entry) -> Entry:
        """Of an entry with its arguments and results, keep the former if the latter are bad."""
        ((key, values),) = entry.data.items()
        before, outs = split(values, 1 + len(open_jaxpr(self.jaxpr)[0].invars))
        lanes = len(entry.meta.times) + len(entry.meta.lanes)
        bad = any_bad(outs, before[1:][self.carry], self.infinities, lanes)
        # What did not happen at all is zero, except in lanes that were not meant.
        return entry.replace(data={key: before}, mask=entry.mask & bad if lanes else bad)

    def __repr__(self) -> str:
        return f"Block({self.number})"  # The jaxpr would fill pages.


# The program that may send something about a block keeps it alive.
blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


def explain(block: Block, args: Sequence[Any], arguments: Any, origin: Origin) -> NanFound:
    """Run a block again, and tell what went wrong in it.

    `arguments` says which of the arguments of the whole program were bad from the start.
    """
    jaxpr = block.jaxpr
    if logs.within(jaxpr):  # What it logs has been logged.
        jaxpr = jax.make_jaxpr(
            lambda *args: interpret(block.jaxpr, args, (), Silent(), block.where)[0]
        )(*args)
    spot = Spot(block.where, tuple(origin.iteration), block.source)
    suspect = Search(block.infinities).find(jaxpr, args, spot, args[block.carry])
    if suspect is None:
        found = NanFound()
        found.primitive, found.backward, found._origin = "", False, origin
        found.message = (
            f"A NaN or infinity first appeared{_in_loop(origin.path, origin.iteration)}, but not "
            "when it was run again one primitive at a time: look for a result that depends on how "
            "operations are fused."
        )
        return found
    if suspect.given is None:
        return _made(suspect, origin)
    return _given(suspect, block, arguments, origin)


def _made(suspect: Suspect, origin: Origin) -> NanFound:
    """Tell which primitive made the first bad number."""
    assert suspect.eqn is not None
    kind, name = _kind(suspect.outputs), str(suspect.eqn.primitive)
    given = "; ".join(_range(x) for x in suspect.inputs if hasattr(x, "dtype")) or "nothing"
    bad = next(x for x in suspect.outputs if may_be_bad(x) and not jnp.isfinite(x).all())
    found = NanFound({name: np.asarray(bad)})
    found.primitive, found.backward = name, suspect.source.backward
    found.message = (
        f"The first {kind} came out of {_place(suspect)}. It was given {given}.{_hint(kind)}"
    )
    found._origin = _at(suspect.path, suspect.iteration, suspect.source.line, origin)
    return found


def _given(suspect: Suspect, block: Block, arguments: Any, origin: Origin) -> NanFound:
    """Tell where the first bad number comes from, which was there before."""
    kind, maker, since = _kind([suspect.value]), suspect.given, "from the start"
    assert maker is not None
    if isinstance(maker, int):
        maker = maker_of(block.program, block.where, maker)
        since = f"before {origin.path} began" if origin.path else since
    found = NanFound({maker.name: np.asarray(jnp.asarray(suspect.value))})
    found.primitive = maker.name if maker.is_primitive else ""
    found.backward = maker.source.backward
    names = itertools.compress(block.program.argument_names(), arguments)
    bad = ", ".join(f"`{name}`" for name in names) if maker.is_primitive else ""
    hint = f" Among the arguments, {bad} had some from the start." if bad else ""
    met = f"{_place(suspect)}, was given " if suspect.eqn else f"It is a result{_place(suspect)}: "
    found.message = (
        f"The first {kind} was there {since}: {maker.words}. {met}{_range(suspect.value)}."
        f"{hint}{_hint(kind)}"
    )
    path = maker.path if maker.is_primitive else suspect.path
    line = maker.source.line or suspect.source.line
    found._origin = _at(path, suspect.iteration[: len(path)], line, origin)
    return found


def _at(path: Sequence[str], iteration: tuple[int, ...], line: str, origin: Origin) -> Origin:
    return dataclasses.replace(
        origin, path="/".join(path), iteration=iteration, lanes=(), tags=(), site=line
    )


def _place(suspect: Suspect) -> str:
    """Name the primitive that had something to do with it, if one had, and where it ran."""
    line, backward = suspect.source
    name = "" if suspect.eqn is None else f"`{suspect.eqn.primitive}`"
    name += f" at {line}" if line else ""
    where = _in_loop("/".join(suspect.path), suspect.iteration)
    return f"{name}{where}{', in the backward pass' if backward else ''}"


def _in_loop(path: str, iteration: Sequence[int]) -> str:
    return f", in {path}, iteration {'/'.join(map(str, iteration))}" if path else ""


def _kind(values: Sequence[Any]) -> str:
    return "NaN" if any(may_be_bad(x) and jnp.isnan(x).any() for x in values) else "infinity"


def _hint(kind: str) -> str:
    return "" if kind == "NaN" else " If it is meant to be there: `inf=False` ignores infinities."


def _range(x: Any) -> str:
    text = arrays.type_text(x)
    if not jnp.size(x) or arrays.is_key(x):
        return text
    if jnp.size(x) == 1:
        return f"{text} = {np.asarray(x).reshape(-1)[0]:g}"
    if not may_be_bad(x) or jnp.iscomplexobj(x):
        return text
    x = np.asarray(x, np.float64)
    finite = x[np.isfinite(x)]
    parts = [f" from {finite.min():g} to {finite.max():g}"] if finite.size else []
    counts = {"NaN": np.isnan(x).sum(), "infinite": np.isinf(x).sum()}
    parts += [f" {count} {kind}" for kind, count in counts.items() if count]
    return f"{text}{','.join(parts)}"
