"""Entries in a file, one JSON object per line."""

from __future__ import annotations

from pathlib import Path

from .._logdict.logdict import LogDict
from .._processes import Processes
from .._rows import Rows, overrides
from .._tap.host import host
from ._protocol.as_json import as_json, as_json_lines
from ._protocol.frequency import Frequency
from ._protocol.paths import StrPath, check_free, check_mode, run_path, writable
from ._protocol.record import Record, make_record, read
from ._protocol.runs import RunInfo
from ._protocol.steps import steps_of
from ._protocol.writer import Viewer, WritingLogger


class JsonlLogger(WritingLogger):
    """Appends a JSON object to a file for every entry.

    An object has `_step`, `_time`, the named steps, and the values by name: arrays are lists, and
    NaN and infinities are strings (`read_jsonl` turns them back). What was delivered is with the
    operating system, so a crash of the process leaves a readable file.

    Args:
        path: The file. Its directory is made if needed.
        mode: "x" refuses a file that exists, "w" replaces it, "a" appends to it.
        view: Takes what to write out of the state.
        every: A number of steps, or a frequency.
        processes: Of several processes, whether the "first" writes, or "each a file of its own".

    Examples:
        >>> import tempfile
        >>> from spoolax.loggers import read_jsonl
        >>> path = tempfile.mkdtemp() + "/log.jsonl"
        >>> with JsonlLogger(path) as logger:
        ...     for i in range(2):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        >>> [(line["_step"], line["loss"]) for line in read_jsonl(path)]
        [(0, 1.0), (1, 0.5)]
    """

    keeps_order = True

    def __init__(
        self,
        path: StrPath,
        mode: str = "x",
        *,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        check_mode(mode, "xwa")
        self.path, self._mode = Path(path), mode
        self._written, self._forked = 0, False

    def open(self) -> None:
        """Open the file."""
        self.path = writable(self.path, "JsonlLogger")
        check_free(self.path, self._mode, "xwa")
        torn = self._mode == "a" and _ends_mid_line(self.path)
        self._file = open(self.path, self._mode, encoding="utf-8")  # noqa: SIM115
        if torn:  # By a crash. The next line must not be lost with it.
            self._file.write("\n")

    def write(self, record: Record) -> None:
        """Append a record."""
        self._append([as_json(record)])

    def log_many(self, logs: LogDict) -> None:
        """Append many entries at once."""
        if self.takes_many and host.delivers_to(self._sink):
            steps = steps_of(logs, self._counts)
            if steps.dtype.kind in "iu":  # Others may not be numbers, or be whole ones.
                values = read(self._view.of(logs))
                record = make_record(logs, values, step=-1)  # Each of them has its own.
                self._append(as_json_lines(record, steps.tolist()))
                return
        super().log_many(logs)

    def _receive_rows(self, rows: Rows) -> None:
        if overrides(self, JsonlLogger, ["write"]):
            super()._receive_rows(rows)
            return
        batch = Record(-1, rows.values(), time=rows.time)
        self._append(as_json_lines(batch, rows.steps))

    @property
    def takes_many(self) -> bool:
        """Whether it takes entries in batches: only if it writes all of them as they are."""
        as_they_are = not overrides(self, JsonlLogger, ["write"]) and not self._view.is_chosen
        return as_they_are and self._schedule.is_always

    def _append(self, lines: list[str]) -> None:
        self._file.write("\n".join([*lines, ""]))
        self._file.flush()
        self._written += len(lines)

    def close(self, error: BaseException | None) -> None:
        """Close the file, and remove it if it is empty because only runs of `init` were logged."""
        self._file.close()
        if not self._written and self._forked and not self.path.stat().st_size:
            self.path.unlink()

    def fork(self, run: RunInfo) -> JsonlLogger:
        """Each run has its own file."""
        self._forked = True
        return self.remade(path=run_path(self.path, run))


def _ends_mid_line(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"
