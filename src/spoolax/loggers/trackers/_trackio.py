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
from .._protocol.ending import Ending
from ._arguments import parameters_of
from ._rows.row import TrackerRow, steps_to_log
from ._tracker import TrackerLogger
from ._unique_names import UniqueNames

RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}
DIRECTORY = "TRACKIO_DIR"


class TrackioLogger(TrackerLogger):
    """Logs to Trackio: to a database on this machine, or to a server or a Space.

    It takes the arguments of `TrackerLogger`, and those of `trackio.init`. Without `space_id` or
    `server_url`, nothing leaves this machine. A run without a name is called after its `run_id`.
    Trackio chooses the directory of its files when it is imported: all loggers of a process must
    have the same `directory`.

    Trackio draws over a single integer step; other steps are logged as values.

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
        self.check_known(parameters_of(self._trackio.init), "trackio.init")
        self._is_remote = remote = any(
            self.options.get(option) for option in ("space_id", "server_url")
        ) or any(os.environ.get(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))
        if remote and self.mode == "offline":
            raise LogValueError(
                "TrackioLogger was asked to be offline, but also has a server (`space_id`, "
                "`server_url`, or the environment). Leave out one of the two."
            )
        if not remote and self.mode == "online":
            raise LogValueError(
                "TrackioLogger was asked to be online, but has no server. Give it a `space_id` or "
                "a `server_url`."
            )
        self._storage = load("trackio.sqlite_storage", "TrackioLogger", "trackio").SQLiteStorage
        self._is_direct = not remote and self._trackio.utils.get_storage_mode() == "sqlite"
        if not self._is_direct:
            self.most, self.lag = 1, 5.0
        self._names = UniqueNames(_free_name)

    @property
    def run_id(self) -> str:
        """What identifies the run, to resume it."""
        return self._chosen or super().run_id

    def arguments(self) -> dict[str, Any]:
        """Arguments that make such a logger again, whatever the environment says then."""
        return {**super().arguments(), "directory": str(_directory_of(self._trackio))}

    def connect(self) -> None:
        """Open a run, next to others of this process."""
        existing = [] if self._is_remote else self._existing_runs()
        found = None if self.resume == "never" else _find(existing, self.run_id)
        if self.resume == "must" and not (found or self._is_remote):
            raise ValueError(f"there is no run {self.run_id!r} in {self.project!r} to resume")
        config = {_free_name(name): value for name, value in self.config.items()}
        if self.tags:
            config.setdefault("tags", self.tag_list)
        before = (found and found.config) or {}  # Trackio itself would forget it.
        arguments = {
            "project": self.project,
            "name": found.name if found else self.name or self.run_id,
            "group": self.group or before.get("_Group"),
            "config": {k: v for k, v in before.items() if not k.startswith("_")} | config,
            "resume": self.resume if self._is_remote else "allow" if found else "never",
            "embed": False,
            **self.options,
        }
        run = _in_context(lambda: self._trackio.init(**arguments))
        # Trackio resumes the last run of that name, which may not be ours.
        if found:
            run.id = found.id
        elif self._given_id and self._given_id not in [one.id for one in existing]:
            run.id = self._given_id
        elif self.resume == "never":
            run.id = self.unique
        self._run, self._chosen = run, run.id

    def _existing_runs(self) -> list[Any]:
        """The runs of the project on this machine, the oldest first."""
        try:
            return list(self._trackio.Api().runs(self.project))
        except ValueError:  # There is no such project.
            return []

    def send(self, rows: list[TrackerRow]) -> None:
        """Log rows. On this machine, they go straight into the database: all of them or none.

        `Run.log` would keep them in memory for a moment, and not say if it fails.
        """
        if not self._is_direct:
            for row in rows:
                self._run.log(self._values(row), step=int(row.step))
            return
        run, name = self._run, self._run.name
        self._storage.bulk_log(
            self.project,
            name,
            [self._database_values(self._values(row), int(row.step)) for row in rows],
            [int(row.step) for row in rows],
            [datetime.fromtimestamp(row.time, UTC).isoformat() for row in rows],
            run.config,
            run_id=run.id,
        )

    def _values(self, row: TrackerRow) -> dict[str, Any]:
        trackio = self._trackio
        values: dict[str, Any] = {
            k: _storable(v) for k, v in (row.scalars | steps_to_log(row)).items()
        }
        for name, (counts, edges, *_) in row.histograms.items():
            values[name] = trackio.Histogram(np_histogram=(counts, edges))
        for name, image in row.images.items():
            values[name] = trackio.Image(image)
        for name, text in row.texts.items():
            values[name] = trackio.Markdown(text)
        return {self._names(name): value for name, value in values.items()}

    def _database_values(self, values: dict[str, Any], step: int) -> dict[str, Any]:
        """Values as they are in the database, after those that are files have been written."""
        for name, value in values.items():
            if isinstance(value, self._trackio.Image):
                value._save(self.project, self._run.name, step)
            if hasattr(value, "_to_dict"):
                values[name] = value._to_dict()
        return values

    def finish(self, ending: Ending) -> None:
        """Close the run. Trackio keeps no status, so an alert says that it was cut short."""
        if ending.status != "finished":
            level = self._trackio.AlertLevel
            serious = level.ERROR if ending.status == "failed" else level.WARN
            self._run.alert(ending.status, ending.reason, serious)
        self._run.finish()

    def _native(self) -> Any:
        return self._run


def _find(runs: list[Any], run_id: str) -> Any:
    """The run with that id, or else the last one with that name."""
    of_id = [run for run in runs if run.id == run_id]
    of_name = [run for run in runs if run.name == run_id]
    return next(reversed(of_name + of_id), None)


_context = contextvars.Context()
_one_at_a_time = threading.Lock()


def _in_context(init: Callable[[], Any]) -> Any:
    """Open a run where no other one is current: Trackio would close it.

    All runs are opened in one context, so that Trackio prints its introduction only once.
    """
    global _context
    with _one_at_a_time:
        run = _context.run(init)
        current = [variable for variable, value in _context.items() if value is run]
        for variable in current:
            _context.run(variable.set, None)
        if not current:  # Another version of Trackio: rather let it print that again.
            _context = contextvars.Context()
    return run


def _load(directory: Path | None) -> Any:
    if directory is None:
        return load("trackio", "TrackioLogger", "trackio")
    if "trackio" not in sys.modules:
        before = os.environ.get(DIRECTORY)
        os.environ[DIRECTORY] = str(directory)
        try:
            return load("trackio", "TrackioLogger", "trackio")
        finally:
            if before is None:
                del os.environ[DIRECTORY]
            else:
                os.environ[DIRECTORY] = before
    trackio = sys.modules["trackio"]
    there = _directory_of(trackio)
    if there != directory:
        raise LogValueError(
            f"Trackio was imported before `directory={str(directory)!r}` was known, so it keeps "
            f"its files in {str(there)!r}, and it cannot have two directories. Use one directory, "
            f"or set {DIRECTORY} before anything imports trackio."
        )
    return trackio


def _directory_of(trackio: Any) -> Path:
    return Path(trackio.utils.TRACKIO_DIR).absolute()


def _storable(number: Any) -> Any:
    """A number that fits into Trackio's database."""
    return number if isinstance(number, float) or number.bit_length() < 64 else float(number)


def _free_name(name: str) -> str:
    """A name that Trackio does not use for itself."""
    return f"value/{name}" if name in RESERVED or name.startswith("_") else name
