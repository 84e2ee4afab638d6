"""`tap`: run a function, and hand what it logs to a callback while it runs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from .._listen.drivers import is_driver, listening_around
from .._listen.options import Options
from .._listen.programs import programs_of
from .._logdict.logdict import LogDict
from .._logdict.reductions import How
from .._logdict.text import as_line
from ..errors import LogTypeError, LogValueError
from .sinks import Sink
from .stream import Tap
from .streamed import Streamed

P = ParamSpec("P")
T = TypeVar("T")


def tap(
    f: Callable[P, T],
    callback: Callable[[LogDict], Any] | None = None,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: How | None = None,
    prefix: str = "",
    *,
    batch: bool = False,
    latency: float = 0.1,
    overflow: str = "wait",
) -> Tapped[P, T]:
    """Make a function that passes what it logs to a callback while it runs.

    The callback is called once for every executed `log` call, in program order, on spoolax's own
    thread, where it may call JAX. It gets a `LogDict` of NumPy values, whose `origin` says where
    they come from. Loops send their entries in chunks; `benchmarks/tap.py` compares the cost with
    that of `jax.lax.scan` outputs. `spoolax.flush()` waits until everything has been delivered.

    Args:
        f: Any function of JAX code, jitted or not. `tap` also works inside `jit`, `vmap`, ...
        callback: What to call. Without one, entries are printed.
        argnames: Stream only these keys (names or glob patterns).
        tags: Stream only `log` calls with one of these tags.
        keep_logs: Leave the `log` calls in, for an outer `spool` or `tap`.
        interval: Stream only every `interval`-th iteration of loops, starting with the first.
        reduce: Fold the entries of each key into one, while the loop runs, as in `spool`. Together
            with `interval`, fold each window of that many iterations.
        prefix: A prefix for every key.
        batch: Pass all entries of a chunk at once, with a leading axis.
        latency: How long, in seconds, an entry may wait before it is sent. A loop whose iterations
            take longer sends each of them by itself.
        overflow: What to do when the callback cannot keep up and the queue is full (64 MB, or
            1048576 entries): "wait" makes the program wait, "drop" drops entries and counts them.

    Examples:
        >>> import spoolax, jax
        >>> def solve(x):
        ...     def step(x, i):
        ...         x = 0.5 * (x + 2 / x)
        ...         spoolax.log({"x": x}, step=i)
        ...         return x, None
        ...     return jax.lax.scan(step, x, jax.numpy.arange(3))[0]
        >>> y = spoolax.tap(solve)(1.0); spoolax.flush()
        step=0  x=1.5
        step=1  x=1.416667
        step=2  x=1.414216
    """
    options = Options(
        argnames=argnames,
        tags=tags,
        keep_logs=keep_logs,
        interval=interval,
        reduce=reduce,
        prefix=prefix,
    )
    return Tapped(f, options, checked_sink(callback or print_entry, batch, latency, overflow))


def checked_sink(
    callback: Callable[[LogDict], Any], batch: bool, latency: float, overflow: str
) -> Sink:
    """Make a sink from checked options."""
    if not callable(callback):
        raise LogTypeError(
            f"The second argument is the callback, but {callback!r} cannot be called. Give the "
            "others by name: `spoolax.tap(f, argnames=...)`."
        )
    if not isinstance(latency, (int, float)) or not latency >= 0:
        raise LogValueError(f"`latency` is a number of seconds, not {latency!r}.")
    if overflow not in ("wait", "drop"):
        raise LogValueError(
            f"`overflow={overflow!r}` is not known. Use 'wait' to make the program wait for a slow "
            "callback, or 'drop' to drop entries."
        )
    return Sink(callback, batch, latency, overflow)


def print_entry(logs: LogDict) -> None:
    """Print what was logged on one line: what `tap` does without a callback."""
    print(as_line(logs))


class Tapped(Generic[P, T]):
    """A function whose logs go to a callback. `dropped` counts the entries that were dropped."""

    def __init__(
        self,
        f: Callable[P, T],
        options: Options,
        sink: Sink,
        kind: Callable[..., Streamed] | None = None,
        *about: Any,
    ) -> None:
        self._sink = sink
        self._tap = Tap(options, sink)
        make = functools.partial(kind or Streamed, *about, Tap(options, None))
        self._kind = (kind or Streamed, options, *about), make
        self._bind(f)

    def _bind(self, f: Callable[..., Any]) -> None:
        self._programs = programs_of(f, *self._kind)
        self._source = self._programs.source()  # They refer to it weakly.
        functools.update_wrapper(self, f, updated=())

    def _around(self, run: Callable[..., Any]) -> Tapped[Any, Any]:
        """Tap a program that our function, a driver, runs itself."""
        other = copy.copy(self)
        other._bind(run)
        return other

    @property
    def dropped(self) -> int:
        """How many entries were dropped because the callback was too slow."""
        return self._sink.dropped

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if is_driver(self._source):
            with listening_around(self._around):
                return self._source(*args, **kwargs)  # type: ignore[no-any-return]
        program, leaves = self._programs.find(args, kwargs)
        return program.call(leaves, self._tap)  # type: ignore[no-any-return]
