"""What `logger.tap(f)` returns: a function whose logs go to a logger, or to one of its runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..._listen.drivers import is_driver
from ..._listen.options import Options
from ..._logdict.logdict import LogDict
from ..._tap.sinks import Sink
from ..._tap.stream import Tap
from ..._tap.streamed import Streamed
from ..._tap.tap import Tapped
from ...errors import LogTypeError
from .runs import LoggerState

P = ParamSpec("P")
T = TypeVar("T")


class TappedByLogger(Tapped[P, T]):
    """What `logger.tap` and `logger.spool` return."""

    def __init__(
        self, f: Callable[P, T], options: Options, sink: Sink, state: LoggerState | None
    ) -> None:
        if state is not None and not isinstance(state, LoggerState):
            raise LogTypeError(
                f"The second argument is what `logger.init(key)` returned, not {state!r}. Pass the "
                "others by name: `logger.tap(f, argnames=...)`."
            )
        kind = () if state is None else (StreamedWithRun, sink.owner.run_step)
        super().__init__(f, options, sink, *kind)
        self._options, self._state, self._logger = options, state, sink.owner

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        self._logger.check_open()
        if is_driver(self._source):
            return super().__call__(*args, **kwargs)
        program, leaves = self._programs.find(args, kwargs)
        if self._state is None:
            out = program.call(leaves, self._tap)
        elif program.traced:
            out = program.call(leaves, self._tap, self._state.run)
        else:
            out = program.call(leaves, Tap(self._options, self._sink_of_run()))
        return out  # type: ignore[no-any-return]

    def _sink_of_run(self) -> Sink:
        """Outside of any trace all entries belong to one run, so they need not say which."""
        assert self._state is not None
        logger, number = self._logger, run_number(self._state)

        def to_run(logs: LogDict) -> Any:
            logger.run(number)(logs)

        sink = self._sink
        to_it = Sink(to_run, sink.batch, sink.latency, sink.overflow, logger)
        to_it.in_order = sink.in_order
        return to_it


def run_number(state: LoggerState) -> int:
    """The number of the run that a state stands for."""
    numbers = np.asarray(state.run)
    if numbers.size != 1:
        raise LogTypeError(
            f"The state of the logger stands for {numbers.size} runs, but this is one call. "
            "Use `jax.vmap` over the states and the arguments."
        )
    return int(numbers.reshape(()))


class StreamedWithRun(Streamed):
    """A tapped program whose entries have a step that says which run they belong to."""

    def __init__(self, run_step: str, *args: Any) -> None:
        self.steps = (run_step,)
        super().__init__(*args)
