"""Progress bars for compiled programs: `spoolax.progress`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, ParamSpec, TextIO, TypeVar, overload

import jax.numpy as jnp
import numpy as np

from .._jax import tracing
from .._jax.primitives import Jaxpr
from .._listen.callables import name_of
from .._listen.options import Options, names
from .._log.entry import Entry, Meta
from .._log.primitive import emit
from .._logdict.logdict import LogDict
from .._tap.host import host
from .._tap.listening import Listening
from .._tap.tap import Tapped, checked_sink
from .._walk.counts import loops
from .._walk.meaning import Body, State
from .._walk.places import Where
from .._warn import warn
from ..errors import LogTypeError, LogValueError, NothingSelectedWarning
from .bar import FRACTION, Bar
from .instrument import Instrument, Instrumented, InstrumentTap
from .outline import address_matches

P = ParamSpec("P")
T = TypeVar("T")

TICK = "spoolax.progress"  # The tag of the entries.
REFRESH = 0.25  # Seconds between updates.
SLOW = 0.3  # Seconds. An inner loop that takes less is not shown.
END = "end"
BROKEN_OFF = "broken off"
PERCENT = "%"


@overload
def progress(
    f: None = None,
    *,
    where: str | Iterable[str] = "**",
    depth: int = 2,
    fraction: Callable[[list[Any]], Any] | None = None,
    description: str = "",
    file: TextIO | None = None,
) -> ProgressBlock: ...


@overload
def progress(
    f: Callable[P, T],
    *,
    where: str | Iterable[str] = "**",
    depth: int = 2,
    fraction: Callable[[list[Any]], Any] | None = None,
    description: str = "",
    file: TextIO | None = None,
) -> Tapped[P, T]: ...


def progress(
    f: Callable[P, T] | None = None,
    *,
    where: str | Iterable[str] = "**",
    depth: int = 2,
    fraction: Callable[[list[Any]], Any] | None = None,
    description: str = "",
    file: TextIO | None = None,
) -> Tapped[P, T] | ProgressBlock:
    """Show progress bars for the loops of a function, without changing the function.

    Without a function, it is for a `with` block, and shows those of all compiled functions that run
    in it, by whomever they are compiled, if they take long enough to be seen.

    A scan has a bar with a total, and a while loop a counter. A loop inside another one has a bar
    below it, if it takes long enough to be seen. Under `vmap` all lanes share one bar. Bars are
    updated a few times per second, however fast the loop is. Needs tqdm (the extra `progress`).

    Args:
        f: Any function of JAX code, jitted or not.
        where: Only the loops at these addresses, as `spoolax.primitives(f, ...)` shows them.
        depth: How many levels of nested loops to show.
        fraction: For while loops: a function of the list of arrays in the carry, in the order of
            `jax.tree.leaves` (dictionaries are sorted by key), that returns how much is done,
            between 0 and 1. The slowest lane counts.
        description: What to write in front of the bars, by default the name of the function.
        file: Where to print, by default standard error.

    Examples:
        >>> import spoolax, jax, sys
        >>> def f(x):
        ...     return jax.lax.fori_loop(0, 1000, lambda i, x: x + 1.0, x)
        >>> y = spoolax.progress(f, file=sys.stdout)(0.0); spoolax.flush()
        f scan[0]: 100%|...| 1000/1000 [00:00<00:00, ...]

        >>> with spoolax.progress(file=sys.stdout):
        ...     y = jax.jit(f)(0.0)  # This is over too soon to be seen.
    """
    if fraction is not None and not callable(fraction):
        raise LogTypeError(f"`fraction` must be a function of the carry, not {fraction!r}.")
    if not isinstance(depth, int) or depth < 1:
        raise LogValueError(f"`depth` must be a positive integer, not {depth!r}.")
    about = (names(where, "where") or (), depth, fraction)
    if f is None:
        return ProgressBlock(about, Bars(description, file, patient=True))
    bars = Bars(description or name_of(f), file)
    sink = checked_sink(bars, True, REFRESH, "wait")
    options = Options(tags=TICK)
    return Progressing(f, options, sink, _Ticked, *about)


class ProgressBlock(Listening):
    """A block in which the loops of programs have bars."""

    def __init__(self, about: Any, bars: Bars) -> None:
        self._bars = bars
        super().__init__(_TickTap, about, [checked_sink(bars, True, REFRESH, "wait")])

    def _ended(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._bars.close()  # Those of programs that have failed.
        super()._ended(kind, error, trace)


class _TickTap(InstrumentTap):
    """What puts ticks into the programs of a block."""

    def __init__(self, about: Any) -> None:
        super().__init__(Options(tags=TICK))
        self._about = about

    def wants(self, jaxpr: Jaxpr) -> bool:
        return bool(loops.within(jaxpr))

    def meaning(self, closed: Jaxpr) -> Instrument:
        where, depth, fraction = self._about
        return _Ticking(where, depth, fraction, warns=False)


class Progressing(Tapped[P, T]):
    """A function with progress bars."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            out = super().__call__(*args, **kwargs)
            if tracing.trace_is_clean() and not host.is_worker():
                host.wait()  # So that what is printed next does not end up among the bars.
            return out
        except BaseException:
            host.post(self._sink, LogDict({BROKEN_OFF: np.int32(0)}))  # After what was queued.
            raise


class _Ticked(Instrumented):
    """One way of calling a function with progress bars."""

    def __init__(
        self,
        where: tuple[str, ...],
        depth: int,
        fraction: Callable[[list[Any]], Any] | None,
        *args: Any,
    ) -> None:
        super().__init__(*args)
        self._about = (where, depth, fraction)

    def meaning(self, closed: Jaxpr) -> Instrument:
        return _Ticking(*self._about)


class _Ticking(Instrument):
    """Logs the end of every iteration, and the end of the program."""

    def __init__(
        self,
        where: tuple[str, ...],
        depth: int,
        fraction: Callable[[list[Any]], Any] | None,
        warns: bool = True,
    ) -> None:
        self._where, self._depth, self._fraction = where, depth, fraction
        self._shown = not warns

    def entered(self, state: State, where: Where) -> State:
        if len(where.path) == 1 and self._shows(where):
            _tick(f"{where} {_length(where, self._fraction)}", jnp.int32(0))
        return state

    def stepped(self, body: Body, state: State, where: Where) -> State:
        if len(where.path) <= self._depth and self._shows(where):
            length, value = _length(where, self._fraction), jnp.int32(0)
            if length == PERCENT and self._fraction is not None:
                value = self._fraction(list(body.outs[: body.carried]))
                value = jnp.asarray(value, jnp.float32)
            # The key is all that the callback knows about the loop.
            _tick(f"{where} {length}", value)
            self._shown = True
        return state

    def _shows(self, where: Where) -> bool:
        return any(address_matches(str(where), pattern) for pattern in self._where)

    def ended(self, body: Body, state: State, where: Where) -> State:
        _tick(END, jnp.int32(0))
        if not self._shown:
            warn(
                "There is no progress to show: the function contains no JAX loop, or `where` "
                "selects none. `spoolax.primitives(f, *args)` lists them.",
                NothingSelectedWarning,
            )
        return state


def _length(where: Where, fraction: Any) -> str:
    """How a loop is counted: by its length, not at all, or in percent."""
    length = where.path[-1].length
    if length is None:
        return "" if fraction is None else PERCENT
    return str(length)


def _tick(key: str, value: Any) -> None:
    emit((Entry({key: value}, {}, None, Meta((TICK,))),))


class Bars:
    """The callback of a program with progress bars: it shows how far the loops are."""

    def __init__(
        self,
        description: str,
        file: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
        patient: bool = False,
    ) -> None:
        self._description, self._file, self._clock = description, file, clock
        self._patient = patient  # With loops that are in no other, too.
        self._bars: dict[str, Bar] = {}
        self._seen: dict[str, _Execution] = {}

    def __call__(self, logs: LogDict) -> None:
        for key, values in logs.items():
            if key == END:
                self._finish(list(self._bars))
            if key in (END, BROKEN_OFF):
                self.close()
                continue
            assert logs.origin is not None
            address, _, length = key.rpartition(" ")
            if not logs.origin.path:
                self._update(address, (), 0, length)  # The loop begins.
                continue
            done: float = int(logs.origin.iteration[-1][-1]) + 1
            postfix = ""
            if length == PERCENT:
                postfix = f"{done} iterations"
                done = round(100 * _slowest(values[-1], logs.series(key).mask[-1]), 1)
            outer = tuple(logs.origin.iteration[-1][:-1].tolist())
            self._update(address, outer, done, length, postfix)

    def close(self) -> None:
        """Leave the bars as they are."""
        for bar in reversed(self._bars.values()):
            bar.close()
        self._bars, self._seen = {}, {}

    def _update(
        self, address: str, outer: Sequence[int], done: float, length: str, postfix: str = ""
    ) -> None:
        now = self._clock()
        last = self._seen.get(address)
        if last is None:
            this = _Execution(outer, now, now, 0.0)
        elif last.outer != outer:  # It began after the previous one was last seen.
            this = _Execution(outer, last.latest, now, last.latest - last.began)
        else:
            this = last._replace(latest=now)
        self._seen[address] = this
        again = last is not None and last.outer != outer
        bar = self._bars.get(address)
        if bar is None:
            # A fast loop would only flicker.
            if (outer or self._patient) and max(now - this.began, this.before) < SLOW:
                return
            # Loops at its level, and inside of those, are over.
            level = address.count("/")
            self._finish([a for a in self._bars if a.count("/") >= level])
            label = f"└ {address}" if level else f"{self._description} {address}".lstrip()
            form = FRACTION if length == PERCENT else None
            bar = Bar(_total(length), label, level, self._file, leave=not level, form=form)
            self._bars[address] = bar
        elif again and outer:
            bar.restart(now - this.began)
        bar.update(done, postfix)

    def _finish(self, addresses: Sequence[str]) -> None:
        """Leave the bars of loops that are over."""
        for address in sorted(addresses, key=lambda a: -a.count("/")):  # Inner ones first.
            self._bars.pop(address).finish()


class _Execution(NamedTuple):
    """One execution of a loop: in which outer iterations, when it began, and when last seen."""

    outer: Sequence[int]
    began: float
    latest: float
    before: float  # How long the previous execution took.


def _total(length: str) -> int | None:
    if length == PERCENT:
        return 100
    return int(length) if length else None


def _slowest(fractions: Any, mask: Any) -> float:
    """The fraction that the slowest lane still running has done."""
    running = np.asarray(fractions)[np.asarray(mask)]
    return float(np.nan_to_num(np.clip(running, 0, 1)).min()) if running.size else 1.0
