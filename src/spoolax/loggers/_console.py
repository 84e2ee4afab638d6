"""A live table in the terminal."""

from __future__ import annotations

import collections
import itertools
import math
import threading
import time
from typing import Any, TextIO

import numpy as np

from .._extras import load
from ._history import History
from ._protocol.frequency import EverySeconds, Frequency, Schedule
from ._protocol.record import Record, scalar
from ._protocol.runs import RunInfo
from ._protocol.wrappers import PrefixedLogger
from ._protocol.writer import Viewer, WritingLogger

BARS = "▁▂▃▄▅▆▇█"
POINTS = 64  # Points of a curve.
NUMBERS = 62  # Columns of the terminal that are not for names or curves.
WIDE = 30  # A curve that spans more than this factor is drawn on a logarithmic scale.
LINE_EVERY = 1.0  # Seconds between lines, if the output is not a terminal and `every` is not given.


class ConsoleLogger(WritingLogger):
    """Shows a live table: every value, its change, its curve, and how many steps run per second.

    The curve covers the whole run, on a logarithmic scale if the value spans more than a factor of
    30; the change is since the last point of the curve. Arrays are shown as their mean. If the
    output is not a terminal, it prints lines instead, at most one per second or as `every` says, so
    that logs of batch jobs stay readable. Needs rich (the extra `console`).

    Args:
        every: A number of steps, or a frequency.
        view: Takes what to show out of the state.
        title: What to write above the table.
        total: The number of steps of the run, to show how many of them are done.
        file: Where to print, by default standard output.

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
        view: Viewer = None,
        title: str = "",
        total: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        super().__init__(view=view, every=every)
        self._title, self._total, self._file = title, total, file
        self._lines = Schedule(EverySeconds(LINE_EVERY) if every is None else None)
        self._unprinted: dict[tuple[str, ...], Record] = {}
        self._values: dict[str, History] = {}
        self._others: dict[str, str] = {}  # What is not a number.
        self._pace: collections.deque[tuple[float, float]] = collections.deque(maxlen=64)
        self._guard = threading.Lock()  # A thread of rich draws the table.

    def open(self) -> None:
        """Start showing the table."""
        console = load("rich.console", "ConsoleLogger", "console")
        self._table, self._text, live = (
            load(f"rich.{name}", "ConsoleLogger", "console") for name in ("table", "text", "live")
        )
        self._console = console.Console(file=self._file)
        self._live = None
        self._begun = time.monotonic()
        if self._console.is_terminal:
            self._live = live.Live(
                console=self._console, get_renderable=self._draw, refresh_per_second=8
            )
            try:
                self._live.__enter__()
            except RuntimeError:  # Threads cannot be started any more. Lines will do.
                self._live.stop()
                self._live = None

    def write(self, record: Record) -> None:
        """Add a record to the table, or print it."""
        if self._live is None:
            keys = tuple(record.values)
            if self._lines.take(record.step, keys):
                self._unprinted.pop(keys, None)
                self._print(record)
            else:
                self._unprinted[keys] = record
            return
        with self._guard:
            for name, value in record.values.items():
                number = scalar(value, record.valid.get(name))
                if number is None:
                    self._others[name] = str(value)
                    continue
                size = np.size(value)
                label = f"{name} (mean of {size})" if size > 1 else name
                self._values.setdefault(label, History(POINTS)).add(record.step, number)
            self._pace.append((time.monotonic(), record.step))

    def close(self, error: BaseException | None) -> None:
        """Show the last values."""
        if self._live is not None:
            self._live.__exit__(None, None, None)
        for record in self._unprinted.values():
            self._print(record)

    def fork(self, run: RunInfo) -> PrefixedLogger:
        """All runs share one table, with their names in front of the keys."""
        return PrefixedLogger(self, run.name)

    def _print(self, record: Record) -> None:
        line = f"step {record.step}  {record.line()}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Any:
        with self._guard:
            title = self._text.Text(f"{self._title}   {self._status()}".strip())
            table = self._table.Table(title=title)
            room = self._console.width - NUMBERS
            names = min(max(map(len, self._values), default=0), max(16, room - 8))
            table.add_column("", no_wrap=True, overflow="ellipsis", max_width=names)
            for column in ("now", "change", "lowest", "highest"):
                table.add_column(column, justify="right", no_wrap=True)
            table.add_column("course", no_wrap=True)
            for name, history in self._values.items():
                course = max(8, min(32, room - names))
                table.add_row(self._text.Text(name), *_cells(history, course))
            for name, value in self._others.items():
                table.add_row(self._text.Text(name), self._text.Text(value))
        return table

    def _status(self) -> str:
        if not self._pace:
            return "waiting for the first entry"
        elapsed = time.monotonic() - self._begun
        (then, first), (now, step) = self._pace[0], self._pace[-1]
        of = f" of {self._total}" if self._total else ""
        text = f"step {step}{of}   {elapsed:.0f} s"
        if now > then and step > first:
            text += f"   {(step - first) / (now - then):.3g} steps/s"
        return text


def _cells(history: History, width: int) -> list[str]:
    steps, values = history.curve()
    del steps
    before = values[-2] if len(values) > 1 else math.nan
    change = history.latest - before
    now = _number(history.latest, 5)
    known = history.lowest <= history.highest
    return [
        f"[bold]{now}[/]" if math.isfinite(history.latest) else f"[bold red]{now}[/]",
        "" if math.isnan(before) else f"{'+' if change >= 0 else ''}{_number(change, 2)}",
        _number(history.lowest, 4) if known else "",
        _number(history.highest, 4) if known else "",
        sparkline(_squeezed(values, width)),
    ]


def _number(x: float, digits: int) -> str:
    is_whole = abs(x) < 1e9 and x == int(x)
    return str(int(x)) if is_whole else f"{x:.{digits}g}"


def _squeezed(values: list[float], most: int) -> list[float]:
    """As many values as there is room for, each the mean of neighbours."""
    most = min(most, len(values))
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: list[float]) -> str:
    """Draw numbers as a line of bars; NaN and infinities are dots."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low > 0 and high > WIDE * low:  # A linear scale would show nothing but the start.
        return sparkline([math.log(x) if math.isfinite(x) else x for x in values])
    if math.isinf(high - low):
        return sparkline([value / 4 for value in values])
    most = len(BARS) - 1
    return "".join(
        BARS[round((x - low) / (high - low) * most) if high > low else 0]
        if math.isfinite(x)
        else "·"
        for x in values
    )
