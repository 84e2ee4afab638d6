"""The last entries before a crash."""

from __future__ import annotations

import collections
from pathlib import Path

from .._processes import Processes
from ..errors import LogValueError
from ._protocol.as_json import as_json
from ._protocol.frequency import Frequency
from ._protocol.paths import StrPath, run_path, writable
from ._protocol.record import Record
from ._protocol.runs import RunInfo
from ._protocol.writer import Viewer, WritingLogger


class RingBufferLogger(WritingLogger):
    """Keeps the last `k` entries in memory, and writes them to a file when the run raises.

    The file has one JSON object per line, like that of `JsonlLogger`. Without a path, entries are
    only kept: `logger.records`.

    Args:
        k: How many to keep.
        path: The file to write when the run raises. An existing file is replaced.
        view: Takes what to keep out of the state.
        every: A number of steps, or a frequency.
        processes: Of several processes, whether the "first" writes, or "each".

    Examples:
        >>> with RingBufferLogger(2) as logger:
        ...     for i in range(10):
        ...         logger.log({"x": i}, i)
        >>> [(record.step, record.values["x"]) for record in logger.records]
        [(8, 8), (9, 9)]
    """

    def __init__(
        self,
        k: int,
        path: StrPath | None = None,
        *,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        if not isinstance(k, int) or k < 1:
            raise LogValueError(f"`k` must be a positive number of entries to keep, not {k!r}.")
        self._records: collections.deque[Record] = collections.deque(maxlen=k)
        self.path = None if path is None else Path(path)

    @property
    def records(self) -> list[Record]:
        """The last entries, oldest first."""
        return list(self._records)

    def open(self) -> None:
        """Check that the file can be written."""
        if self.path is not None:
            self.path = writable(self.path, "RingBufferLogger")

    def write(self, record: Record) -> None:
        """Keep a record."""
        self._records.append(record)

    def close(self, error: BaseException | None) -> None:
        """Write the file if the run failed."""
        if error is not None and self.path is not None and self._records:
            lines = [as_json(record) + "\n" for record in self._records]
            self.path.write_text("".join(lines), encoding="utf-8")
            error.add_note(f"The last {len(lines)} entries before it are in {str(self.path)!r}.")

    def fork(self, run: RunInfo) -> RingBufferLogger:
        """Each run has its own buffer and file."""
        path = None if self.path is None else run_path(self.path, run)
        return self.remade(path=path)
