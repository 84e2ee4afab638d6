"""TensorBoard."""

from __future__ import annotations

import json
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

    def load(self) -> None:
        """Import tensorboardX, and choose the directory."""
        self._x = load("tensorboardX", "TensorBoardLogger", "tensorboard")
        load("tensorboardX.summary", "TensorBoardLogger", "tensorboard")
        self.check_known(["filename_suffix"], "TensorBoard")
        words = self._made_with[1]
        if not words.get("run_id"):
            self.run_id = (
                self._seed or self.name or f"{time.strftime('%Y%m%d-%H%M%S')}-{self.run_id[:4]}"
            )
        given = words.get("project") or words.get("experiment")
        above = Path(self.directory or "runs").joinpath(*filter(None, [given, self.group]))
        self.path = above / self.run_id
        number = 1
        while self.resume == "never" and self._existing is None and _has_events(self.path):
            number += 1
            self.path = above / f"{self.run_id}-{number}"
        self.run_id = self.path.name

    def connect(self) -> None:
        """Begin a file, with the configuration in it."""
        if self.resume == "must" and not _has_events(self.path):
            raise ValueError(f"There is no run in {str(self.path)!r} to be resumed.")
        self.path.mkdir(parents=True, exist_ok=True)
        suffix = self.options.get("filename_suffix", f".{time.time_ns()}")
        writer = self._x.event_file_writer.EventsWriter
        self._writer = writer(str(self.path / "events"), suffix)
        about = {"config": self.config, "tags": self.tag_words, "group": self.group}
        about = {name: value for name, value in about.items() if value}
        if about:
            text = "\n".join(f"    {line}" for line in json.dumps(about, indent=2).splitlines())
            self._write(0, time.time(), self._x.summary.text("config", text).value)
        if self.config:
            flat = flat_config(self.config).items()
            simple = {k: v if isinstance(v, (str, int, float)) else str(v) for k, v in flat}
            # Without the first summary, TensorBoard finds out by itself which metrics there are.
            for summary in self._x.summary.hparams(simple, {})[1:]:
                self._write(None, time.time(), summary.value)
        self._writer.flush()

    def send(self, rows: list[Row]) -> None:
        """Write one event for each row."""
        summary = self._x.summary
        for row in rows:
            step = int(row.step)
            others = {name: at for name, at in row.steps.items() if name != row.axis}
            if step != row.step:
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
            self._write(step, row.time, values)
        self._writer.flush()

    def finish(self, failed: bool) -> None:
        """Close the file."""
        del failed
        self._writer.close()

    def _write(self, step: int | None, at: float, values: Any) -> None:
        proto = self._x.proto
        summary = proto.summary_pb2.Summary(value=values)
        self._writer.write_event(proto.event_pb2.Event(wall_time=at, step=step, summary=summary))

    def _native(self) -> Any:
        return self._writer


def _has_events(path: Path) -> bool:
    return any(path.glob("events.out.tfevents.*"))
