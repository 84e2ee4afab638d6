"""TensorBoard."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import time
import uuid
from pathlib import Path
from typing import Any

from ..._extras import load
from .._protocol.ending import Ending
from ._config import flat_config
from ._rows.row import TrackerRow, steps_to_log
from ._tracker import TrackerLogger


class TensorBoardLogger(TrackerLogger):
    """Writes files for TensorBoard.

    It takes the arguments of `TrackerLogger`, and `filename_suffix`. Each run has a directory,
    `directory/project/group/run_id`, without those of them that were not given; `directory` is
    "runs" by default. Without `resume`, nothing is added to a run that exists: the new one gets a
    number.

    TensorBoard draws over a single integer step, and keeps numbers in 32 bits. Other steps become
    curves.

    Examples:
        >>> logger = TensorBoardLogger(directory="runs", name="first", config={"lr": 1e-3})
        >>> logger.name
        'first'
    """

    title = "TensorBoard"
    modes = ("offline",)
    most = 200
    _chosen = ""
    _writer: Any = None  # Of tensorboardX, if somebody asked for it.

    def load(self) -> None:
        """Import tensorboardX, and choose the directory."""
        self._x = load("tensorboardX", "TensorBoardLogger", "tensorboard")
        load("tensorboardX.summary", "TensorBoardLogger", "tensorboard")
        self.check_known(["filename_suffix"], "TensorBoard")
        self._here = (self.directory or Path("runs")).absolute()
        above = self._here.joinpath(*filter(None, [self.given_project, self.group]))
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{self.unique[:4]}"
        name = self._given_id or self._seed or self.name or stamp
        name = "/".join(part for part in name.split("/") if part.strip("."))  # No "..".
        self._chosen, self.path = name, above / name
        for number in itertools.count(2):
            if self.resume != "never":
                break
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(parents=True)  # Now it is ours.
                break
            self._chosen = f"{name}-{number}"
            self.path = above / self._chosen

    @property
    def run_id(self) -> str:
        """The directory of the run, among those of its group."""
        return self._chosen or super().run_id

    def connect(self) -> None:
        """Begin a file, which has the configuration in it."""
        if self.resume == "must" and not any(self.path.glob("events.out.tfevents.*")):
            raise ValueError(f"there is no run in {str(self.path)!r} to resume")
        now, suffix = time.time_ns(), self.options.get("filename_suffix", "")
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}{suffix}"
        self._file = self.path / name
        self._write([])

    def _beginning(self) -> list[Any]:
        """The first events of a file: its version, and the configuration."""
        at = time.time()
        events = [self._x.proto.event_pb2.Event(wall_time=at, file_version="brain.Event:2")]
        about = {"config": self.config, "tags": self.tag_list, "group": self.group}
        about = {name: value for name, value in about.items() if value}
        if about:
            text = "\n".join(f"    {line}" for line in json.dumps(about, indent=2).splitlines())
            events.append(self._event(0, at, self._x.summary.text("config", text).value))
        if self.config:
            hparams = {name: _hparam(x) for name, x in flat_config(self.config).items()}
            # Without the first summary, which lists metrics, TensorBoard finds them itself.
            for summary in self._x.summary.hparams(hparams, {})[1:]:
                events.append(self._event(None, at, summary.value))
        return events

    def send(self, rows: list[TrackerRow]) -> None:
        """Write one event for each row."""
        self._write([self._event(int(row.step), row.time, self._values(row)) for row in rows])

    def _values(self, row: TrackerRow) -> list[Any]:
        summary = self._x.summary
        values = [
            self._x.proto.summary_pb2.Summary.Value(tag=name, simple_value=float(number))
            for name, number in (row.scalars | steps_to_log(row)).items()
        ]
        for name, (counts, edges, low, high, total, squares) in row.histograms.items():
            # The first bin is for what is below the first edge.
            stats = low, high, sum(counts), total, squares
            values += summary.histogram_raw(name, *stats, edges, [0, *counts]).value
        for name, image in row.images.items():
            form = "HW" if image.ndim == 2 else "HWC"
            values += summary.image(name, image, dataformats=form).value
        for name, text in row.texts.items():
            values += summary.text(name, text).value
        return values

    def _event(self, step: int | None, at: float, values: Any) -> Any:
        proto = self._x.proto
        summary = proto.summary_pb2.Summary(value=values)
        return proto.event_pb2.Event(wall_time=at, step=step, summary=summary)

    def _write(self, events: list[Any]) -> None:
        """Write all of them, or none.

        The file is opened every time, so that there can be thousands of runs at once, and without a
        buffer, so that nothing is written later than we think.
        """
        if not self._file.exists():  # It is new, or somebody has removed it.
            self.path.mkdir(parents=True, exist_ok=True)
            events = self._beginning() + events
        data = memoryview(b"".join(self._framed(event.SerializeToString()) for event in events))
        with open(self._file, "ab", buffering=0) as file:
            size = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except BaseException:
                # They will be sent again, so none of them must stay.
                file.truncate(size)
                if not size:
                    self._file.unlink()
                raise

    def _framed(self, data: bytes) -> bytes:
        """A record as it is in event files: its length and its data, each with a checksum."""
        checksum = self._x.record_writer.masked_crc32c
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", checksum(part)) for part in (length, data))
        return length + next(sums) + data + next(sums)

    def finish(self, ending: Ending) -> None:
        """Write a text if the run was cut short, and close the writer of tensorboardX."""
        if ending != Ending("finished"):
            text = self._x.summary.text("status", f"{ending.status}: {ending.reason}").value
            self._write([self._event(None, time.time(), text)])
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self, error: BaseException | None) -> None:
        """Close the run; if only runs of `init` were logged, its directory is empty and goes."""
        super().close(error)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def arguments(self) -> dict[str, Any]:
        """Arguments that make such a logger again, for the same directory."""
        arguments = {**super().arguments(), "project": self.given_project}
        if self.resume == "never":  # The directory exists already, and is ours.
            arguments["resume"] = "allow"
        return arguments

    def _native(self) -> Any:
        if self._writer is None:
            # tensorboardX names files by the second: one would replace the other.
            suffix = f".{uuid.uuid4().hex[:8]}"
            self._writer = self._x.SummaryWriter(str(self.path), filename_suffix=suffix)
        return self._writer


def _hparam(value: Any) -> str | int | float:
    """A hyperparameter as TensorBoard can have it: a number, or else a text."""
    is_number = isinstance(value, (int, float)) and abs(value) < 2**63
    return value if is_number else str(value)
