"""The JAX profiler, for some steps of a run."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import jax

from .._processes import Processes, checked_processes
from .._tap.sinks import reports
from ..errors import LogValueError
from ._protocol.logger import Logger
from ._protocol.paths import StrPath
from ._protocol.runs import RunInfo
from ._protocol.wrappers import PrefixedLogger


class ProfileLogger(Logger[Any]):
    """Runs the JAX profiler from step `start_step` to step `end_step`, both included.

    `log(state, step)` is called after a step, so the profiler starts in the call for the step
    before; for the first step of a run, when the logger is entered. It waits for the device at both
    ends, so that the profile has exactly these steps. Look at it with TensorBoard or Perfetto. If
    the run raises, the profiler is stopped.

    In a program that is streamed, the profile covers the time in which the entries of these steps
    arrive.

    Args:
        log_dir: The directory for the profile.
        start_step: The first step to profile.
        end_step: The last one.
        first_step: The number of the first step of the run, if that is not 0.
        processes: Of several processes, whether the "first" is profiled, or "each".

    Examples:
        >>> import jax, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> with ProfileLogger(directory, start_step=2, end_step=3) as logger:
        ...     for i in range(5):
        ...         x = jax.numpy.ones(3) + i
        ...         logger.log(x, i)
        >>> import pathlib
        >>> len(list(pathlib.Path(directory).rglob("*.xplane.pb")))
        1
    """

    def __init__(
        self,
        log_dir: StrPath,
        start_step: int,
        end_step: int,
        *,
        first_step: int = 0,
        processes: Processes = "first",
    ) -> None:
        self.processes = checked_processes(processes)
        if not 0 <= start_step <= end_step:
            raise LogValueError(
                f"There are no steps from {start_step} to {end_step}, so the profile would be "
                "empty. Both ends are included: pass `0 <= start_step <= end_step`."
            )
        self._directory, self._start, self._end = str(log_dir), start_step, end_step
        self._first = first_step
        self._running = self._done = False

    def __enter__(self) -> Self:
        self._start_after(self._first - 1, None)
        return self

    def log(self, state: Any, step: int) -> None:
        """Start the profiler if the next step is to be profiled; stop it after the last one."""
        if self._running and step >= self._end:
            self._stop(state)
        self._start_after(step, state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running:
            self._stop(None)
        elif not self._done and error is None:
            reports.warning(
                "ProfileLogger made no profile: the run ended before step %d.", self._start
            )

    def wants(self, step: int) -> bool:
        """Say whether the profiler starts or stops after the step."""
        return step in (self._start - 1, self._end)

    def fork(self, run: RunInfo) -> PrefixedLogger:
        """There is only one profiler, so all runs share it."""
        return PrefixedLogger(self, run.name)

    def _start_after(self, step: int, state: Any) -> None:
        if not self._running and not self._done and self._start - 1 <= step < self._end:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._directory)
            self._running = True

    def _stop(self, state: Any) -> None:
        self._running, self._done = False, True
        try:
            jax.block_until_ready(state)
        finally:
            jax.profiler.stop_trace()
