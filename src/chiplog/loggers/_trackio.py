"""Trackio."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._extras import load
from ..errors import LogValueError
from ._rows import Row
from ._tracker import TrackerLogger

RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}
PLACE = "TRACKIO_DIR"


class TrackioLogger(TrackerLogger):
    """Logs to Trackio: to a database on this machine, or to a server or a Space.

    The words are those of `TrackerLogger`; others go to `trackio.init`. Without `space_id` or
    `server_url`, nothing leaves this machine. Trackio finds runs by their names, so `run_id` is the
    name of a run that has none. It reads where its files are when it is imported: a `directory`
    must be the same for all of a process.

    Trackio draws over one step, which is whole; other steps are values themselves.

    Examples:
        >>> logger = TrackioLogger(project="demo", name="first", config={"lr": 1e-3})
        >>> logger.project
        'demo'
    """

    title = "Trackio"
    most = 1
    lag = 5.0

    def load(self) -> None:
        """Import trackio, with its files in the directory."""
        self._trackio = _load(self.directory)
        self.check_options(self._trackio.init)
        remote = any(self.options.get(word) for word in ("space_id", "server_url")) or any(
            os.environ.get(word) for word in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
        )
        if remote and self.mode == "offline":
            raise LogValueError(
                "TrackioLogger is to be offline, but was told of a server (`space_id`, "
                "`server_url`, or the environment). Leave one of them out."
            )
        if not remote and self.mode == "online":
            raise LogValueError(
                "TrackioLogger is to be online, but does not know where. Give it a `space_id` or a "
                "`server_url`."
            )

    def words(self) -> dict[str, Any]:
        """Where the run is, whatever the environment says later."""
        return {**super().words(), "directory": str(_place(self._trackio))}

    def connect(self) -> None:
        """Open a run, next to others of this process."""
        words = {
            "project": self.project,
            "name": self.name or self.run_id,
            "group": self.group,
            "config": {_open(name): value for name, value in self.config.items()},
            "resume": self.resume,
            "embed": False,
            **self.options,
        }
        if self.tags:
            words["config"].setdefault("tags", self.tag_words)
        self._run = _in_context(lambda: self._trackio.init(**words))

    def send(self, rows: list[Row]) -> None:
        """Log rows."""
        for row in rows:
            step = int(row.step)
            values: dict[str, Any] = {
                name: at for name, at in row.steps.items() if name != row.axis or at != step
            }
            values |= row.scalars
            for name, (counts, edges, *_) in row.histograms.items():
                values[name] = self._trackio.Histogram(np_histogram=(counts, edges))
            for name, image in row.images.items():
                values[name] = self._trackio.Image(image)
            for name, text in row.texts.items():
                values[name] = self._trackio.Markdown(text)
            self._run.log({_open(name): value for name, value in values.items()}, step=step)

    def finish(self, failed: bool) -> None:
        """Close the run."""
        del failed
        self._run.finish()

    def _native(self) -> Any:
        return self._run


_context = contextvars.Context()
_one_at_a_time = threading.Lock()


def _in_context(init: Callable[[], Any]) -> Any:
    """Open a run where no other is current, as Trackio would close that.

    All are opened in one context, so that it introduces itself only once.
    """
    global _context
    with _one_at_a_time:
        run = _context.run(init)
        current = [variable for variable, value in _context.items() if value is run]
        for variable in current:
            _context.run(variable.set, None)
        if not current:  # Another version of Trackio: better to introduce itself again.
            _context = contextvars.Context()
    return run


def _load(directory: Path | None) -> Any:
    if directory is None:
        return load("trackio", "TrackioLogger", "trackio")
    if "trackio" not in sys.modules:
        before = os.environ.get(PLACE)
        os.environ[PLACE] = str(directory)
        try:
            return load("trackio", "TrackioLogger", "trackio")
        finally:
            if before is None:
                del os.environ[PLACE]
            else:
                os.environ[PLACE] = before
    trackio = sys.modules["trackio"]
    there = _place(trackio)
    if there != directory:
        raise LogValueError(
            f"Trackio keeps its files in {str(there)!r}, since it was imported before "
            f"`directory={str(directory)!r}` was known, and cannot have two places. Use one "
            f"directory, or set {PLACE} before anything imports trackio."
        )
    return trackio


def _place(trackio: Any) -> Path:
    return Path(trackio.utils.TRACKIO_DIR).absolute()


def _open(name: str) -> str:
    """A name that is not Trackio's own."""
    return f"value/{name}" if name in RESERVED or name.startswith("_") else name
