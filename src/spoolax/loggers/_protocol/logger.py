"""The protocol of loggers, and what every logger can do because of it.

A logger is a context manager with one more method, `log(state, step)`. Whoever derives from
`Logger` writes those three, and gets `tap`, `spool`, `init` and `every`. The three are wrapped when
the class is made, so that a logger that is used outside of its `with` says so, threads do not meet
in it, and nothing is under way any more when its `__exit__` runs.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

import numpy as np

from ..._listen.options import Options, OptionsDict
from ..._logdict.logdict import LogDict
from ..._tap.host import host
from ..._tap.sinks import Sink
from ..._tap.tap import Tapped, checked_sink
from ...errors import LoggerStateError
from .entries import each, rows, step_of
from .frequency import Frequency
from .lifecycle import Turn, entering, exiting, logging, misuse
from .listening import Listening
from .runs import RUN, LoggerState, RunInfo, forget_runs, open_runs, split

State = TypeVar("State")
P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 0.1  # Seconds that an entry may wait on the device, if it is to be seen live.
WHENEVER = float("inf")

_loggers = itertools.count()
_counting = threading.Lock()


class Logger(Generic[State]):
    """Somewhere for the states of a loop, or the entries of a program, to go.

    Derive from it and write `log`; and `__enter__` and `__exit__`, if there is something to open
    and to close. `log` must read what it needs from the state before it returns: the buffers may be
    donated to the next step right after. A sink that can take many entries at once has `log_many`
    as well.

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

    # Whether two threads may be in `log` at once: the user's, and that which delivers what programs
    # stream. If not, one waits for the other.
    concurrent = False

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    _phase: str  # "new", "opening", "open", "closing", "closed"
    _turn: Turn
    _runs: dict[int, Logger[Any]]  # By number.
    _axes: dict[int, int]  # In how many vmaps each of them was opened.
    _numbers: itertools.count[int]
    run_step: str  # The name of the step that says which run an entry belongs to.
    _counts: dict[Any, int]  # Of entries that have no step.

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember how it was made, so that every run of `init` can have one of its own."""
        self = super().__new__(cls)
        self._made_with = (args, kwargs)
        self._phase = "new"
        self._turn = Turn()
        self._runs, self._axes, self._counts = {}, {}, {}
        self._numbers = itertools.count()
        self.run_step = f"{RUN}{next(_loggers)}"
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in _WRAPPED.items():
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))

    def __enter__(self) -> Self:
        return self

    def log(self, state: State, step: int) -> None:
        """Take in the state after a step."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return None

    def log_many(self, logs: LogDict) -> None:
        """Take in many entries at once: every value has a leading axis.

        Loggers that override this get the entries of `tap` and `spool` so. By default it calls
        `log` for each of them.
        """

        def log(entry: Any) -> None:
            self.log(entry, step_of(entry, self._counts))  # type: ignore[arg-type]

        each(log, rows(logs))

    def wants(self, step: int) -> bool:
        """Say whether `log` would do anything at a step. A driver may leave out the others."""
        del step
        return True

    def skipped(self, steps: int) -> None:
        """So many steps ran that `log` was not called for, as it did not want them."""

    @property
    def is_open(self) -> bool:
        """Whether the logger is inside of its `with`."""
        return self._phase == "open"

    @property
    def runs(self) -> dict[int, Logger[Any]]:
        """The loggers of the runs that `init` opened, by number. Waits for programs that run."""
        if self.is_open:
            host.settle()
        return dict(self._runs)

    def every(self, frequency: Frequency | int) -> Logger[State]:
        """The same logger, which gets only some of the steps.

        Examples:
            >>> from spoolax.loggers import PrintLogger
            >>> with PrintLogger().every(2) as logger:
            ...     for i in range(5):
            ...         logger.log({"square": i**2}, i)
            step 0  square=0
            step 2  square=4
            step 4  square=16
        """
        from .every import Every  # It is a logger itself.

        return Every(self, frequency)

    def tap(
        self,
        f: Callable[P, T],
        logger_state: LoggerState | None = None,
        *,
        latency: float = AT_ONCE,
        overflow: str = "wait",
        **options: Unpack[OptionsDict],
    ) -> Tapped[P, T]:
        """Make a function that hands what it logs to this logger while it runs.

        The step of an entry is its step called `step`, or else the first that has a name, or else
        the iteration of the loop that it comes from.

        Args:
            f: Any function of JAX code.
            logger_state: The run that the entries belong to, from `init`.
            latency: As in `spoolax.tap`.
            overflow: As in `spoolax.tap`.
            **options: `argnames`, `tags`, `keep_logs`, `interval`, `reduce` and `prefix`, as in
                `spoolax.tap`.
        """
        sink = checked_sink(self, self.takes_many, latency, overflow)
        sink.owner = self
        return Listening(f, Options(**options), sink, logger_state)

    def spool(
        self,
        f: Callable[P, T],
        logger_state: LoggerState | None = None,
        **options: Unpack[OptionsDict],
    ) -> Tapped[P, T]:
        """Make a function that hands what it logs to this logger in as few pieces as possible.

        As `tap`, but nobody waits to see it, so the program is interrupted less. Unlike
        `spoolax.spool`, it returns the output of the function alone, and needs no `capacity` for
        while loops: what does not fit into a buffer is handed over when it is full.
        """
        return self.tap(f, logger_state, latency=WHENEVER, **options)

    @property
    def takes_many(self) -> bool:
        """Whether entries of programs go to `log_many`."""
        return type(self).log_many is not Logger.log_many

    def __call__(self, logs: LogDict) -> None:
        """Take in what `spoolax.tap` hands to its callback; so a logger can be one."""
        if not logs:
            return
        if self.run_step in logs.steps:
            parts = split(logs, self.run_step, lambda number: self._axes.get(number, 0))
            each(lambda part: self.run(part[0])(part[1]), parts)
            return
        forget_runs(logs)  # Of loggers further in, which left the entries there.
        if logs.stacked:
            self.check_open()
            with self._turn:
                self.log_many(logs)
        else:
            self.log(logs, step_of(logs, self._counts))  # type: ignore[arg-type]

    def init(self, key: Any) -> LoggerState:
        """Open a run of its own for a key; give what it returns to `tap` or `spool`.

        Under `jax.vmap` every key gets a run, and the entries of every lane go to theirs. Runs are
        closed together with the logger.

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
        self.check_open()
        return LoggerState(open_runs(key, self._opened))

    def fork(self, run: RunInfo) -> Logger[Any]:
        """Make the logger of one run. By default it is made with the same arguments as this one.

        Override it to give every run its own file or label.
        """
        del run
        return self.remade()

    def remade(self, **changes: Any) -> Self:
        """Make another logger with the same arguments, or with some of them changed."""
        args, kwargs = self._made_with
        if changes:
            given = inspect.signature(type(self)).bind(*args, **kwargs)
            given.arguments.update(changes)
            args, kwargs = given.args, given.kwargs
        return type(self)(*args, **kwargs)

    def _opened(self, keys: list[tuple[int, ...]], lanes: tuple[int, ...]) -> int:
        """Count new runs, and have them opened: on the worker, because that may take long."""
        with _counting:
            numbers = [next(self._numbers) for _ in keys]
        infos = [
            RunInfo(number, key, tuple(int(i) for i in np.unravel_index(place, lanes or (1,))))
            for place, (number, key) in enumerate(zip(numbers, keys, strict=True))
        ]
        for number in numbers:
            self._axes[number] = len(lanes)
        host.post(Sink(self._open_runs, owner=self), infos)
        return numbers[0]

    def _open_runs(self, infos: list[RunInfo]) -> None:
        self.check_open()

        def open_run(info: RunInfo) -> None:
            run = self.fork(info)
            run.__enter__()
            self._runs[info.number] = run

        each(open_run, infos)

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
        """Raise an error if the logger is not inside of its `with`."""
        if self._phase != "open":
            raise LoggerStateError(misuse(self, "used"))


_WRAPPED: dict[str, Callable[..., Any]] = {
    "__enter__": entering,
    "log": logging,
    "__exit__": exiting,
}
for _name, _wrap in _WRAPPED.items():
    setattr(Logger, _name, _wrap(vars(Logger)[_name]))
