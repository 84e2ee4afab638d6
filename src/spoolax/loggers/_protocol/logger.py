"""The protocol of loggers, and what every logger can do because of it.

A logger is a context manager with one more method, `log(state, step)`. A subclass of `Logger`
defines those three, and inherits `tap`, `spool`, `init` and `every`. The three are wrapped when the
class is made: using a logger outside of its `with` is an error, one thread at a time is in `log`,
and everything has been delivered when `__exit__` runs.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

import jax
import numpy as np

from ..._jax import tracing
from ..._listen.options import Options, OptionsDict
from ..._log.primitive import log
from ..._logdict.logdict import LogDict
from ..._rows import InLoop
from ..._tap.host import host
from ..._tap.listening import listening
from ..._tap.sinks import Sink
from ..._tap.tap import Tapped, checked_sink
from ...errors import LoggerStateError, LogTypeError, StopRun
from .ending import CutShort, Ending
from .entries import entries_of, forget_runs, logged_together, split_by_run
from .frequency import Frequency
from .left_open import open_until_exit
from .lifecycle import LoggerLock, misuse, wrap_enter, wrap_exit, wrap_log
from .paths import as_path, marked
from .runs import RUN_STEP, LoggerState, RunInfo, open_runs
from .steps import Counts, step_of
from .tapped import TappedByLogger, run_number

LoopState = TypeVar("LoopState")
P = ParamSpec("P")
T = TypeVar("T")

# Seconds that an entry may wait on the device, if it is to be seen live or not.
LIVE, NOT_LIVE = 0.1, float("inf")

_logger_numbers = itertools.count()
_numbering = threading.Lock()


class Logger(Generic[LoopState]):
    """Where the states of a loop, or the entries of a program, go.

    Derive from it and define `log`, and `__enter__` and `__exit__` if there is something to open
    and close. `log` must read what it needs from the state before it returns: the buffers may be
    donated to the next step right after. A logger that can take many entries at once also defines
    `log_many`.

    Examples:
        >>> import spoolax, jax
        >>> class Largest(spoolax.Logger):
        ...     def __enter__(self):
        ...         self.value = float("-inf")
        ...         return self
        ...     def log(self, state, step):
        ...         self.value = max(self.value, float(state["x"]))
        ...     def __exit__(self, *error):
        ...         print(f"The largest x was {self.value}.")
        >>> def f(x):
        ...     def body(x, i):
        ...         spoolax.log({"x": jax.numpy.sin(x)}, step=i)
        ...         return x + 1, None
        ...     return jax.lax.scan(body, x, jax.numpy.arange(10))[0]
        >>> with Largest() as logger:            # streaming
        ...     y = logger.tap(f)(0.0)
        The largest x was 0.98935...
        >>> with Largest() as logger:            # in a Python loop
        ...     for i in range(3):
        ...         logger.log({"x": i}, i)
        The largest x was 2.0.
    """

    # Whether two threads may be in `log` at once: the user's, and the worker, which delivers what
    # programs stream. If not, one waits for the other.
    concurrent = False
    # Whether `simulate` hands it what the step logs, besides the states. A logger whose `log` knows
    # the states of one program would not know what to do with that.
    takes_entries = False
    # Whether batches of entries must not change the order of what different `log` calls have
    # logged. There are more of them then.
    keeps_order = False
    # Of several processes of `jax.distributed`, which it acts on: the "first"; "each" by itself, so
    # that what they write needs different names; or "all" of them alike, if it writes nothing.
    processes: str = "first"
    is_silent = False  # It was opened by another process, for this one as well.

    _ending: Ending | None = None
    # What has ended a run early whose driver leaves it to others to close the logger.
    cut_short: CutShort | None = None
    # What its block is being left with, before what was logged has arrived.
    left_with: BaseException | None = None

    path: Any  # Of what it writes, if that has one.
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _phase: str  # "new", "opening", "open", "closing", "closed"
    _log_lock: LoggerLock
    _block: Any  # Where it was opened.
    _runs: dict[int, Logger[Any]]  # By number.
    _vmaps: dict[int, int]  # By number, inside how many vmaps a run was opened.
    _numbers: itertools.count[int]
    within: Logger[Any] | None  # The one that passes on to it what it gets.
    run_step: str  # The name of the step that says which run an entry belongs to.
    _counts: Counts

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments, so that every run of `init` can have a logger of its own."""
        self = super().__new__(cls)
        self._made_with = (args, kwargs)
        self._phase = "new"
        self._log_lock = LoggerLock()
        self._runs, self._vmaps, self._counts = {}, {}, {}
        self.within = None
        self._numbers = itertools.count()
        self.run_step = f"{RUN_STEP}{next(_logger_numbers)}"
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in _WRAPPED.items():
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))

    def __enter__(self) -> Self:
        return self

    def log(self, state: LoopState, step: int) -> None:
        """Log the state after a step."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return None

    def named_apart(self, mark: str) -> None:
        """Every process has one of these: put a mark of this one into the name of what it writes.

        By default, into the name of the file at `path`, if there is such an attribute.
        """
        path = getattr(self, "path", None)
        if path is not None and mark:
            self.path = marked(path, mark)

    @property
    def label(self) -> str:
        """What it is, and where it writes to: the same on all processes, and in messages."""
        path = getattr(self, "path", None)
        return type(self).__name__ if path is None else f"{type(self).__name__}({str(path)!r})"

    def tells(self) -> Any:
        """What the process that has opened it tells the others: by default, the path."""
        path = getattr(self, "path", None)
        return None if path is None else str(path)

    def hears(self, told: Any) -> None:
        """Take over what was told."""
        if told is not None:
            self.path = as_path(told)

    def accompany(self, state: LoopState, step: int) -> None:
        """Do what another process cannot do alone that logs this state.

        By default nothing. A logger that reads arrays which span processes overrides it.
        """

    def dismissed(self) -> None:
        """Finish what `accompany` has begun, at the end."""

    def log_many(self, logs: LogDict) -> None:
        """Log many entries at once: every value has a leading axis.

        A logger that overrides this gets the entries of `tap` and `spool` in batches. By default it
        calls `log` for each of them.
        """

        def log(entry: Any) -> None:
            self.log(entry, step_of(entry, self._counts))  # type: ignore[arg-type]

        _attempt_all(log, entries_of(logs))

    def wants(self, step: int) -> bool:
        """Say whether `log` would do anything at a step; a driver may leave it out if not."""
        del step
        return True

    def skipped(self, steps: int) -> None:
        """This many steps ran for which `log` was not called: it did not want them, or got rows."""

    def in_loop(self, state: Any) -> InLoop:
        """Say how a compiled loop can take what is logged out of states like this one.

        By default it cannot: `log` gets the states that the logger wants.
        """
        del state
        return InLoop([], self.wants)

    @property
    def is_open(self) -> bool:
        """Whether the logger is inside its `with`."""
        return self._phase == "open"

    @property
    def _as_written(self) -> str:
        """How it is made, for messages."""
        return f"{type(self).__name__}(...)"

    @property
    def ending(self) -> Ending | None:
        """How the run ended: its `status` and the `reason`. None before the logger is closed.

        Examples:
            >>> import spoolax
            >>> from spoolax.loggers import CheckLogger
            >>> try:
            ...     with CheckLogger(lambda state: state < 3, message="too large") as logger:
            ...         for i in range(10):
            ...             logger.log(i, i)
            ... except spoolax.StopRun:
            ...     print(logger.ending.status, "-", logger.ending.reason)
            interrupted - At step 3, too large: value=3
        """
        return self._ending

    @property
    def runs(self) -> dict[int, Logger[Any]]:
        """The loggers of the runs that `init` opened, by number. Waits for running programs."""
        if self.is_open:
            host.settle()
        return dict(self._runs)

    def every(self, frequency: Frequency | int) -> Logger[LoopState]:
        """The same logger, but it gets only some of the steps.

        Examples:
            >>> from spoolax.loggers import PrintLogger
            >>> with PrintLogger().every(2) as logger:
            ...     for i in range(5):
            ...         logger.log({"square": i**2}, i)
            step 0  square=0
            step 2  square=4
            step 4  square=16
        """
        from .wrappers import ThinnedLogger  # Which is a logger itself.

        return ThinnedLogger(self, frequency)

    def tap(
        self,
        f: Callable[P, T],
        logger_state: LoggerState | None = None,
        *,
        latency: float = LIVE,
        overflow: str = "wait",
        **options: Unpack[OptionsDict],
    ) -> Tapped[P, T]:
        """Make a function that hands what it logs to this logger while it runs.

        The step of an entry is its step called `step`, or else its first named step, or else the
        iteration of the loop that it comes from.

        Args:
            f: Any function of JAX code.
            logger_state: The run that the entries belong to, from `init`.
            latency: As in `spoolax.tap`.
            overflow: As in `spoolax.tap`.
            **options: `argnames`, `tags`, `keep_logs`, `interval`, `reduce` and `prefix`, as in
                `spoolax.tap`.
        """
        sink = self.as_sink(latency, overflow)
        return TappedByLogger(f, Options(**options), sink, logger_state)

    def listening(
        self, *, latency: float = LIVE, overflow: str = "wait", **options: Unpack[OptionsDict]
    ) -> listening:
        """Hand what is logged in a `with` block to this logger: see `spoolax.listening`.

        Examples:
            >>> import spoolax, jax
            >>> from spoolax.loggers import RingBufferLogger
            >>> @jax.jit
            ... def train_step(x):
            ...     spoolax.log({"loss": x**2})
            ...     return x / 2
            >>> with RingBufferLogger(100) as logger, logger.listening():
            ...     for x in (3.0, 2.0):
            ...         y = train_step(x)
            >>> [(one.step, float(one.values["loss"])) for one in logger.records]
            [(0, 9.0), (1, 4.0)]
        """
        return listening(self, latency=latency, overflow=overflow, **options)

    def as_sink(self, latency: float = LIVE, overflow: str = "wait") -> Sink:
        """What hands entries to this logger."""
        sink = checked_sink(self, self.takes_many, latency, overflow)
        sink.owner, sink.in_order = self, self.keeps_order
        return sink

    def spool(
        self,
        f: Callable[P, T],
        logger_state: LoggerState | None = None,
        **options: Unpack[OptionsDict],
    ) -> Tapped[P, T]:
        """Make a function that hands what it logs to this logger in as few batches as possible.

        Like `tap`, but not live, so that the program is interrupted less often. Unlike
        `spoolax.spool`, it returns only the output of the function, and needs no `capacity` for
        while loops: a buffer is handed over when it is full.
        """
        return self.tap(f, logger_state, latency=NOT_LIVE, **options)

    @property
    def takes_many(self) -> bool:
        """Whether entries of programs go to `log_many`."""
        return type(self).log_many is not Logger.log_many

    def __call__(self, logs: LogDict) -> None:
        """Log what `spoolax.tap` hands to its callback, so that a logger can be the callback."""
        if not logs or self.is_silent:
            return
        if self.run_step in logs.steps:
            parts = split_by_run(logs, self.run_step, lambda number: self._vmaps.get(number, 0))
            _attempt_all(lambda part: self.run(part[0])(part[1]), parts)
            return
        forget_runs(logs)  # Those of inner loggers that kept the logs.
        if logs.stacked:
            self.check_open()
            with self._log_lock:
                self.log_many(logs)
        else:
            self.log(logs, step_of(logs, self._counts))  # type: ignore[arg-type]

    def init(self, key: Any) -> LoggerState:
        """Open a run for a key. Pass what this returns to `tap`, `spool` or `log`.

        Under `jax.vmap` every key gets a run, and the entries of every lane go to its own. Runs are
        closed together with the logger. A logger that is not open yet is opened, and closed when
        the program ends, or by a `with` block that it enters later.

        Examples:
            >>> import spoolax, jax
            >>> from spoolax.loggers import RingBufferLogger
            >>> def train(key):
            ...     def body(x, i):
            ...         x = x + jax.random.uniform(jax.random.fold_in(key, i))
            ...         spoolax.log({"x": x}, step=i)
            ...         return x, None
            ...     return jax.lax.scan(body, 0.0, jax.numpy.arange(3))[0]
            >>> with RingBufferLogger(100) as logger:
            ...     def run(key):
            ...         return logger.tap(train, logger.init(key))(key)
            ...     y = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4))
            >>> [len(run.records) for run in logger.runs.values()]
            [3, 3, 3, 3]
        """
        open_until_exit(self)
        self.check_open()
        return LoggerState(open_runs(key, self._request_runs))

    def log_spooled(self, logger_state: LoggerState, logs: Mapping[str, Any]) -> None:
        """Hand logs that `spoolax.spool` returned to a run: `logger.log(logger_state, logs)`.

        Keys that were logged at the same steps make up an entry together. Works inside `jit`,
        `vmap` and loops as well.

        Examples:
            >>> import spoolax, jax
            >>> from spoolax.loggers import RingBufferLogger
            >>> def f(x):
            ...     spoolax.log({"x": x, "y": 2 * x}, step=7)
            ...     return x
            >>> with RingBufferLogger(10) as logger:
            ...     state = logger.init(jax.random.key(0))
            ...     x, logs = spoolax.spool(f)(1.0)
            ...     logger.log(state, logs)
            >>> [(one.step, sorted(one.values)) for one in logger.runs[0].records]
            [(7, ['x', 'y'])]
        """
        self.check_open()
        if not isinstance(logs, Mapping):
            raise LogTypeError(
                "`logger.log(logger_state, logs)` takes logs that `spoolax.spool` returned, not "
                f"{logs!r} (of type {type(logs).__name__})."
            )
        leaves, tree = jax.tree.flatten(LogDict(logs))
        if not leaves or (self.is_silent and tracing.trace_is_clean()):
            return

        def deliver(number: int, leaves: list[Any]) -> None:
            _attempt_all(self.run(number), logged_together(jax.tree.unflatten(tree, leaves)))

        if tracing.trace_is_clean():
            number = run_number(logger_state)
            sink = Sink(lambda leaves: deliver(number, leaves), owner=self)
            # Copied: they may be donated, or changed, right after.
            copies = [x.copy() if hasattr(x, "copy") else x for x in leaves]
            waits = [x for x in copies if isinstance(x, jax.Array)]
            host.post(sink, copies, sum(getattr(x, "nbytes", 8) for x in copies), waits)
            return

        def receive(entry: LogDict) -> None:
            parts = split_by_run(entry, self.run_step, lambda number: self._vmaps.get(number, 0))
            _attempt_all(lambda part: deliver(part[0], part[1][WHOLE]), parts)

        TappedByLogger(_log_whole, Options(), Sink(receive, owner=self), logger_state)(leaves)

    def fork(self, run: RunInfo) -> Logger[Any]:
        """Make the logger of one run: by default, with the same arguments as this one.

        Override it to give every run its own file or label.
        """
        del run
        return self.remade()

    def remade(self, **changes: Any) -> Self:
        """Make another logger with the same arguments, except for `changes`."""
        args, kwargs = self._made_with
        if changes:
            given = inspect.signature(type(self)).bind(*args, **kwargs)
            given.arguments.update(changes)
            args, kwargs = given.args, given.kwargs
        return type(self)(*args, **kwargs)

    def _request_runs(self, keys: list[tuple[int, ...]], lanes: tuple[int, ...]) -> int:
        """Number new runs, and have the worker open them, because that may take long."""
        with _numbering:
            numbers = [next(self._numbers) for _ in keys]
        infos = [
            RunInfo(number, key, tuple(int(i) for i in np.unravel_index(place, lanes or (1,))))
            for place, (number, key) in enumerate(zip(numbers, keys, strict=True))
        ]
        for number in numbers:
            self._vmaps[number] = len(lanes)
        host.post(Sink(self._open_runs, owner=self), infos)
        return numbers[0]

    def _open_runs(self, infos: list[RunInfo]) -> None:
        self.check_open()

        def open_run(info: RunInfo) -> None:
            run = self.fork(info)
            if run is not self:
                run.within, run.is_silent = self, self.is_silent
            run.__enter__()
            self._runs[info.number] = run

        _attempt_all(open_run, infos)

    def run(self, number: int) -> Logger[Any]:
        """The logger of one run."""
        if number not in self._runs:
            raise LoggerStateError(
                f"run-{number} of {type(self).__name__} is not open: either it could not be "
                "opened, or the logger has been closed."
            )
        return self._runs[number]

    def __repr__(self) -> str:
        args, kwargs = self._made_with
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        return f"<{type(self).__name__}({', '.join(given)}), {self._phase}>"

    def check_open(self) -> None:
        """Raise an error if the logger is not inside its `with`."""
        if self._phase != "open":
            raise LoggerStateError(misuse(self, "used"))


WHOLE = "logs"


def _log_whole(leaves: list[Any]) -> None:
    log({WHOLE: leaves})


def _attempt_all(act: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Call `act` with every item, though it may fail for some; then raise the first error.

    A request to stop the run takes precedence.
    """
    errors: list[Exception] = []
    for item in items:
        try:
            act(item)
        except Exception as error:
            errors.append(error)
    if errors:
        raise next((e for e in errors if isinstance(e, StopRun)), errors[0])


_WRAPPED: dict[str, Callable[..., Any]] = {
    "__enter__": wrap_enter,
    "log": wrap_log,
    "__exit__": wrap_exit,
}
for _name, _wrap in _WRAPPED.items():
    setattr(Logger, _name, _wrap(vars(Logger)[_name]))
