"""`spool`: run a function and return what it logged along with its output."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from .._jax.primitives import Jaxpr
from .._listen.drivers import around, collecting, is_running_programs, joined
from .._listen.fold import Fold, Row, State
from .._listen.plan import (
    Options,
    Plan,
    is_heard,
    left_over,
    make_plans,
    names,
    restrict,
    warn_of_nothing,
)
from .._listen.programs import Program, RetryError, programs_of
from .._log.entry import Nodes
from .._log.primitive import emit
from .._logdict.logdict import LogDict
from .._logdict.reductions import How
from .._walk.interpret import Meaning, Where, interpret, repetitions, survey, without
from .assemble import assemble, happened, with_spilled

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
    options = Options(
        names(argnames, "argnames"),
        names(tags, "tags"),
        keep_logs,
        interval,
        reduce,
        prefix,
        capacity,
        overflow,
    )
    if is_running_programs(f):
        again = functools.partial(
            spool,
            argnames=argnames,
            tags=tags,
            keep_logs=keep_logs,
            interval=interval,
            reduce=reduce,
            prefix=prefix,
            capacity=capacity,
            overflow=overflow,
        )
        return _spooled_around(f, again)
    programs = programs_of(f, options, functools.partial(_Spooled, options))
    source = programs.source()  # They refer to it weakly.

    @functools.wraps(source)
    def spooled(*args: P.args, **kwargs: P.kwargs) -> tuple[T, LogDict]:
        program, leaves = programs.find(args, kwargs)
        return program.call(leaves)  # type: ignore[no-any-return]

    return spooled


def _spooled_around(f: Callable[P, T], again: Callable[..., Any]) -> Callable[P, tuple[T, LogDict]]:
    """Spool the programs that a function runs, instead of the function itself."""

    @functools.wraps(f)
    def spooled(*args: P.args, **kwargs: P.kwargs) -> tuple[T, LogDict]:
        kept: list[LogDict] = []
        with around(lambda run: collecting(run, again, kept)):
            out = f(*args, **kwargs)
        return out, joined(kept)

    return spooled


class _Spooled(Program):
    """One way of calling a spooled function: the same structure and static arguments."""

    def __init__(self, options: Options, *args: Any) -> None:
        super().__init__(*args)
        self._options = options
        self._lock = threading.Lock()
        self._by_host: bool | None = None  # Whether entries go by way of the host. None: not known.
        self._spilled: dict[str, list[Row]] = {}
        self._plans: dict[str, Plan] = {}

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], LogDict]:
        options = self._options
        found = survey(closed, Where())
        repeated = repetitions(found)
        once = [(without(nodes, where, repeated), where) for nodes, where, _ in found]
        warn_of_nothing((nodes for nodes, _ in once), options)
        plans = make_plans(once, options, self.traced)
        if any(plan.overflow == "spill" for plan in plans.values()):
            if not self._by_host:
                raise _NeedsHostError
            self._plans = {**self._plans, **plans}  # Other shapes may have other keys.
        fold = Fold(plans, options, self._receive)
        meaning = _Collecting(options, plans, fold, repeated)
        outs, state, nodes = interpret(closed, args, fold.start(), meaning, Where())
        return outs, assemble(plans, nodes, fold.finish(state), options.prefix)

    def call(self, leaves: Sequence[Any]) -> Any:
        if self._by_host is False:
            try:
                out, logs = self.run(leaves)
                return out, (self._finished(logs) if logs._valid else logs)
            except _NeedsHostError:
                pass
        # Entries come to the host as the program runs, so runs must not overlap.
        with self._lock:
            if not self._by_host:
                try:
                    out, logs = self.run(leaves)
                    self._by_host = False
                    return out, self._finished(logs)
                except _NeedsHostError:
                    self._by_host = True
            return self._call_by_host(leaves)

    def _finished(self, logs: LogDict) -> LogDict:
        return logs if self.traced else happened(logs)

    def _call_by_host(self, leaves: Sequence[Any]) -> Any:
        self._spilled.clear()
        out, logs = jax.block_until_ready(self.run(leaves))
        prefix = self._options.prefix
        spilled = {prefix + key: rows for key, rows in self._spilled.items()}
        plans = {prefix + key: plan for key, plan in self._plans.items()}
        return out, happened(with_spilled(logs, spilled, plans))

    def _receive(self, key: str, row: Row) -> None:
        self._spilled.setdefault(key, []).append(row)


class _NeedsHostError(RetryError):
    """A while loop logs, so the program has to hand entries to the host as it runs."""


class _Collecting(Meaning):
    """Stacks what has a fixed number, and folds the rest."""

    def __init__(
        self, options: Options, plans: dict[str, Plan], fold: Fold, repeated: frozenset[Any]
    ) -> None:
        self._options, self._plans, self._fold = options, plans, fold
        self._repeated = repeated

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        nodes = without(nodes, where, self._repeated)
        emit(left_over(nodes, self._options))
        ours = restrict(nodes, self._options.selects)
        state = self._fold.push(state, restrict(ours, lambda key, _: not self._stacked(key)), where)
        return restrict(ours, lambda key, _: self._stacked(key)), state

    def later(self) -> Meaning:
        return _Later(self._options)

    def iterated(self, state: State, where: Where) -> State:
        return self._fold.tick(state, str(where))

    def left(self, state: State, where: Where) -> State:
        return self._fold.left(state, where)

    def _stacked(self, key: str) -> bool:
        return self._plans[key].stacked


class _Later(Meaning):
    """Passes on what somebody wants."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def log(self, nodes: Nodes, state: Any, where: Where) -> tuple[Nodes, Any]:
        del where
        return restrict(nodes, lambda k, e: self._options.selects(k, e) or is_heard(e)), state

    def later(self) -> Meaning:
        return self
