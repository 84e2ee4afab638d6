"""Entries in a file, one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._logdict.logdict import LogDict
from .._rows import Rows, overrides
from .._tap.host import host
from ..errors import LogFileError, LogValueError
from ._protocol.as_json import as_json, as_json_lines, from_json
from ._protocol.frequency import Frequency
from ._protocol.paths import StrPath, run_path, writable
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
        mode: "a" appends to an existing file, "w" replaces it, "x" refuses it.
        view: Takes what to write out of the state.
        every: A number of steps, or a frequency.

    Examples:
        >>> import tempfile
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
        mode: str = "a",
        *,
        view: Viewer = None,
        every: Frequency | int | None = None,
    ) -> None:
        super().__init__(view=view, every=every)
        if mode not in ("a", "w", "x"):
            raise LogValueError(
                f"`mode={mode!r}` is not known: use 'a' to append to an existing file, 'w' to "
                "replace it, or 'x' to refuse it."
            )
        self.path, self._mode = Path(path), mode
        self._written, self._forked = 0, False

    def open(self) -> None:
        """Open the file."""
        self.path = writable(self.path, "JsonlLogger")
        if self._mode == "x" and self.path.exists():
            raise LogFileError(
                f"{str(self.path)!r} exists, and `mode='x'` refuses existing files. Choose another "
                "name, or `mode='a'` to append to it, or `mode='w'` to replace it."
            )
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


def read_jsonl(path: StrPath) -> Iterator[dict[str, Any]]:
    """Yield the entries that a `JsonlLogger` wrote, without lines cut off by a crash.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/log.jsonl"
        >>> with open(path, "w") as file:
        ...     _ = file.write('{"_step": 0, "loss": "NaN"}' + chr(10) + '{"_step": 1, "lo')
        >>> list(read_jsonl(path))
        [{'_step': 0, 'loss': nan}]
    """
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                yield from_json(line)
            except json.JSONDecodeError:
                continue
