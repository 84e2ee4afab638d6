"""`listening`: hear what is logged by anything that runs in a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import TracebackType
from typing import Any

from .._jax.tracing import trace_is_clean
from .._listen.interrupts import calls_undisturbed
from .._listen.options import Options
from .._log.unheard import nothing_heard
from .._logdict.logdict import LogDict, joined
from .._logdict.reductions import How
from ..errors import LogTypeError, MixedKeyError, StopRun
from .blocks import (
    Block,
    BlockTap,
    listen,
    listen_everywhere,
    listen_no_more,
    listen_nowhere,
)
from .host import host
from .sinks import Sink, failures, raise_all
from .tap import checked_sink, print_entry


class Listening:
    """A `with` block in which taps hand what they hear to sinks."""

    def __init__(
        self,
        tap: Callable[..., BlockTap],
        about: Hashable,
        sinks: Sequence[Sink],
        all_threads: bool = False,
    ) -> None:
        self._tap, self._about, self._sinks = tap, about, sinks
        self._all_threads = all_threads
        self.blocks: list[Block] = []  # While it is open.
        self._entered: contextlib.ExitStack | None = None

    @property
    def dropped(self) -> int:
        """How many entries were dropped because the callback was too slow."""
        return self._sinks[0].dropped

    def _opening(self, stack: contextlib.ExitStack) -> Any:
        """Open what is needed, before anybody listens. Return what the block is given."""
        del stack
        return self

    def __enter__(self) -> Any:
        if self._entered is not None:
            raise LogTypeError("This block is open already. Make another one.")
        if not trace_is_clean():
            raise LogTypeError(
                f"`spoolax.{type(self).__name__}` is for code that calls compiled functions, and "
                "this is code that is being compiled. Open the block around the call of the "
                "compiled function."
            )
        with contextlib.ExitStack() as stack:
            given = self._opening(stack)
            stack.push(self._ended)
            self.blocks = blocks = [Block(self._tap, self._about, sink) for sink in self._sinks]
            for block in blocks:
                stack.callback(block.close)
            if self._all_threads:
                listen_everywhere(blocks)
                stack.callback(listen_nowhere, blocks)
            listen(blocks)
            stack.callback(listen_no_more, blocks)
            stack.push(_delivered)
            stack.enter_context(calls_undisturbed())
            self._entered = stack.pop_all()
        return given

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._entered is not None
        entered, self._entered = self._entered, None
        return entered.__exit__(kind, error, trace)

    def _ended(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Everything has been delivered, and nobody listens any more."""
        del kind, trace
        for sink in self._sinks:
            stop, sink.stop = sink.stop, None
            errors = failures.take_of(sink.callback) if sink.owner is None else []
            if stop is not None and not isinstance(error, StopRun):
                raise stop from None  # A program that is to stop fails with an error of JAX.
            if error is None:
                raise_all(errors, "Several callbacks of spoolax failed.")


class listening(Listening):
    """Pass what is logged in a `with` block to a callback or logger: `tap` without a function.

    It hears every `log` call in the block, in Python or inside of functions that are jitted, by
    whomever. These are compiled anew in the first block that listens to them, and found again in
    the others with the same options, whatever their callbacks are. Outside of the block everything
    is as if it had never been.

    An entry without a named step gets one, `step`, which counts what its `log` call has logged: in
    a function that a Python loop calls, that is the number of the call. When the block ends,
    everything has been delivered.

    Args:
        callback: What to call for each entry, or a logger, which is opened if it is not open.
            Without one, entries are printed, unless they are collected.
        argnames: As in `tap`, and so are the others.
        tags: Hear only `log` calls with one of these tags.
        keep_logs: Leave entries to blocks around this one as well. `False` keeps them.
        interval: Hear only every `interval`-th iteration of loops inside of compiled functions.
        reduce: Fold entries of each key into one, in each call of a compiled function.
        prefix: A prefix for every key.
        collect: Keep the entries. The block is then `with listening(collect=True) as logs`, and
            `logs` is filled when it ends: every key has a leading axis.
        batch: Pass several entries at once, with a leading axis.
        latency: How long, in seconds, an entry may wait.
        overflow: "wait" or "drop", as in `tap`; `dropped` counts what was dropped.
        all_threads: Hear what other threads do as well, outside of blocks of their own. What they
            have started must have ended when the block ends.

    Examples:
        >>> import spoolax, jax
        >>> @jax.jit
        ... def train_step(x):
        ...     spoolax.log({"loss": x**2})
        ...     return x / 2
        >>> x = 1.0
        >>> with spoolax.listening():
        ...     for _ in range(3):
        ...         x = train_step(x)
        step=0  loss=1
        step=1  loss=0.25
        step=2  loss=0.0625
        >>> with spoolax.listening(collect=True) as logs:
        ...     x = train_step(x)
        ...     _ = spoolax.log({"x": x})
        >>> [float(loss) for loss in logs["loss"]], list(logs)
        ([0.015625], ['loss', 'x'])
    """

    def __init__(
        self,
        callback: Callable[[LogDict], Any] | None = None,
        argnames: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        keep_logs: bool = True,
        interval: int | None = None,
        reduce: How | None = None,
        prefix: str = "",
        *,
        collect: bool = False,
        batch: bool = False,
        latency: float = 0.1,
        overflow: str = "wait",
        all_threads: bool = False,
    ) -> None:
        options = Options(
            argnames=argnames,
            tags=tags,
            keep_logs=keep_logs,
            interval=interval,
            reduce=reduce,
            prefix=prefix,
        )
        self._everything = argnames is None and tags is None
        self._logs, self._kept = LogDict() if collect else None, list[LogDict]()
        self._logger: Any = callback if hasattr(callback, "as_sink") else None
        sinks: list[Sink] = []
        if self._logger is not None:
            sinks.append(self._logger.as_sink(latency, overflow))
        elif callback is not None and not callable(callback):
            raise LogTypeError(
                f"`spoolax.listening` takes a callback or a logger, not {callback!r}. Give the "
                "options by name: `spoolax.listening(argnames=...)`."
            )
        elif callback is not None or not collect:
            sinks.append(checked_sink(callback or print_entry, batch, latency, overflow))
        if collect:
            sinks.append(checked_sink(self._kept.append, True, latency, "wait"))
        super().__init__(BlockTap, options, sinks, all_threads)

    def _opening(self, stack: contextlib.ExitStack) -> Any:
        if self._logger is not None and not self._logger.is_open:
            stack.enter_context(self._logger)
        return self if self._logs is None else self._logs

    def _ended(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        mixed = None
        for key in dict.fromkeys(key for logs in self._kept for key in logs):
            assert self._logs is not None
            try:
                self._logs.update(joined([logs.filter(key) for logs in self._kept if key in logs]))
            except MixedKeyError as one:  # The others are still of use.
                mixed = mixed or one
        self._kept.clear()
        super()._ended(kind, error, trace)
        if error is None and self._everything and not any(s.called for s in self._sinks):
            nothing_heard()
        if mixed is not None and error is None:
            raise mixed


def _delivered(kind: Any, error: BaseException | None, trace: Any) -> None:
    """Wait until everything has been delivered."""
    if host.is_worker():  # A callback has opened it.
        host.settle()
    elif isinstance(error, KeyboardInterrupt):
        host.drain_or_drop()
    else:
        host.wait()
