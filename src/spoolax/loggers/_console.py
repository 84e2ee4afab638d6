"""A live table in the terminal."""

from __future__ import annotations

import collections
import math
import re
import threading
import time
from typing import Any, TextIO

import numpy as np

from .._extras import load
from .._logdict.logdict import LogDict
from .._processes import Processes
from .._rows import overrides
from .._show import html
from .._show.curves import sparkline, svg_curve
from .._show.notebook import Page, in_notebook
from .._show.words import duration, number
from .._tap.host import host
from .._watch.bar import screen
from ._history import History
from ._protocol.entries import entries_of
from ._protocol.frequency import EverySeconds, Frequency, Schedule, is_beside_states
from ._protocol.record import Record, make_record, read, scalar
from ._protocol.runs import RunInfo
from ._protocol.steps import steps_of
from ._protocol.wrappers import PrefixedLogger
from ._protocol.writer import Viewer, WritingLogger

POINTS = 64  # Points of a curve.
SHORTEST, LONGEST = 8, 32  # Columns of the terminal for a curve.
# Columns of the table and their widths, which do not depend on the numbers, or it would jump about.
# Where there is no room, the last ones are left out. Names get at least `NARROW`, in several lines.
COLUMNS = {"now": 11, "change": 8, "lowest": 10, "highest": 10}
NARROW = 24
GAP = 3  # Between two columns.
PAGE_EVERY = 0.25  # Seconds between updates in a notebook.
LINE_EVERY = 1.0  # Seconds between lines, if the output is not a terminal and `every` is not given.


class ConsoleLogger(WritingLogger):
    """Shows a live table: every value, its change, its curve, and how many steps run per second.

    With `total`, there is a bar, and the time that is left. Progress bars of programs that run
    meanwhile are shown below the table, which leaves out columns where the terminal is narrow.

    The curve covers the whole run, on a logarithmic scale if the value spans more than a factor of
    30; the change is since the last point of the curve. Arrays are shown as their mean. In a
    notebook, the table is HTML, and stays in the output of the cell. If the output is neither that
    nor a terminal, it prints lines instead, at most one per second or as `every` says, so that logs
    of batch jobs stay readable. Needs rich (the extra `console`).

    Args:
        every: A number of steps, or a frequency.
        view: Takes what to show out of the state.
        title: What to write above the table.
        total: The number of steps of the run, to show how many of them are done, and how long the
            rest will take.
        file: Where to print, by default standard output.
        processes: Of several processes, whether the "first" writes, or "each".

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
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        self._title, self._total, self._file = title, total, file
        self._lines = Schedule(EverySeconds(LINE_EVERY) if every is None else None)
        self._all_count = every is None  # In a table, or in lines of now and then.
        self._unprinted: dict[tuple[str, ...], Record] = {}
        self._values: dict[str, History] = {}
        self._others: dict[str, str] = {}  # What is not a number.
        self._pace: collections.deque[tuple[float, float]] = collections.deque(maxlen=64)
        self._first: int | None = None
        self._at = -1  # The last step.
        self._guard = threading.Lock()  # A thread of rich draws the table.

    @property
    def file(self) -> TextIO:
        """Where it prints."""
        return self._console.file  # type: ignore[no-any-return]

    def open(self) -> None:
        """Start showing the table."""
        self._rich = {
            name: load(f"rich.{name}", "ConsoleLogger", "console")
            for name in ("box", "console", "live", "progress_bar", "table", "text")
        }
        self._console = self._rich["console"].Console(file=self._file)
        self._live, self._page = None, Page() if self._file is None and in_notebook() else None
        self._begun, self._shown = time.monotonic(), 0.0
        if self._page is not None:
            self._show_page()
        elif self._console.is_terminal:
            self._live = self._rich["live"].Live(
                console=self._console, get_renderable=self._draw, refresh_per_second=8
            )
            screen.open(self)  # It draws progress bars as well.
            try:
                self._live.__enter__()
            except RuntimeError:  # Threads cannot be started any more. Lines will do.
                self._live.stop()
                self._live = None
                with screen.closing(self):
                    pass

    def log(self, state: Any, step: int) -> None:
        """Show what the view takes out of a state."""
        if not is_beside_states(state):
            self._first = step if self._first is None else self._first
            self._at = max(self._at, step)
        super().log(state, step)

    def skipped(self, steps: int) -> None:
        """Count steps whose state is not needed."""
        self._at += steps

    def print_above(self, line: str) -> None:
        """Print a line above the table."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def write(self, record: Record) -> None:
        """Add a record to the table, or print it."""
        if self._live is None and self._page is None:
            keys = tuple(record.values)
            if self._lines.take(record.step, keys):
                self._unprinted.pop(keys, None)
                self._print(record)
            else:
                self._unprinted[keys] = record
            return
        with self._guard:
            for name, value in record.values.items():
                self._add(name, value, [record.step], [scalar(value, record.valid.get(name))])
            self._pace.append((time.monotonic(), record.step))
        self._show_page_if_due()

    def log_many(self, logs: LogDict) -> None:
        """Add many entries to the table at once."""
        if not (self.takes_many and host.delivers_to(self._sink)):
            super().log_many(logs)
            return
        steps = steps_of(logs, self._counts).tolist()
        if not is_beside_states(logs):
            self._first = steps[0] if self._first is None else self._first
            self._at = max(self._at, *steps)
        if self._live is None and self._page is None:
            *_, last = entries_of(logs.slice[-1:])  # All have come at once; this is how it is now.
            self.write(make_record(last, read(self._view.of(last)), step=steps[-1]))
            return
        batch = make_record(logs, read(self._view.of(logs)), step=-1)
        with self._guard:
            for name, values in batch.values.items():
                valid = batch.valid.get(name)
                masks = [None] * len(steps) if valid is None else valid
                points = [scalar(x, mask) for x, mask in zip(values, masks, strict=True)]
                self._add(name, values[-1], steps, points)
            self._pace.append((time.monotonic(), steps[-1]))
        self._show_page_if_due()

    @property
    def takes_many(self) -> bool:
        """Whether it takes entries in batches: if `every` does not say which of them count."""
        as_they_are = not overrides(self, ConsoleLogger, ["write"]) and not self._view.is_chosen
        return self.is_open and as_they_are and self._schedule.is_always and self._all_count

    def _add(self, name: str, latest: Any, steps: list[int], points: list[float | None]) -> None:
        """Add points to the curve of a value."""
        if points[-1] is None:
            self._others[name] = str(latest)
            return
        size = np.size(latest)
        label = f"{name} (mean of {size})" if size > 1 else name
        history = self._values.setdefault(label, History(POINTS))
        for step, point in zip(steps, points, strict=True):
            if point is not None:
                history.add(step, point)

    def _show_page_if_due(self) -> None:
        if self._page is not None and time.monotonic() - self._shown >= PAGE_EVERY:
            self._show_page()

    def _show_page(self) -> None:
        """Show the table in a notebook."""
        assert self._page is not None
        status, fraction = self._progress()
        bar = "" if fraction is None else html.bar(fraction)
        rows = [
            [name, *_cells(history), html.Markup(svg_curve(history.curve()[1]))]
            for name, history in self._values.items()
        ]
        rows += [[name, value, "", "", "", ""] for name, value in self._others.items()]
        header = ["", *COLUMNS, "course"] if rows else []
        table = html.table(rows, header, numbers=(1, 2, 3, 4)) if rows else ""
        self._page.show_html(html.titled(self._title, status, bar + table))
        self._shown = time.monotonic()

    def close(self, error: BaseException | None) -> None:
        """Show the last values."""
        if self._live is not None:
            with screen.closing(self):
                self._live.__exit__(None, None, None)
        if self._page is not None:
            self._show_page()
        for record in self._unprinted.values():
            self._print(record)

    def fork(self, run: RunInfo) -> PrefixedLogger:
        """All runs share one table, with their names in front of the keys."""
        return PrefixedLogger(self, run.name)

    def _print(self, record: Record) -> None:
        self.print_above(f"step {record.step}  {record.line()}")

    def _draw(self) -> Any:
        width = self._console.width
        with self._guard:
            parts = [self._status()]
            if self._values or self._others:
                parts.append(self._draw_table(width))
        bars = [bar.line(width - 1) for bar in screen.bars_in(self)]
        return self._rich["console"].Group(*parts, *map(self._rich["text"].Text, bars))

    def _draw_table(self, width: int) -> Any:
        text = self._rich["text"].Text
        rows = {name: _cells(history) for name, history in self._values.items()}
        rows |= {name: [value, "", "", ""] for name, value in self._others.items()}
        columns, longest = dict(COLUMNS), max(map(len, rows))

        def left() -> int:
            """The room for names and curves."""
            return width - sum(GAP + size for size in columns.values()) - GAP - 2

        while len(columns) > 1 and left() < longest + SHORTEST:
            columns.popitem()
        names = min(longest, max(NARROW, left() - SHORTEST))
        course = max(SHORTEST, min(LONGEST, left() - names))
        table = self._rich["table"].Table(box=self._rich["box"].SIMPLE_HEAD, pad_edge=False)
        table.add_column("", no_wrap=True, width=names)
        for title, size in columns.items():
            table.add_column(title, justify="right", no_wrap=True, width=size)
        table.add_column("course", no_wrap=True)
        for name, (now, *others) in rows.items():
            points = self._values[name].curve()[1] if name in self._values else []
            style = "bold red" if now in ("nan", "inf", "-inf") else "bold"
            cells = [text(now, style=style), *others[: len(columns) - 1]]
            table.add_row(text(_folded(name, names)), *cells, sparkline(points, course))
        return table

    def _status(self) -> Any:
        """How far the run is."""
        return self._line(*self._progress())

    def _progress(self) -> tuple[str, float | None]:
        """How far the run is, how long that took, and how long the rest will take."""
        elapsed = duration(time.monotonic() - self._begun)
        if not self._pace:
            return f"compiling, or in the first step ... {elapsed}", None
        (then, first), (now, step) = self._pace[0], self._pace[-1]
        pace = (step - first) / (now - then) if now > then and step > first else 0.0
        speed = f"   {pace:.3g} steps/s" if pace else ""
        if not self._total:
            return f"step {self._at}   {elapsed}{speed}", None
        done = min(self._done(), self._total)
        left = (self._total - done) / pace if pace else 0.0
        rest = f", {duration(left)} left" if left else ""
        text = f"{done / self._total:4.0%}   {done} of {self._total} steps   {elapsed}{rest}{speed}"
        return text, done / self._total

    def _line(self, status: str, fraction: float | None = None) -> Any:
        line = self._rich["table"].Table.grid(padding=(0, 2))
        cells = [self._rich["text"].Text(self._title, style="bold")] if self._title else []
        room = self._console.width - len(status) - 2 - (len(self._title) + 2) * bool(self._title)
        if fraction is not None and room >= SHORTEST:
            bar = self._rich["progress_bar"].ProgressBar
            cells.append(bar(total=1.0, completed=fraction, width=min(room, LONGEST)))
        line.add_row(*cells, self._rich["text"].Text(status, no_wrap=True, overflow="ellipsis"))
        return line

    def _done(self) -> int:
        """How many steps are done. They may be counted from 1, or from where a run is resumed."""
        first = self._first or 0
        return self._at + 1 - (first if first == 1 or first >= (self._total or 0) else 0)


def _cells(history: History) -> list[str]:
    values = history.curve()[1]
    before = values[-2] if len(values) > 1 else math.nan
    change = history.latest - before
    known = history.lowest <= history.highest
    return [
        number(history.latest, 5),
        "" if math.isnan(before) else f"{'+' if change >= 0 else ''}{number(change, 2)}",
        number(history.lowest, 4) if known else "",
        number(history.highest, 4) if known else "",
    ]


def _folded(name: str, width: int) -> str:
    """Break a name into lines, after a slash if there is one."""
    lines = [""]
    for part in re.findall("[^/]*/|[^/]+", name):
        if len(lines[-1]) + len(part) > width and lines[-1].strip():
            lines.append("  ")
        lines[-1] += part
        while len(lines[-1]) > width:
            lines[-1:] = lines[-1][:width], f"  {lines[-1][width:]}"
    return "\n".join(lines)
