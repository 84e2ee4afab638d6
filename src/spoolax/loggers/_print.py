"""A line of text for every entry."""

from __future__ import annotations

import sys
from typing import TextIO

from .._processes import Processes
from .._watch.bar import print_above_bars
from ._protocol.frequency import Frequency
from ._protocol.record import Record
from ._protocol.runs import RunInfo
from ._protocol.wrappers import PrefixedLogger
from ._protocol.writer import Viewer, WritingLogger


class PrintLogger(WritingLogger):
    """Prints a line for every entry, or for every `every`-th step.

    Args:
        every: A number of steps, or a frequency.
        view: Takes what to print out of the state.
        file: Where to print, by default standard output.
        processes: Of several processes, whether the "first" writes, or "each".

    Examples:
        >>> with PrintLogger(every=100) as logger:
        ...     for i in range(201):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        step 0  loss=1
        step 100  loss=0.00990099
        step 200  loss=0.004975124
    """

    def __init__(
        self,
        every: Frequency | int | None = None,
        *,
        view: Viewer = None,
        file: TextIO | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        self._file = file

    def write(self, record: Record) -> None:
        """Print a record."""
        print_above_bars(f"step {record.step}  {record.line()}", self._file or sys.stdout)

    def fork(self, run: RunInfo) -> PrefixedLogger:
        """All runs print to the same file, with their names in front of the keys."""
        return PrefixedLogger(self, run.name)
