"""TensorBoard."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

from .._extras import load
from ._config import flat_config
from ._rows import Row
from ._tracker import TrackerLogger


class TensorBoardLogger(TrackerLogger):
    """Writes files for TensorBoard.

    The words are those of `TrackerLogger`. Each run has a directory,
    `directory/project/group/run_id`, of which those are left out that were not given; `directory`
    is "runs" by default. A run that is there already is not added to, unless `resume` says so: the
    new one gets a number. `filename_suffix` is the one option besides.

    TensorBoard draws over one step, which is whole, and keeps numbers in 32 bits. Other steps are
    curves themselves.

    Examples:
        >>> logger = TensorBoardLogger(directory="runs", name="first", config={"lr": 1e-3})
        >>> logger.name
        'first'
    """

    title = "TensorBoard"
    modes = ("offline",)
    most = 200
    _chosen = ""
    _own: Any = None  # A writer of tensorboardX, if somebody wants one.

    def load(self) -> None:
        """Import tensorboardX, and choose the directory."""
        self._x = load("tensorboardX", "TensorBoardLogger", "tensorboard")
        load("tensorboardX.summary", "TensorBoardLogger", "tensorboard")
        self.check_known(["filename_suffix"], "TensorBoard")
        self._here = (self.directory or Path("runs")).absolute()
        above = self._here.joinpath(*filter(None, [self.given_project, self.group]))
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{self.unique[:4]}"
        name = self._given_id or self._seed or self.name or stamp
        name = "/".join(part for part in name.split("/") if part.strip("."))  # Not elsewhere.
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
        """Begin a file, with the configuration in it."""
        if self.resume == "must" and not any(self.path.glob("events.out.tfevents.*")):
            raise ValueError(f"there is no run in {str(self.path)!r} to be resumed")
        self._begin()
        about = {"config": self.config, "tags": self.tag_words, "group": self.group}
        about = {name: value for name, value in about.items() if value}
        events = []
        if about:
            text = "\n".join(f"    {line}" for line in json.dumps(about, indent=2).splitlines())
            events.append(self._event(0, time.time(), self._x.summary.text("config", text).value))
        if self.config:
            flat = flat_config(self.config).items()
            simple = {k: v if isinstance(v, (str, int, float)) else str(v) for k, v in flat}
            # Without the first summary, TensorBoard finds out by itself which metrics there are.
            for summary in self._x.summary.hparams(simple, {})[1:]:
                events.append(self._event(None, time.time(), summary.value))
        self._write(events)

    def _begin(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        suffix = self.options.get("filename_suffix", "")
        name = (
            f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{time.time_ns()}{suffix}"
        )
        path = self.path / name
        # Without a buffer, so that nothing is written later than we think.
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        version = self._x.proto.event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
        try:
            self._write([version])
        except OSError:
            self._file.close()
            path.unlink()
            raise

    def send(self, rows: list[Row]) -> None:
        """Write one event for each row."""
        self._write([self._event(int(row.step), row.time, self._values(row)) for row in rows])

    def _values(self, row: Row) -> list[Any]:
        summary = self._x.summary
        others = {name: at for name, at in row.steps.items() if name != row.axis}
        if row.step != int(row.step):
            others[row.axis] = row.step
        values = [
            self._x.proto.summary_pb2.Summary.Value(tag=name, simple_value=float(number))
            for name, number in (row.scalars | others).items()
        ]
        for name, (counts, edges, low, high, total, squares) in row.histograms.items():
            about = low, high, sum(counts), total, squares
            # What is below the first edge has a place of its own.
            values += summary.histogram_raw(name, *about, edges, [0, *counts]).value
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
        """Write all of them, or none."""
        data = memoryview(b"".join(self._framed(event.SerializeToString()) for event in events))
        size = self._file.tell()
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException:
            # They will be written again, so they must not be there already.
            self._file.truncate(size)
            self._file.seek(size)
            raise

    def _framed(self, data: bytes) -> bytes:
        """A record as it is in such files: its length and itself, each with a checksum."""
        checksum = self._x.record_writer.masked_crc32c
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", checksum(part)) for part in (length, data))
        return length + next(sums) + data + next(sums)

    def finish(self, failed: bool) -> None:
        """Close the file."""
        del failed
        self._file.close()
        if self._own is not None:
            self._own.close()

    def close(self, error: BaseException | None) -> None:
        """Close the run; if only runs of `init` were logged, its directory is not needed."""
        super().close(error)
        if self._forked:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def words(self) -> dict[str, Any]:
        """Where the run is, wherever we are."""
        words = {"project": self.given_project}
        if self.resume == "never":  # The directory is there already, and ours.
            words["resume"] = "allow"
        return {**super().words(), **words}

    def _native(self) -> Any:
        if self._own is None:
            self._own = self._x.SummaryWriter(str(self.path))
        return self._own
