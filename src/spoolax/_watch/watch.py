"""`watch`: tap a program that has no `log` calls in it: loops, primitives, the first NaN."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.primitives import Jaxpr, JaxprEqn
from .._listen.options import Options, names
from .._log.arguments import checked_data
from .._log.entry import Entry, Meta
from .._log.primitive import emit
from .._logdict.logdict import LogDict
from .._logdict.reductions import How
from .._tap.sinks import Sink, reports
from .._tap.tap import Tapped, checked_sink, print_entry
from .._walk.meaning import Body, State
from .._walk.places import Where
from .._warn import warn
from ..errors import (
    LogTypeError,
    LogValueError,
    NothingSelectedWarning,
    StopRun,
    UnsupportedError,
)
from .given import WholeProgram
from .instrument import Instrument, Instrumented
from .nan import Block, NanFound, blocks, explain
from .outline import Item, Source, address_matches, outline, reaches
from .suspects import any_bad, looks_bad

P = ParamSpec("P")
T = TypeVar("T")
Choice = bool | Callable[[list[Any]], Any]

WATCHED = "spoolax.watch"  # The tag of what `watch` logs.
NAN = "spoolax.nan"
TAGS = (WATCHED, NAN)


def watch(
    f: Callable[P, T],
    callback: Callable[[LogDict], Any] | None = None,
    *,
    carry: Choice = False,
    outputs: Choice = False,
    primitives: str | Iterable[str] = (),
    where: str | Iterable[str] = "**",
    nan: bool = False,
    inf: bool = True,
    interval: int | None = None,
    reduce: How | None = None,
    batch: bool = False,
    latency: float = 0.1,
    overflow: str = "wait",
) -> Tapped[P, T]:
    """Tap a function without `log` calls: its loops, its primitives, its first NaN.

    `spoolax.primitives(f, *args)` shows what there is to watch, with the addresses for `where`. By
    default, the carries of all loops are watched.

    Args:
        f: Any function of JAX code.
        callback: As in `tap`. Keys are addresses, such as "scan[0]/carry[1]".
        carry: Watch the carry of loops after every iteration: True for all of it, or a function
            that takes the list of its arrays, in pytree order, and returns a dictionary.
        outputs: Watch the outputs that scans stack, in the same way.
        primitives: Watch the results of primitives with these names or patterns: "cholesky".
        where: Watch only these addresses, and everything inside a loop at one of them. `*` matches
            anything in one part of an address, `**` any number of parts: "**/while[*]".
        nan: Report the first NaN or infinity, as `watch_nan` does; the callback gets a `NanFound`.
        inf: Whether infinities count as well.
        interval: Watch only every `interval`-th iteration.
        reduce: As in `tap`.
        batch: As in `tap`.
        latency: As in `tap`.
        overflow: As in `tap`.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     return jax.lax.fori_loop(0, 3, lambda i, x: 2 * x, x)
        >>> y = spoolax.watch(f, carry=lambda carry: {"x": carry[-1]})(1.0); spoolax.flush()
        scan[0]/x=2
        scan[0]/x=4
        scan[0]/x=8
    """
    spec = checked_spec(carry, outputs, primitives, where, nan, inf)
    sink = watch_sink(callback, spec, batch, latency, overflow)
    options = Options(tags=TAGS, interval=interval, reduce=reduce)
    return Tapped(f, options, sink, _Watched, spec)


def checked_spec(
    carry: Choice,
    outputs: Choice,
    primitives: str | Iterable[str],
    where: str | Iterable[str],
    nan: bool,
    inf: bool,
) -> Spec:
    """What to watch."""
    chosen = names(primitives, "primitives") or ()
    if not (carry or outputs or chosen or nan):
        carry = True
    for option, choice in (("carry", carry), ("outputs", outputs)):
        if not isinstance(choice, bool) and not callable(choice):
            raise LogTypeError(
                f"`{option}` must be a bool or a function of the list of arrays, not {choice!r}."
            )
    return Spec(carry, outputs, chosen, names(where, "where") or (), nan, inf)


def watch_sink(
    callback: Callable[[Any], Any] | None, spec: Spec, batch: bool, latency: float, overflow: str
) -> Sink:
    sink = checked_sink(callback or _print, batch, latency, overflow)
    sink.callback = _reporting(sink.callback)
    if batch and spec.nan:
        raise LogValueError(
            "`nan=True` makes a single report, so it cannot be combined with `batch`."
        )
    return sink


def watch_nan(
    f: Callable[P, T],
    callback: Callable[[NanFound], Any] | None = None,
    *,
    stop: bool = False,
    inf: bool = True,
) -> Tapped[P, T]:
    """Report the first NaN or infinity: which primitive made it, where, and in which iteration.

    The results of the function, and of every iteration of its loops, are checked, in the forward
    and the backward pass. A value that is bad only in between, such as the unused side of a
    `jnp.where`, does not count.

    Args:
        f: Any function of JAX code.
        callback: Called with a `NanFound`. Without one, the `spoolax` logger gets it as an error.
        stop: Stop the program there; the function raises `StopRun`.
        inf: Whether infinities count as well. An infinity that was already in the carry of a loop,
            such as the initial value of a running minimum, never does.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     return jax.lax.fori_loop(0, 9, lambda i, x: 1 / (x - 3.0) + 3.0 - i, x)
        >>> y = spoolax.watch_nan(f, print)(3.0); spoolax.flush()
        The first infinity came out of `div` at ..., in scan[0], iteration 0. ...
    """
    return watch(f, nan_callback(callback, stop), nan=True, inf=inf)


def nan_callback(callback: Callable[[NanFound], Any] | None, stop: bool) -> Callable[[Any], None]:
    """The callback of `watch` for somebody who wants to know of a NaN only."""
    if callback is not None and not callable(callback):
        raise LogTypeError(f"`callback` must be a function of a `NanFound`, not {callback!r}.")
    report = callback or _alarm

    def found(nan: Any) -> None:
        report(nan)
        if stop:
            raise StopRun(str(nan))

    functools.update_wrapper(found, report)
    return found


def _print(logs: LogDict) -> None:
    if isinstance(logs, NanFound):
        print(logs)
    else:
        print_entry(logs)


def _alarm(found: NanFound) -> None:
    reports.error("%s", found)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What to watch."""

    carry: Choice
    outputs: Choice
    primitives: tuple[str, ...]
    where: tuple[str, ...]
    nan: bool
    inf: bool

    def selects(self, address: str) -> bool:
        return any(address_matches(address, pattern) for pattern in self.where)

    def reaches(self, address: str) -> bool:
        """Say whether something in the loop at an address may be selected."""
        return self.selects(address) or any(reaches(pattern, address) for pattern in self.where)

    def names(self, eqn: JaxprEqn) -> bool:
        """Say whether a primitive is asked for, by its name or an address that ends with it."""
        asked = (name.rpartition("/")[2].partition("[")[0] for name in self.primitives)
        return any(fnmatch.fnmatchcase(str(eqn.primitive), name) for name in asked)

    def chooses(self, item: Item) -> bool:
        """Say whether a primitive is to be watched where it is."""
        return (
            self.names(item.eqn)
            and self.selects(item.address)
            and any("[" not in p or address_matches(item.address, p) for p in self.primitives)
        )

    def __str__(self) -> str:
        asked = ("carry", "outputs", "primitives", "where")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in asked)


def _reporting(callback: Callable[[Any], Any]) -> Callable[[LogDict], Any]:
    """Explain what is wrong before a callback gets to know of it."""

    def report(logs: LogDict) -> Any:
        origin = logs.origin
        if origin is None or NAN not in origin.tags:
            return callback(logs)
        ((number, given),) = logs.items()
        mask = np.asarray(logs.series(number).mask)
        lane = tuple(np.argwhere(mask)[0])  # Of several that went wrong at once, the first.
        arguments, *args = (jnp.asarray(x[lane]) for x in given)
        return callback(explain(blocks[int(number)], args, arguments, origin))

    functools.update_wrapper(report, callback)
    return report


class _Watched(Instrumented):
    """One way of calling a watched function."""

    def __init__(self, spec: Spec, *args: Any) -> None:
        super().__init__(*args)
        self._spec = spec

    def meaning(self, closed: Jaxpr) -> Instrument:
        program = WholeProgram(closed, self.argument_names, self._spec.selects)
        return Watching(self._spec, program, outline(closed, Where()))


class Watching(Instrument):
    """Puts in what `watch` was asked for."""

    def __init__(
        self, spec: Spec, program: WholeProgram, items: Sequence[Item], warns: bool = True
    ) -> None:
        self._spec, self._program = spec, program
        self._primitives: dict[tuple[int, ...], Item] = {}
        self._loops: dict[str, Item] = {}
        for item in items:
            if item.is_loop:
                self._loops[item.address] = item
            elif spec.chooses(item):
                self._primitives[item.where.spot] = item
        if warns:
            self._warn_of_nothing(items)

    def _warn_of_nothing(self, items: Sequence[Item]) -> None:
        spec = self._spec
        loops = list(filter(spec.reaches, self._loops))
        if spec.nan or self._primitives or (loops and (spec.carry or spec.outputs)):
            return
        there = sorted({str(item.eqn.primitive) for item in items if not item.is_loop})
        warn(
            f"Nothing is watched: {spec} selects nothing. The loops of this program are "
            f"{sorted(self._loops)}, and its primitives are {there}. "
            "`spoolax.primitives(f, *args)` shows where they are.",
            NothingSelectedWarning,
        )

    def start(self, args: Sequence[Any]) -> State:
        """Which arguments were bad from the start."""
        if not self._spec.nan:
            return ()
        return jnp.array([any_bad([x], (), self._spec.inf) for x in args], bool)

    def names(self, eqn: JaxprEqn) -> bool:
        return self._spec.names(eqn)

    def run(
        self, eqn: JaxprEqn, invals: Sequence[Any], state: State, where: Where
    ) -> tuple[list[Any], State]:
        outs, state = super().run(eqn, invals, state, where)
        item = self._primitives.get(where.spot)
        if item is not None:
            several = len(outs) > 1
            data = {
                f"{item.address}.{i}" if several else item.address: out
                for i, out in enumerate(outs)
            }
            self._emit(data, item.source)
        return outs, state

    def stepped(self, body: Body, state: State, where: Where) -> State:
        address = str(where)
        source = self._loops[address].source
        spec = self._spec
        parts = (
            ("carry", spec.carry, body.outs[: body.carried]),
            ("outputs", spec.outputs, body.outs[body.carried :]),
        )
        for part, choice, values in parts if spec.reaches(address) else ():
            data = {
                f"{address}/{name}": value
                for name, value in _chosen(choice, part, list(values), address).items()
            }
            self._emit({key: x for key, x in data.items() if spec.selects(key)}, source)
        return self.ended(body, state, where)

    def ended(self, body: Body, state: State, where: Where) -> State:
        """A body ran, or the whole program. If its results are bad, tell what it was given."""
        if not self._spec.nan or (where.path and not self._spec.selects(str(where))):
            return state
        source = self._loops[str(where)].source if where.path else Source()
        if any(isinstance(x, jax.Ref) for x in body.args):
            raise UnsupportedError(
                "The first NaN cannot be looked for in a program that changes arrays in place "
                "(`jax.Ref`): it is found by running an iteration again, with what it was given. "
                "Pass arrays and return what they become, or `watch` without `nan=True`."
            )
        carry = slice(body.first_carried, body.first_carried + body.carried)
        block = Block(body.jaxpr, where, source, carry, self._program, self._spec.inf)
        args, outs = (list(map(jnp.asarray, values)) for values in (body.args, body.outs))
        data = {str(block.number): [state, *args, *outs]}
        check = looks_bad if where.path else any_bad
        bad = check(outs, args[carry], self._spec.inf)
        emit((Entry(data, {}, bad, Meta((NAN,), alarm=block)),))
        return state

    def _emit(self, data: dict[str, Any], source: Source) -> None:
        if data:
            meta = Meta((WATCHED,), backward=source.backward, site=source.line)
            emit((Entry(data, {}, None, meta),))


def _chosen(choice: Choice, part: str, values: list[Any], address: str) -> dict[str, Any]:
    """What to log of the arrays of a loop, by name."""
    if isinstance(choice, bool):
        return {f"{part}[{i}]": x for i, x in enumerate(values)} if choice else {}
    if not values:
        return {}
    try:
        result = choice(values)
    except Exception as error:
        types = ", ".join(str(jax.typeof(x)) for x in values)
        error.add_note(
            f"This was raised by the function given as `{part}`, for the loop {address}, whose "
            f"{part} is [{types}]. Restrict `where` to the loops that it is meant for."
        )
        raise
    named = result if isinstance(result, dict) else {part: result}
    there = {name: value for name, value in named.items() if jax.tree.leaves(value)}
    return {
        name: jax.tree.map(jnp.asarray, value) for name, value in checked_data(there, "").items()
    }
