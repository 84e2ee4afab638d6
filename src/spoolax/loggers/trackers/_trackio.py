"""Trackio."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..._extras import load
from ...errors import LogValueError
from ._names import Names
from ._rows import Row, other_steps
from ._tracker import TrackerLogger

RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}
PLACE = "TRACKIO_DIR"


class TrackioLogger(TrackerLogger):
    """Logs to Trackio: to a database on this machine, or to a server or a Space.

    The words are those of `TrackerLogger`; others go to `trackio.init`. Without `space_id` or
    `server_url`, nothing leaves this machine. A run that has no name is called as its `run_id`.
    Trackio reads where its files are when it is imported: a `directory` must be the same for all of
    a process.

    Trackio draws over one step, which is whole; other steps are values themselves.

    Examples:
        >>> logger = TrackioLogger(project="demo", name="first", config={"lr": 1e-3})
        >>> logger.project
        'demo'
    """

    title = "Trackio"
    most = 200
    _chosen = ""

    def load(self) -> None:
        """Import trackio, with its files in the directory."""
        self._trackio = _load(self.directory)
        self.check_options(self._trackio.init)
        self._is_remote = remote = any(
            self.options.get(word) for word in ("space_id", "server_url")
        ) or any(os.environ.get(word) for word in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))
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
        self._storage = load("trackio.sqlite_storage", "TrackioLogger", "trackio").SQLiteStorage
        self._is_direct = not remote and self._trackio.utils.get_storage_mode() == "sqlite"
        if not self._is_direct:
            self.most, self.lag = 1, 5.0
        self._names = Names(_open)

    @property
    def run_id(self) -> str:
        """How the run can be found again."""
        return self._chosen or super().run_id

    def words(self) -> dict[str, Any]:
        """Where the run is, whatever the environment says later."""
        return {**super().words(), "directory": str(_place(self._trackio))}

    def connect(self) -> None:
        """Open a run, next to others of this process."""
        there = [] if self._is_remote else self._runs_there()
        found = None if self.resume == "never" else _found(there, self.run_id)
        if self.resume == "must" and not (found or self._is_remote):
            raise ValueError(f"there is no run {self.run_id!r} in {self.project!r} to be resumed")
        config = {_open(name): value for name, value in self.config.items()}
        if self.tags:
            config.setdefault("tags", self.tag_words)
        before = (found and found.config) or {}  # Trackio would forget it.
        words = {
            "project": self.project,
            "name": found.name if found else self.name or self.run_id,
            "group": self.group or before.get("_Group"),
            "config": {k: v for k, v in before.items() if not k.startswith("_")} | config,
            "resume": self.resume if self._is_remote else "allow" if found else "never",
            "embed": False,
            **self.options,
        }
        run = _in_context(lambda: self._trackio.init(**words))
        # It goes on with the last run of a name, which may be another one than ours.
        if found:
            run.id = found.id
        elif self._given_id and self._given_id not in [one.id for one in there]:
            run.id = self._given_id
        elif self.resume == "never":
            run.id = self.unique
        self._run, self._chosen = run, run.id

    def _runs_there(self) -> list[Any]:
        """The runs of the project on this machine, the oldest first."""
        try:
            return list(self._trackio.Api().runs(self.project))
        except ValueError:  # There is no such project.
            return []

    def send(self, rows: list[Row]) -> None:
        """Log rows. Those for this machine go into the database at once, and all of them or none.

        Trackio's own function keeps them in memory for a moment, and does not say if it fails.
        """
        if not self._is_direct:
            for row in rows:
                self._run.log(self._values(row), step=int(row.step))
            return
        run, name = self._run, self._run.name
        self._storage.bulk_log(
            self.project,
            name,
            [self._written(self._values(row), int(row.step)) for row in rows],
            [int(row.step) for row in rows],
            [datetime.fromtimestamp(row.time, UTC).isoformat() for row in rows],
            run.config,
            run_id=run.id,
        )

    def _values(self, row: Row) -> dict[str, Any]:
        trackio = self._trackio
        values: dict[str, Any] = {
            k: _fitting(v) for k, v in (row.scalars | other_steps(row)).items()
        }
        for name, (counts, edges, *_) in row.histograms.items():
            values[name] = trackio.Histogram(np_histogram=(counts, edges))
        for name, image in row.images.items():
            values[name] = trackio.Image(image)
        for name, text in row.texts.items():
            values[name] = trackio.Markdown(text)
        return {self._names(name): value for name, value in values.items()}

    def _written(self, values: dict[str, Any], step: int) -> dict[str, Any]:
        """Values as they are in the database; those that are files are written."""
        for name, value in values.items():
            if isinstance(value, self._trackio.Image):
                value._save(self.project, self._run.name, step)
            if hasattr(value, "_to_dict"):
                values[name] = value._to_dict()
        return values

    def finish(self, failed: bool) -> None:
        """Close the run."""
        del failed
        self._run.finish()

    def _native(self) -> Any:
        return self._run


def _found(runs: list[Any], run_id: str) -> Any:
    """The run with an id, or else the last one with a name."""
    of_id = [run for run in runs if run.id == run_id]
    of_name = [run for run in runs if run.name == run_id]
    return next(reversed(of_name + of_id), None)


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


def _fitting(number: Any) -> Any:
    """A number that Trackio can store."""
    return number if isinstance(number, float) or number.bit_length() < 64 else float(number)


def _open(name: str) -> str:
    """A name that is not Trackio's own."""
    return f"value/{name}" if name in RESERVED or name.startswith("_") else name
