"""A progress bar for a Python loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TextIO

import jax

from .._jax import processes
from .._processes import Processes, checked_processes
from .._tap.host import host
from .._tap.sinks import Sink
from .._watch.bar import UPDATE_EVERY, Bar
from ..errors import LogValueError
from ._protocol.frequency import OncePerStep
from ._protocol.logger import Logger
from ._protocol.record import is_donated
from ._protocol.runs import RunInfo
from ._protocol.view import Copies, View


class TqdmLogger(Logger[Any]):
    """Shows a progress bar that advances with every `log`.

    Values that `postfix` takes out of the state are shown after it, a few times per second. `log`
    does not wait for them: they are copied on the device, and read by another thread. If there is
    neither a terminal nor a notebook, it prints a line now and then. Needs tqdm (the extra
    `progress`).

    Args:
        num_steps: The number of steps, if known.
        postfix: A function of the state that returns a dictionary of numbers.
        description: What to write in front of the bar.
        file: Where to print, by default standard error.
        processes: Of several processes, whether the "first" shows a bar, or "each".

    Examples:
        >>> import sys
        >>> with TqdmLogger(50, postfix=lambda state: {"x": state["x"]}, file=sys.stdout) as logger:
        ...     for i in range(50):
        ...         logger.log({"x": i}, i)
        100%|...| 50/50 [00:00<00:00, ...it/s, x=49]
    """

    concurrent = True

    def __init__(
        self,
        num_steps: int | None = None,
        postfix: Callable[[Any], dict[str, Any]] | None = None,
        *,
        description: str = "",
        file: TextIO | None = None,
        processes: Processes = "first",
    ) -> None:
        self.processes = checked_processes(processes)
        if num_steps is not None and (not isinstance(num_steps, int) or num_steps < 0):
            raise LogValueError(f"`num_steps` must be a number of steps, not {num_steps!r}.")
        self._total = num_steps
        self._postfix = None if postfix is None else View(postfix, "postfix")
        self._description, self._file = description, file
        self._position: int | None = None
        self._sink = Sink(self._show, owner=self)
        self._count, self._shown, self._forked = 0, 0.0, False
        self._first: int | None = None  # The first step.
        self._unshown: Any = None  # The last state, if it has not been shown.
        self._counts_as_step = OncePerStep()

    def __enter__(self) -> Self:
        self._bar = Bar(self._total, self._description, self._position, self._file)
        return self

    def log(self, state: Any, step: int) -> None:
        """Advance the bar. Of several entries in one step of a program, only one counts."""
        if not self._counts_as_step(state):
            return
        self._count += 1
        if self._count == self._total or self.wants(step) or self._is_due():
            self._shown, self._unshown = time.monotonic(), None
            copies = self._copied_postfix(state)
            about = (copies.nbytes, copies.waits) if copies else ()
            host.post(self._sink, (self._count, copies), *about)
        elif self._postfix is not None:
            self._unshown = state

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._count or not self._forked:
            state, self._unshown = self._unshown, None
            lost = state is None or any(map(is_donated, jax.tree.leaves(state)))
            self._show((self._count, None if lost else self._copied_postfix(state)))
            self._bar.close()

    def wants(self, step: int) -> bool:
        """Say whether it is time to update the bar, or this is the last step."""
        if self._first is None:
            self._first = step  # A run that is resumed does not begin with 0.
        is_last = self._total in (step + 1, step + 1 - self._first)
        return is_last or (processes.count() == 1 and self._is_due())

    def _is_due(self) -> bool:
        return time.monotonic() - self._shown >= UPDATE_EVERY

    def skipped(self, steps: int) -> None:
        """Advance the bar by steps whose state is not needed."""
        self._count += steps
        if not self.is_silent and processes.count() > 1 and self._is_due():
            # It asks for no state: processes would have to agree on that.
            self._shown = time.monotonic()
            host.post(self._sink, (self._count, None))

    def fork(self, run: RunInfo) -> TqdmLogger:
        """Each run has its own bar, one below the other."""
        if not self._count and not self._forked:
            self._bar.discard()  # Nothing else would ever advance it.
        self._forked = True
        described = f"{self._description} {run.name}".strip()
        logger = self.remade(description=described)
        logger._position = run.number
        return logger

    def _copied_postfix(self, state: Any) -> Copies | None:
        if self._postfix is None:
            return None
        try:
            return self._postfix.copies(state, alike=False)
        except Exception as error:  # The bar goes on without a postfix.
            error.add_note("This was raised by the `postfix` of a TqdmLogger.")
            self._sink.fail(error)
            return None

    def _show(self, what: tuple[int, Copies | None]) -> None:
        count, copies = what
        values = copies.read() if copies else {}
        shown = (f"{name}={_text(value)}" for name, value in values.items())
        self._bar.update(count, ", ".join(shown))


def _text(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
