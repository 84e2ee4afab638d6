"""What the loggers of experiment trackers have in common.

A record becomes a row on spoolax's thread, and goes to a file; a thread of its own sends it from
there. To add a tracker, derive from `TrackerLogger` and write `load`, `connect`, `send` and
`finish`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..._logdict.logdict import LogDict
from ..._processes import Processes
from ..._tap.host import host
from ...errors import LoggerStateError, TrackerError
from .._protocol.ending import Ending
from .._protocol.frequency import Frequency
from .._protocol.paths import StrPath, writable
from .._protocol.record import Record
from .._protocol.runs import RunInfo
from .._protocol.steps import steps_of
from .._protocol.writer import Viewer, WritingLogger
from ._arguments import (
    check_options,
    checked_mode,
    checked_patience,
    checked_project,
    checked_resume,
    checked_string,
    checked_tags,
    json_arguments,
)
from ._config import plain_config
from ._delivery.channel import Channel
from ._delivery.outbox import Outbox
from ._delivery.report import warn_about
from ._delivery.timing import Timing
from ._delivery.unsent_directory import DEFAULT_NAME, UnsentDirectory
from ._delivery.unsent_file import UnsentFile
from ._rows.builder import RowBuilder
from ._rows.row import TrackerRow, row_to_json

PATIENCE = 30.0


class TrackerLogger(WritingLogger):
    """The base class of loggers for experiment trackers.

    They all take the same arguments. `log` never waits for the tracker: entries go to a file on
    this machine, and another thread sends them from there. If the tracker is away, or slow, they
    wait in the file; what is left at the end can be sent later, with `replay`.

    Scalars become curves, and strings become texts. Arrays of up to `histograms` numbers become one
    curve per number, larger ones histograms. Arrays of bytes with height and width become images,
    and so do those that `images` names, or that were logged with the tag "image".

    Args:
        name: The name of the run.
        project: The name of the project.
        experiment: The same as `project`, as some trackers call it.
        config: The settings of the run: a dictionary, or a dataclass.
        tags: Tags to find the run by.
        group: The group that the run belongs to. The runs of `init` share one.
        run_id: What identifies the run, to resume it.
        resume: "never"; "allow" (the same as True): resume the run of that `run_id`, if it exists;
            "must": it has to exist.
        directory: Where files go.
        mode: "offline": nothing leaves this machine; "online".
        histograms: The largest array whose numbers have a curve each. With None, larger arrays have
            four curves (mean, std, min and max) instead of a histogram.
        images: Names, or patterns of names, of what to show as images.
        patience: Seconds to wait at the end for a tracker while nothing moves; by default 30, and
            120 for a database of MLflow, which takes long to create.
        spill: The directory of the files in which entries wait.
        view: Takes what to log out of the state.
        every: A number of steps, or a frequency.
        processes: Of several processes, whether the "first" has a run, or "each", in one group.
        options: Options that only this tracker has.

    Examples:
        >>> class Lines(TrackerLogger):
        ...     lines = []
        ...     def send(self, rows):
        ...         self.lines += [f"{row.axis} {row.step}: {row.scalars}" for row in rows]
        >>> with Lines(name="first") as logger:
        ...     for i in range(2):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        >>> print(*Lines.lines, sep="; ")
        step 0: {'loss': 1.0}; step 1: {'loss': 0.5}
    """

    title: ClassVar[str] = "the tracker"  # The name of the tracker.
    most = 1000  # Rows that `send` gets at once.
    modes: ClassVar[tuple[str, ...]] = ("offline", "online")

    lag = 0.0  # Seconds for which the tracker keeps rows in memory, where a crash loses them.
    distinct_times = False  # Whether two rows of one step need different times, in milliseconds.
    _timing: ClassVar[Timing] = Timing()

    def __init__(
        self,
        *,
        name: str | None = None,
        project: str | None = None,
        experiment: str | None = None,
        config: Any = None,
        tags: Iterable[str] | Mapping[str, Any] = (),
        group: str | None = None,
        run_id: str | None = None,
        resume: bool | str | None = None,
        directory: StrPath | None = None,
        mode: str | None = None,
        histograms: int | None = 16,
        images: str | Iterable[str] = (),
        patience: float | None = None,
        spill: StrPath | None = None,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
        **options: Any,
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        self.name, self.group = checked_string("name", name), checked_string("group", group)
        self._given_id = checked_string("run_id", run_id)
        self.given_project = checked_project(project, experiment)
        self.project = self.given_project or "spoolax"
        self.config = plain_config(config)
        self.tags = checked_tags(tags)
        self.resume = checked_resume(resume, run_id or name)
        self.unique = uuid.uuid4().hex[:12]  # Tells it from runs of the same name.
        self.directory = None if directory is None else Path(directory).expanduser().absolute()
        self.mode, self.options = checked_mode(mode, self.modes, self.title), options
        self._builder = RowBuilder(histograms, images, self.distinct_times)
        self.given_patience = None if patience is None else checked_patience(patience)
        self._patience = PATIENCE if self.given_patience is None else self.given_patience
        default = (self.directory or Path()) / DEFAULT_NAME
        self._unsent_directory = UnsentDirectory(Path(spill).expanduser() if spill else default)
        self._existing: UnsentFile | None = None  # The file that `replay` resumes,
        self._replayed_ending: Ending | None = None  # and how its run ended, if it says so.
        self._outbox = Outbox(f"spoolax-{type(self).__name__}", self._timing)
        self._forked = False
        self._seed: str | None = None  # The name of a run of `init` among the others.

    @property
    def run_id(self) -> str:
        """What identifies the run, to resume it."""
        resumed = self.name if self.resume != "never" else None
        return self._given_id or resumed or self.unique

    def load(self) -> None:
        """Import what is needed, and check the options. Called before the run."""

    def connect(self) -> None:
        """Open the run. If that fails, it is tried again."""

    def send(self, rows: list[TrackerRow]) -> None:
        """Send rows, at most `most` of them. If that fails, they are sent again."""
        raise NotImplementedError

    def finish(self, ending: Ending) -> None:
        """Close the run, which ended like this. Everything has been sent."""

    def refuses(self, error: Exception) -> bool:
        """Say whether trying again after an error is of no use."""
        wrong = (TypeError, ValueError, ArithmeticError)
        return isinstance(error, wrong) and not isinstance(error, OSError)

    def open(self) -> None:
        """Import the tracker, so that this does not happen during the run."""
        self._here = self.directory or Path().absolute()  # The working directory may change.
        self._process = os.getpid()
        self.load()
        writable(self._unsent_path(), type(self).__name__)
        self._channel = Channel(self, type(self).__name__, self._unsent_file, self._timing)
        self._outbox.add(self._channel)
        if self._seed:  # Any other logger may only be there to make such runs.
            self._open_run()

    def write(self, record: Record) -> None:
        """Have a record sent."""
        self.put(row_to_json(self._builder.row(record)) + "\n")

    def log_many(self, logs: LogDict) -> None:
        """Have many entries sent.

        They are of one `log` call, so those of several may not be in the order of the program; each
        is drawn over its own step anyway.
        """
        lines = None
        if host.delivers_to(self._sink):
            lines = self._builder.lines(logs, lambda: steps_of(logs, self._counts))
        if lines is None:
            super().log_many(logs)
        else:
            self.put("\n".join(lines) + "\n", len(lines))

    @property
    def takes_many(self) -> bool:
        """Whether entries come in batches: if all of them are wanted as they are."""
        return self._schedule.is_always and not self._view.is_chosen

    def put(self, lines: str, count: int = 1) -> None:
        """Have `count` rows sent, which are lines of JSON."""
        if self._process != os.getpid():
            raise LoggerStateError(
                f"{type(self).__name__} was opened by another process, which has its file and its "
                "thread. Make a new one in the forked process."
            )
        self._channel.put(lines, count)
        self._outbox.notify()

    def close(self, error: BaseException | None) -> None:
        """Wait until everything is sent; or else say where it is."""
        if self._process != os.getpid():
            return  # The process that was forked has no part in the run.
        channel = self._channel
        if not self._forked and error is None:  # What fails before it logs anything has no run.
            channel.wanted = True
        try:
            channel.unsent.write_all()
        finally:
            assert self.ending is not None
            channel.close(self._replayed_ending or self.ending)
            try:
                self._outbox.finish(channel, self._patience)
            finally:
                if self._seed is None:
                    warn_about(self._outbox.finished)
                self._unsent_directory.remove_if_empty()
        if channel.refusal is not None:
            raise TrackerError(self._why_not_open()) from channel.refusal

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until the tracker has everything, of all runs; say whether it has.

        Gives up if the tracker is away, or if nothing moves for `timeout` seconds.

        Examples:
            >>> class Nowhere(TrackerLogger):
            ...     def send(self, rows):
            ...         pass
            >>> with Nowhere() as logger:
            ...     logger.log({"x": 1}, 0)
            ...     logger.flush()
            True
        """
        self.check_open()
        if self.is_silent:
            return True
        channels = [self._channel]
        channels += [run._channel for run in self.runs.values() if isinstance(run, TrackerLogger)]
        for channel in channels:
            channel.unsent.retry()
        busy = [channel for channel in channels if channel.waiting]
        arrived = self._outbox.wait(busy, lambda: not any(c.waiting for c in busy), timeout)
        return arrived and not any(c.refused.count or c.unsent.in_memory for c in channels)

    def fork(self, run: RunInfo) -> TrackerLogger:
        """Each run is a run of the tracker, with its number as `seed`; they share a group."""
        self._forked = True
        if self.group is None:
            self.group = self.name or "seeds"
            if self.resume == "never":  # Else the group has to be found again.
                self.group += time.strftime("-%Y%m%d-%H%M%S")
        config = dict(self.config)
        if "seed" in config:
            config["base_seed"] = config["seed"]
        config["seed"] = run.number
        seed = f"seed-{run.number}"
        logger = self.remade()
        # Not as arguments: a class of somebody's own may have others.
        logger.name, logger.group = f"{self.name}-{seed}" if self.name else seed, self.group
        logger.config = config
        logger._given_id = self._given_id and f"{self._given_id}-{run.number}"
        logger._outbox, logger._seed = self._outbox, seed
        return logger

    def named_apart(self, mark: str) -> None:
        """Runs of several processes share a group."""
        self.group = self.group or self.name
        self.name = f"{self.name or 'run'}{mark}"
        self._given_id = self._given_id and f"{self._given_id}{mark}"

    @property
    def label(self) -> str:
        """What it is, and the name of the run."""
        return f"{type(self).__name__}({self.project!r}, {self.name!r})"

    def tells(self) -> Any:
        """Tell what identifies the run."""
        return self.run_id

    def hears(self, told: Any) -> None:
        """Have the same run."""
        self._given_id = told

    def __repr__(self) -> str:
        # Without options: there may be an API key among them.
        shown = {"name": self.name, "project": self.project, "run_id": self.run_id}
        arguments = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value)
        return f"<{type(self).__name__}({arguments}), {self._phase}>"

    @property
    def tag_list(self) -> list[str]:
        """The tags, for trackers whose tags have no values."""
        return [f"{tag}:{value}" if value else tag for tag, value in self.tags.items()]

    @property
    def native(self) -> Any:
        """The tracker's own object, for what only it can do. Opens the run, and waits for that.

        Another thread uses it as well; do not close it. It is still there after the logger has been
        closed.
        """
        if self.is_open:
            self._open_run()
            channel = self._channel
            self._outbox.wait([channel], channel.connected.is_set, self._patience)
        elif self._phase == "new":
            self.check_open()
        if not self._channel.connected.is_set():
            cause = self._channel.refusal or self._channel.backoff.error
            raise TrackerError(self._why_not_open()) from cause
        return self._native()

    def _why_not_open(self) -> str:
        reason = self._channel.refusal or self._channel.backoff.error or "it takes too long"
        return f"{type(self).__name__} could not open its run: {reason}"

    def _native(self) -> Any:
        return None

    def _open_run(self) -> None:
        self._channel.wanted = True
        self._outbox.notify()

    def check_known(self, names: Iterable[str], where: str) -> None:
        """Raise an error if there are options that `where`, which has `names`, does not know."""
        check_options(self.options, type(self), names, where)

    def _unsent_path(self) -> Path:
        names = (type(self).__name__, self.project, self.name)
        return self._unsent_directory.path_for(names, self.unique)

    def _unsent_file(self) -> UnsentFile:
        if self._existing is not None:
            return self._existing
        return UnsentFile(self._unsent_path(), self.about(), self.lag)

    def about(self) -> dict[str, Any]:
        """What has to be known to resume the run."""
        return {
            "logger": type(self).__name__,
            "unique": self.unique,
            "connected": self._channel.connected.is_set(),
            "ended": self._channel.closing and self._channel.closing.status,
            "made_with": json_arguments(self.arguments()),
        }

    def arguments(self) -> dict[str, Any]:
        """Arguments that make such a logger again, elsewhere and later."""
        return {
            "name": self.name,
            "project": self.project,
            "config": self.config,
            "tags": self.tags,
            "group": self.group,
            "run_id": self.run_id,
            "directory": str(self._here),
            "mode": self.mode,
            "resume": self.resume,
            **self.options,
        }
