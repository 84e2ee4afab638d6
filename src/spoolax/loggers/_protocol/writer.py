"""The base class of loggers that write something: they get values by name, on the worker thread.

The thread of the user's loop only copies what is to be written, and hands it over, so it waits
neither for the device nor for a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..._processes import Processes, checked_processes
from ..._rows import InLoop, Rows, never, overrides, row_view
from ..._tap.backlog import run_of
from ..._tap.host import host
from ..._tap.sinks import Sink
from .frequency import Frequency, Schedule, entry_keys
from .logger import Logger
from .record import Record, make_record, read
from .view import Copies, View

Viewer = Callable[[Any], Any] | None


class WritingLogger(Logger[Any]):
    """A logger that writes records. Derive from it and define `write`, and `open` and `close` if
    needed.

    `view` takes what is to be written out of the state, and is compiled if possible; `every` says
    how often to write, and `processes` where, if there are several.

    Examples:
        >>> class Collect(WritingLogger):
        ...     def open(self):
        ...         self.seen = []
        ...     def write(self, record):
        ...         self.seen.append((record.step, float(record.values["x"])))
        >>> with Collect(view=lambda state: {"x": state[0]}, every=2) as logger:
        ...     for i in range(4):
        ...         logger.log((i, "something else"), i)
        >>> logger.seen
        [(0, 0.0), (2, 2.0)]
    """

    concurrent = True

    def __init__(
        self,
        *,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
    ) -> None:
        self._view, self._schedule = View(view), Schedule(every)
        self.processes = checked_processes(processes)
        self.takes_entries = view is None
        self._sink = Sink(self._receive, owner=self)
        self._row_sink = Sink(self._receive_rows, owner=self)

    def open(self) -> None:
        """Get ready to write."""

    def write(self, record: Record) -> None:
        """Write a record. Its values are on the host."""
        raise NotImplementedError

    def close(self, error: BaseException | None) -> None:
        """Finish, after the last record.

        `error` is what ended the run, if it failed or was interrupted; see `ending`.
        """

    def __enter__(self) -> Self:
        self.open()
        return self

    def log(self, state: Any, step: int) -> None:
        """Write what the view takes out of a state."""
        self._raise_if_asked_to_stop()
        if not self._schedule.take(step, entry_keys(state)):
            return
        if host.delivers_to(self._sink):
            values = read(self._view.of(state))
            self.write(make_record(state, values, step))
        else:
            copies = self._view.copies(state, self._schedule.is_alike)
            record = make_record(state, dict.fromkeys(copies.order), step)
            host.post(self._sink, (record, copies), copies.nbytes, copies.waits)

    def accompany(self, state: Any, step: int) -> None:
        """Take part in reading arrays that span processes."""
        if self._schedule.take(step, entry_keys(state)):
            self._view.accompany(state, self._schedule.is_alike)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.ending is not None
        self.close(None if self.ending.status == "finished" else error)

    def wants(self, step: int) -> bool:
        """Say whether `every` includes the step."""
        return self._schedule.wanted(step)

    def in_loop(self, state: Any) -> InLoop:
        """Say that the view can run in a loop, if it can."""
        view = None
        if self._schedule.is_by_step and not overrides(self, WritingLogger):
            view = row_view(self._view.take, state, self._schedule.frequency.due, self._post_rows)
        return super().in_loop(state) if view is None else InLoop([view], never)

    def _raise_if_asked_to_stop(self) -> None:
        if self._sink.run is not None:
            self._sink.run.raise_if_asked_to_stop()

    def _post_rows(self, rows: Rows) -> None:
        self.check_open()
        if not self.is_silent:
            self._raise_if_asked_to_stop()
            host.post(self._row_sink, rows, rows.nbytes, rows.arrays)

    def _receive_rows(self, rows: Rows) -> None:
        # One by one, as if each had been posted: `write` may fail for some of them.
        values, one = rows.values(), Sink(self.write, owner=self)
        for row, step in enumerate(rows.steps):
            record = Record(step, {name: x[row] for name, x in values.items()}, time=rows.time)
            one.call(run_of(self._sink), record)

    def _receive(self, what: tuple[Record, Copies]) -> None:
        record, copies = what
        record.values = copies.read()
        self.write(record)
