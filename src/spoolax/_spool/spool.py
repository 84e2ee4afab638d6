"""`spool`: run a function and return what it logged along with its output."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from .._jax.primitives import Jaxpr
from .._jax.processes import shared
from .._listen.drivers import is_driver, listening_around
from .._listen.keys import keys_of
from .._listen.programs import Program, RetryError, programs_of
from .._listen.silence import warn_of_silence
from .._listen.windows import KeyEntry
from .._log.entry import entries
from .._logdict.logdict import LogDict, joined
from .._logdict.reductions import How
from .._walk.interpret import interpret
from .._walk.places import Where
from .._walk.repetitions import once
from .._walk.survey import survey
from .assemble import assemble, only_real, with_spilled
from .collect import Collecting, stamped
from .everywhere import spilled_everywhere
from .plan import Plan, SpoolOptions, make_plan
from .spilled import Spilled

P = ParamSpec("P")
T = TypeVar("T")


def spool(
    f: Callable[P, T],
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: How | None = None,
    prefix: str = "",
    capacity: int | None = None,
    overflow: str = "last",
) -> Callable[P, tuple[T, LogDict]]:
    """Make a function that returns `(output, logs)`.

    Like `jax.jit(f)`, it is compiled once per shape of its arguments. Arguments that are not arrays
    or numbers (strings, functions, `True`, ...) are static, and so are the static arguments of `f`
    if `f` is itself jitted. To make a number static, bind it with `functools.partial`.

    Args:
        f: Any function of JAX code, jitted or not.
        argnames: Collect only these keys (names or glob patterns).
        tags: Collect only `log` calls with one of these tags.
        keep_logs: Leave the `log` calls in, for an outer `spool` or `tap`.
        interval: Keep every `interval`-th iteration of loops, starting with the first.
        reduce: Fold the entries of each key into one, while the loop runs: "mean", "sum", "min",
            "max", "std", "first", "last", or a function of two values. Together with `interval`,
            fold each window of that many iterations. A folded entry has the step of its last
            entry (with "first", of its first).
        prefix: A prefix for every key.
        capacity: Keep at most this many entries of a key that is logged in a loop. A while loop
            inside a trace needs it, unless `reduce` folds its entries.
        overflow: Which entries to keep if there are more: the "last", the "first", or an even
            spread ("thin").

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     spoolax.log({"x": x})
        ...     return 2 * x
        >>> spoolax.spool(f)(1.0) == (2.0, {"x": 1.0})
        True

        A key that is logged in a loop has a leading axis:

        >>> def collatz(n):
        ...     def body(n):
        ...         n = jax.numpy.where(n % 2 == 0, n // 2, 3 * n + 1)
        ...         spoolax.log({"n": n})
        ...         return n
        ...     return jax.lax.while_loop(lambda n: n > 1, body, n)
        >>> one, logs = spoolax.spool(collatz)(6)
        >>> logs["n"].tolist()
        [3, 10, 5, 16, 8, 4, 2, 1]
    """
    options = SpoolOptions(
        argnames=argnames,
        tags=tags,
        keep_logs=keep_logs,
        interval=interval,
        reduce=reduce,
        prefix=prefix,
        capacity=capacity,
        overflow=overflow,
    )
    return _spooled_driver(f, options) if is_driver(f) else _spooled(f, options)


def _spooled(f: Callable[P, T], options: SpoolOptions) -> Callable[P, tuple[T, LogDict]]:
    programs = programs_of(f, options, functools.partial(_Spooled, options))
    source = programs.source()  # They refer to it weakly.

    @functools.wraps(source)
    def spooled(*args: P.args, **kwargs: P.kwargs) -> tuple[T, LogDict]:
        program, leaves = programs.find(args, kwargs)
        return program.call(leaves)  # type: ignore[no-any-return]

    return spooled


def _spooled_driver(f: Callable[P, T], options: SpoolOptions) -> Callable[P, tuple[T, LogDict]]:
    """Spool the programs that a function runs, instead of the function itself."""

    @functools.wraps(f)
    def spooled(*args: P.args, **kwargs: P.kwargs) -> tuple[T, LogDict]:
        kept: list[LogDict] = []
        with listening_around(lambda run: _collecting(run, options, kept)):
            out = f(*args, **kwargs)
        return out, _all(kept)

    return spooled


def _collecting(
    run: Callable[..., Any], options: SpoolOptions, kept: list[LogDict]
) -> Callable[..., Any]:
    """A program that returns its output alone, and keeps what it logs in a list."""
    spooled = _spooled(run, options)

    @functools.wraps(run, updated=())
    def collected(*args: Any) -> Any:
        out, logs = spooled(*args)
        kept.append(logs)
        return out

    return collected


def _all(kept: list[LogDict]) -> LogDict:
    with jax.enable_x64(True):  # They may come from programs with other settings than ours.
        return joined(kept)


class _Spooled(Program):
    """One way of calling a spooled function: the same structure and static arguments."""

    def __init__(self, options: SpoolOptions, *args: Any) -> None:
        super().__init__(*args)
        self._options = options
        self._lock = threading.Lock()
        self._by_host: bool | None = None  # Whether entries go by way of the host. None: not known.
        self._spilled = Spilled()
        self._plans: dict[str, Plan] = {}
        self._spilling: dict[str, KeyEntry] = {}  # The types of what spills.

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], LogDict]:
        options = self._options
        found, repeated = once(survey(closed))
        warn_of_silence(self.function, closed, (nodes for nodes, _ in found), options)
        if any(entry.meta.backward for nodes, _ in found for entry in entries(nodes)):
            found = [(stamped(nodes, _flags), where) for nodes, where in found]
        plans = {
            name: make_plan(key, options, self.traced)
            for name, key in keys_of(found, options).items()
        }
        meaning = Collecting(plans, options, repeated, self._spilled)
        if spilling := meaning.spilling():
            if not self._by_host:
                raise _NeedsHostError
            # Other shapes may have other keys.
            self._plans, self._spilling = {**self._plans, **plans}, {**self._spilling, **spilling}
        outs, state, nodes = interpret(closed, args, meaning.start(), meaning, Where())
        return outs, assemble(plans, nodes, meaning.finish(state), options.prefix)

    def call(self, leaves: Sequence[Any]) -> Any:
        if self._by_host is False:
            try:
                out, logs = self.run(leaves)
                return self.applied(out), (self._finished(logs) if logs._valid else logs)
            except _NeedsHostError:
                pass
        # Entries come to the host as the program runs, so runs must not overlap.
        with self._lock:
            if not self._by_host:
                try:
                    out, logs = self.run(leaves)
                    self._by_host = False
                    return self.applied(out), self._finished(logs)
                except _NeedsHostError:
                    self._by_host = True
            return self._call_by_host(leaves)

    def _finished(self, logs: LogDict) -> LogDict:
        return logs if self.traced else only_real(logs)

    def _call_by_host(self, leaves: Sequence[Any]) -> Any:
        self._spilled.begin()
        interrupting = self._spilled.interruptible
        try:
            with interrupting:
                out, logs = self.run(leaves)
                interrupting.wait_for((out, logs))
        except jax.errors.JaxRuntimeError:
            if not interrupting.asked():
                raise
            raise KeyboardInterrupt from None
        spilled, interrupted = self._spilled.rows, interrupting.asked()
        if others := shared(jax.tree.leaves(logs)):
            mine = self._spilling, interrupted
            spilled, interrupted = spilled_everywhere(spilled, *mine, others[0])
        if interrupted:
            raise KeyboardInterrupt
        prefix = self._options.prefix
        spilled = {prefix + key: rows for key, rows in spilled.items()}
        plans = {prefix + key: plan for key, plan in self._plans.items()}
        return self.applied(out), only_real(with_spilled(logs, spilled, plans))


def _flags(value: bool, shape: tuple[int, ...]) -> Any:
    del value  # Only the type matters.
    return jax.ShapeDtypeStruct(shape, bool)


class _NeedsHostError(RetryError):
    """A while loop logs, so the program has to hand entries to the host as it runs."""
