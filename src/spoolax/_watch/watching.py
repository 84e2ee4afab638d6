"""`watching` and `watching_nan`: `watch` for everything that is compiled in a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .._jax.primitives import Jaxpr, open_jaxpr
from .._listen.options import Options
from .._logdict.reductions import How
from .._tap.listening import Listening
from .._walk.counts import loops
from .._walk.places import Where
from .given import WholeProgram
from .instrument import Instrument, InstrumentTap
from .nan import NanFound
from .outline import outline
from .watch import TAGS, Choice, Spec, Watching, checked_spec, nan_callback, watch_sink


class watching(Listening):
    """Watch everything that runs in a `with` block: `watch` without a function.

    The addresses are those in each compiled function. `spoolax.watch` has the same options.

    Examples:
        >>> import spoolax, jax
        >>> @jax.jit
        ... def f(x):
        ...     return jax.lax.fori_loop(0, 3, lambda i, x: 2 * x, x)
        >>> with spoolax.watching(carry=lambda carry: {"x": carry[-1]}):
        ...     y = f(1.0)
        step=0  scan[0]/x=2
        step=1  scan[0]/x=4
        step=2  scan[0]/x=8
    """

    def __init__(
        self,
        callback: Callable[[Any], Any] | None = None,
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
    ) -> None:
        spec = checked_spec(carry, outputs, primitives, where, nan, inf)
        sink = watch_sink(callback, spec, batch, latency, overflow)
        about = spec, Options(tags=TAGS, interval=interval, reduce=reduce)
        super().__init__(_WatchTap, about, [sink])


def watching_nan(
    callback: Callable[[NanFound], Any] | None = None, *, stop: bool = False, inf: bool = True
) -> watching:
    """Report the first NaN or infinity of what runs in a `with` block, as `watch_nan` does.

    Examples:
        >>> import spoolax, jax
        >>> @jax.jit
        ... def f(x):
        ...     return jax.lax.fori_loop(0, 9, lambda i, x: 1 / (x - 3.0) + 3.0 - i, x)
        >>> with spoolax.watching_nan(print):
        ...     y = f(3.0)
        The first infinity came out of `div` at ..., in scan[0], iteration 0. ...
    """
    return watching(nan_callback(callback, stop), nan=True, inf=inf)


class _WatchTap(InstrumentTap):
    """What watches the programs of a block."""

    def __init__(self, about: tuple[Spec, Options]) -> None:
        self._spec, options = about
        super().__init__(options)

    def wants(self, jaxpr: Jaxpr) -> bool:
        if self._spec.nan:  # Not in single operations, which Python code consists of.
            return len(open_jaxpr(jaxpr)[0].eqns) > 1 or bool(loops.within(jaxpr))
        return bool(loops.within(jaxpr)) or bool(self._spec.primitives)

    def meaning(self, closed: Jaxpr) -> Instrument:
        def argument_names() -> list[str]:
            return [f"argument {i}" for i in range(len(closed.in_avals))]

        program = WholeProgram(closed, argument_names, self._spec.selects)
        return Watching(self._spec, program, outline(closed, Where()), warns=False)
