"""A table in the terminal that shows how the values are doing."""

from __future__ import annotations

import collections
import itertools
import math
import threading
import time
from typing import Any, TextIO

from .._extras import load
from ._frequency import EverySeconds, Frequency, Schedule
from ._history import History
from ._record import Record, scalar
from ._runs import RunInfo
from ._section import Section
from ._writing import View, WritingLogger

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # Of a sparkline.
QUIET = 1.0  # Seconds between lines, if the output is no terminal and nobody says how often.


class ConsoleLogger(WritingLogger):
    """Shows a live table: each value as it is, its change, its course, and how fast steps go by.

    If the output is no terminal, it prints lines instead, at most one a second, or as `every` says,
    so that logs of batch jobs stay readable. Arrays are shown as their mean. Needs the extra
    `chiplog[console]`.

    Args:
        every: A number of steps, or a frequency.
        view: Takes what to show out of the state.
        title: Above the table.
        total: The number of steps of the run, to show how much of it is done.
        file: Where to print. By default the standard output.

    Examples:
        >>> with ConsoleLogger(every=10) as logger:
        ...     for i in range(21):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        step 0  loss=1
        step 10  loss=0.09090909
        step 20  loss=0.04761905
    """

    def __init__(
        self,
        every: Frequency | int | None = None,
        *,
        view: View | None = None,
        title: str = "",
        total: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        super().__init__(view=view, every=every)
        self._title, self._total, self._file = title, total, file
        self._lines = Schedule(EverySeconds(QUIET) if every is None else None)
        self._unsaid: dict[tuple[str, ...], Record] = {}
        self._values: dict[str, History] = {}
        self._pace: collections.deque[tuple[float, float]] = collections.deque(maxlen=64)
        self._guard = threading.Lock()  # The table is drawn by a thread of rich.

    def open(self) -> None:
        """Start showing the table."""
        console = load("rich.console", "ConsoleLogger", "console")
        self._table, self._live_module = (
            load(f"rich.{name}", "ConsoleLogger", "console") for name in ("table", "live")
        )
        self._console = console.Console(file=self._file)
        self._live = None
        self._begun = time.monotonic()
        if self._console.is_terminal:
            self._live = self._live_module.Live(
                console=self._console, get_renderable=self._draw, refresh_per_second=8
            )
            self._live.__enter__()

    def write(self, record: Record) -> None:
        """Take a record into the table, or print it."""
        if self._live is None:
            kind = tuple(record.values)
            if self._lines.take(record.step, kind):
                self._unsaid.pop(kind, None)
                self._say(record)
            else:
                self._unsaid[kind] = record
            return
        with self._guard:
            for name, value in record.values.items():
                number = scalar(value, record.valid.get(name))
                if number is not None:
                    self._values.setdefault(name, History(2 * WIDTH)).add(record.step, number)
            self._pace.append((time.monotonic(), record.step))

    def close(self, error: BaseException | None) -> None:
        """Show the last values."""
        if self._live is not None:
            self._live.__exit__(None, None, None)
        for record in self._unsaid.values():
            self._say(record)

    def fork(self, run: RunInfo) -> Section:
        """All runs are in one table, with their names in front."""
        return Section(self, run.name)

    def _say(self, record: Record) -> None:
        line = f"step {record.step}  {record.line()}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Any:
        with self._guard:
            table = self._table.Table(title=self._title or None, caption=self._caption())
            table.add_column("")
            for column in ("now", "change", "lowest", "highest"):
                table.add_column(column, justify="right", no_wrap=True)
            table.add_column("course", no_wrap=True)
            for name, history in self._values.items():
                table.add_row(name, *_cells(history))
        return table

    def _caption(self) -> str:
        if not self._pace:
            return "waiting for the first entry"
        elapsed = time.monotonic() - self._begun
        (then, first), (now, step) = self._pace[0], self._pace[-1]
        of = f" of {self._total}" if self._total else ""
        text = f"step {step}{of}   {elapsed:.0f} s"
        if now > then and step > first:
            text += f"   {(step - first) / (now - then):.3g} steps/s"
        return text


def _cells(history: History) -> list[str]:
    steps, values = history.curve()
    del steps
    before = values[-2] if len(values) > 1 else math.nan
    change = history.latest - before
    now = f"{history.latest:.5g}"
    return [
        f"[bold]{now}[/]" if math.isfinite(history.latest) else f"[bold red]{now}[/]",
        "" if math.isnan(before) else f"{change:+.2g}",
        f"{history.lowest:.4g}",
        f"{history.highest:.4g}",
        sparkline(values[-WIDTH:]) if len(values) <= WIDTH else sparkline(_squeezed(values)),
    ]


def _squeezed(values: list[float]) -> list[float]:
    """As many values as a sparkline has room for: the mean of neighbours."""
    edges = [round(i * len(values) / WIDTH) for i in range(WIDTH + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: list[float]) -> str:
    """Draw numbers as a line of bars; those that are no numbers are dots."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        BARS[round((value - low) * scale)] if math.isfinite(value) else "·" for value in values
    )
