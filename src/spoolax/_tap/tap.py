"""`tap`: run a function, and hand what it logs to a callback while it runs."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import arrays, rule_tables
from .._jax.anatomy import subjaxprs
from .._jax.primitives import Jaxpr, jit_p, open_jaxpr, scan_p, shard_map_p, while_p
from .._listen.drivers import around, is_running_programs
from .._listen.plan import Options, left_over, names, restrict, warn_of_nothing
from .._listen.programs import Program, programs_of
from .._log.entry import Entry, Nodes, entries, map_entries
from .._log.primitive import emit, log_p, logged
from .._logdict.logdict import LogDict
from .._logdict.reductions import How
from .._logdict.text import as_line
from .._walk.interpret import Meaning, State, Where, interpret, repetitions, survey, without
from ..errors import LogTypeError, LogValueError
from .host import Sink, host
from .stream import Pace, Tap, stream

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
    options = checked_options(argnames, tags, keep_logs, interval, reduce, prefix)
    return Tapped(f, options, checked_sink(callback or print_entry, batch, latency, overflow))


def checked_options(
    argnames: str | Iterable[str] | None,
    tags: str | Iterable[str] | None,
    keep_logs: bool,
    interval: int | None,
    reduce: How | None,
    prefix: str,
) -> Options:
    """Make the options of a tap, if they have a meaning."""
    chosen = names(argnames, "argnames"), names(tags, "tags")
    return Options(*chosen, keep_logs, interval, reduce, prefix)


def checked_sink(
    callback: Callable[[LogDict], Any], batch: bool, latency: float, overflow: str
) -> Sink:
    """Make a sink, if the options have a meaning."""
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
        """The same for another function: a program that our own function runs by itself."""
        other = copy.copy(self)
        other._bind(run)
        return other

    @property
    def dropped(self) -> int:
        """How many entries were dropped because the callback was too slow."""
        return self._sink.dropped

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if is_running_programs(self._source):
            with around(self._around):
                return self._source(*args, **kwargs)  # type: ignore[no-any-return]
        program, leaves = self._programs.find(args, kwargs)
        return program.call(leaves, self._tap)  # type: ignore[no-any-return]


class Streamed(Program):
    """One way of calling a tapped function: the same structure and static arguments."""

    extra = 1  # The number of the run, and the pace to begin with.
    steps: tuple[str, ...] = ()  # Given to `call`, and added to every entry, inside of a trace.
    warns = True  # If the options select nothing.

    def __init__(self, tap: Tap, *args: Any) -> None:
        super().__init__(*args)
        self._tap, self._pace = tap, Pace()
        if self.traced:
            self.extra = len(self.steps)

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], Any]:
        found = survey(closed, Where())
        if self.warns:
            warn_of_nothing((nodes for nodes, _, _ in found), self._tap.options)
        if not self.traced:
            *args, begin = args
            return stream(closed, found, args, self._tap, begin, self._pace)
        # Compiled by itself inside of what surrounds it, so that it is streamed as a whole.
        assert _current.value is not None
        marking = _Marking(_current.value, self.steps, repetitions(found))
        count = len(args) - self.extra

        def marked(*args: Any) -> list[Any]:
            outs, _, _ = interpret(closed, args[:count], args[count:], marking, Where())
            return outs

        return jax.jit(marked)(*args), ()

    def call(self, leaves: Sequence[Any], tap: Tap, *steps: Any) -> Any:
        """Run the program and return what the user gets."""
        if self.traced:
            with _current(tap):
                return self.run([*leaves, *steps])[0]
        assert tap.sink is not None
        run = host.begin(tap.sink)
        try:
            begin = np.array([run.number, self._pace.first()], np.int32)
            out, token = self.run([*leaves, arrays.on_device(begin)])
        except BaseException as error:
            host.failed_to_run(run)
            if isinstance(error, jax.errors.JaxRuntimeError) and run.stop is not None:
                raise run.stop from None
            raise
        host.dispatched(run, token)
        return out


# The tap whose function is being traced, inside of another trace. It is part of JAX's cache keys.
_current = jax.make_user_context(default_value=None)


class _Marking(Meaning):
    """Leaves entries where they are, marked as belonging to a tap.

    The state is the values of the steps that they get besides their own.
    """

    def __init__(self, tap: Tap, steps: Sequence[str], repeated: frozenset[Any]) -> None:
        self._tap, self._steps, self._repeated = tap, steps, repeated

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        nodes = without(nodes, where, self._repeated)
        tap, options = self._tap, self._tap.options
        mine = restrict(nodes, options.selects)

        def mark(entry: Entry) -> Entry:
            taken = not options.keep_logs
            meta = dataclasses.replace(entry.meta, taps=(*entry.meta.taps, tap), taken=taken)
            shape = (*meta.times, *meta.lanes)
            more = {
                name: jnp.broadcast_to(value, shape)
                for name, value in zip(self._steps, state, strict=True)
            }
            return entry.replace(meta=meta, steps={**entry.steps, **more})

        rest = restrict(nodes, lambda key, entry: not options.selects(key, entry))
        emit(map_entries(mark, mine) + left_over(rest, options))
        return (), state


def _is_marked(jaxpr: Jaxpr) -> bool:
    """Say whether something in a jaxpr, at any depth, is logged for a tap already."""
    return any(
        any(entry.meta.taps for entry in entries(logged(eqn.params, [v.aval for v in eqn.invars])))
        if eqn.primitive is log_p
        else any(map(_is_marked, subjaxprs(eqn)))
        for eqn in open_jaxpr(jaxpr)[0].eqns
    )


def _evaluate(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    begin = np.array([0, 1], np.int32)
    outs, _ = stream(jaxpr, survey(jaxpr, Where()), args, None, begin, Pace())
    return outs


def _lower_log(ctx: Any, *operands: Any, tree: Any) -> Any:
    nodes = jax.tree.unflatten(tree, operands)
    if not any(entry.meta.taps for entry in entries(nodes)):
        return []
    return rule_tables.lower_evaluated(ctx, operands, log_p, {"tree": tree}, _evaluate)


def _run_log(*values: Any, tree: Any) -> list[Any]:
    """Outside of any trace, as when a loop with a tap in it is differentiated there."""
    nodes = jax.tree.unflatten(tree, values)
    if any(entry.meta.taps for entry in entries(nodes)):
        with jax.disable_jit(False):
            jax.jit(lambda *values: log_p.bind(*values, tree=tree))(*values)
    return []


log_p.def_impl(_run_log)
for _primitive in (jit_p, scan_p, while_p, shard_map_p):
    rule_tables.wrap_lowering(_primitive, _is_marked, _evaluate)
rule_tables.set_lowering(log_p, _lower_log)
