"""What the loggers of experiment trackers have in common.

A record becomes a row on spoolax's thread, and goes into a file; a thread of its own sends it from
there. To add a tracker, derive from `TrackerLogger` and write `load`, `connect`, `send` and
`finish`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..._logdict.logdict import LogDict
from ..._tap.host import host
from ...errors import LoggerStateError, LogValueError, TrackerError
from .._protocol.frequency import Frequency
from .._protocol.paths import StrPath, writable
from .._protocol.record import Record
from .._protocol.runs import RunInfo
from .._protocol.steps import steps_of
from .._protocol.writer import Viewer, WritingLogger
from ._channel import Channel
from ._config import plain_config
from ._outbox import Outbox
from ._rows import Row, Rows, as_line, printable
from ._spill import Spill
from ._words import check_options, check_strings, how_to_resume, kept, seconds, tags_by_name

UNSENT = "spoolax-unsent"
PATIENCE = 30.0


class TrackerLogger(WritingLogger):
    """The base of loggers for experiment trackers.

    All of them are made with the same words. `log` never waits for the tracker: entries go to a
    file on this machine, from where another thread sends them. If the tracker is away, or slow,
    they wait there; whatever is still there at the end can be sent later, with `replay`.

    Scalars become curves, and texts texts. Arrays of up to `histograms` numbers become one curve
    for each number, larger ones histograms. Arrays of bytes with height and width become images,
    and so does what is named by `images`, or was logged with the tag "image".

    Args:
        name: What the run is called.
        project: What the project is called, or the experiment, which is the same.
        experiment: Another word for `project`.
        config: The settings of the run: a dictionary, or a dataclass.
        tags: Words to find it by.
        group: What it belongs to. The runs of `init` have one together.
        run_id: How it can be found again, to be resumed.
        resume: "never", "allow" (as True): go on with the run of that `run_id`, if it is there;
            "must": it has to be there.
        directory: Where files go.
        mode: "offline": nothing leaves this machine; "online".
        histograms: The largest array whose numbers each have a curve. None: larger arrays have four
            curves, of mean, std, min and max, instead of a histogram.
        images: Names, or patterns of names, of what is to be shown as images.
        patience: Seconds to wait at the end for a tracker that does not move; by default 30, and
            120 for a database of MLflow, which takes long to make.
        spill: Directory of the files in which entries wait.
        view: Takes what to log out of the state.
        every: A number of steps, or a frequency.
        options: What only this tracker has.

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

    title: ClassVar[str] = "the tracker"  # What the tracker is called.
    most = 1000  # Rows that `send` gets at once.
    modes: ClassVar[tuple[str, ...]] = ("offline", "online")

    lag = 0.0  # Seconds for which it keeps rows in memory, where a crash takes them along.
    apart = False  # Whether it takes rows of one step and one millisecond for the same.
    kinds: ClassVar[dict[str, type[TrackerLogger]]] = {}  # All that there are, by name.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        TrackerLogger.kinds[cls.__name__] = cls

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
        **options: Any,
    ) -> None:
        super().__init__(view=view, every=every)
        if project is not None and experiment is not None and project != experiment:
            raise LogValueError(
                f"`project={project!r}` and `experiment={experiment!r}` mean the same: give one."
            )
        check_strings(name=name, project=project or experiment, group=group, run_id=run_id)
        if mode is not None and mode not in self.modes:
            known = " or ".join(map(repr, self.modes))
            raise LogValueError(f"`mode={mode!r}` is not known to {self.title}: use {known}.")
        self.name, self.group, self._given_id, self.given_project = (
            word and printable(word) for word in (name, group, run_id, project or experiment)
        )
        self.project = self.given_project or "spoolax"
        self.config = plain_config(config)
        self.tags = tags_by_name(tags)
        self.resume = how_to_resume(resume)
        self.unique = uuid.uuid4().hex[:12]  # Whatever the run is called.
        if self.resume != "never" and not (run_id or name):
            raise LogValueError(
                f"`resume={resume!r}` needs to know which run to go on with: give the `run_id`, or "
                "the `name`, that it had."
            )
        self.directory = None if directory is None else Path(directory).expanduser().absolute()
        self.mode, self.options = mode, options
        self._rows = Rows(histograms, images, self.apart)
        self.given_patience = None if patience is None else seconds(patience)
        self._patience = PATIENCE if self.given_patience is None else self.given_patience
        waiting = Path(spill).expanduser() if spill else (self.directory or Path()) / UNSENT
        self._spill = waiting.absolute()
        self._existing: Spill | None = None  # A file to go on with.
        self._outbox = Outbox(f"spoolax-{type(self).__name__}")
        self._forked = False
        self._seed: str | None = None  # What a run of `init` is called among others.

    @property
    def run_id(self) -> str:
        """How the run can be found again."""
        resumed = self.name if self.resume != "never" else None
        return self._given_id or resumed or self.unique

    def load(self) -> None:
        """Import what is needed, and see that the options make sense. Called before the run."""

    def connect(self) -> None:
        """Open the run. If that fails, it is tried again."""

    def send(self, rows: list[Row]) -> None:
        """Send rows, at most `most` of them. If that fails, they are sent again."""
        raise NotImplementedError

    def finish(self, failed: bool) -> None:
        """Close the run, to which everything was sent."""

    def refuses(self, error: Exception) -> bool:
        """Say whether an error means that trying again is of no use."""
        wrong = (TypeError, ValueError, ArithmeticError)
        return isinstance(error, wrong) and not isinstance(error, OSError)

    def open(self) -> None:
        """Import the tracker, so that this does not happen during the run."""
        self._here = self.directory or Path().absolute()  # Wherever we are later.
        self._process = os.getpid()
        self.load()
        writable(self._path(), type(self).__name__)
        self._channel = Channel(self, type(self).__name__, self._new_spill)
        self._outbox.add(self._channel)
        if self._seed:  # Others may turn out to be only what such runs are made from.
            self._open_run()

    def write(self, record: Record) -> None:
        """Have a record sent."""
        self.put(as_line(self._rows.row(record)) + "\n")

    def log_many(self, logs: LogDict) -> None:
        """Have many entries sent.

        They are of one `log` call, so those of several may not be in the order of the program; each
        is drawn over its own step anyway.
        """
        lines = None
        if host.is_worker():
            lines = self._rows.lines(logs, lambda: steps_of(logs, self._counts))
        if lines is None:
            super().log_many(logs)
        else:
            self.put("\n".join(lines) + "\n", len(lines))

    @property
    def takes_many(self) -> bool:
        """Whether entries come in batches: if all of them are wanted as they are."""
        return self._schedule.is_always and not self._view.is_chosen

    def put(self, lines: str, count: int = 1) -> None:
        """Have rows sent, which are lines of JSON."""
        if self._process != os.getpid():
            raise LoggerStateError(
                f"{type(self).__name__} was opened by another process, which has its file and its "
                "thread. Make another one in the process that was forked."
            )
        self._channel.put(lines, count)
        self._outbox.notify()

    def close(self, error: BaseException | None) -> None:
        """Wait until everything was sent; or else say where it is."""
        if self._process != os.getpid():
            return  # The run goes on elsewhere.
        channel, outbox = self._channel, self._outbox
        if not self._forked and error is None:  # What fails before it logs anything has no run.
            channel.wanted = True
        try:
            channel.settle()
        finally:
            channel.closing = error is not None
            self._wait_for(channel, outbox)
        if channel.refusal is not None:
            raise TrackerError(self._why_not()) from channel.refusal

    def _wait_for(self, channel: Channel, outbox: Outbox) -> None:
        patience = 0.0 if outbox.is_hopeless else self._patience
        try:
            if channel.wanted or channel.waiting or channel.connected.is_set():
                was_ended = outbox.wait([channel], channel.over.is_set, patience)
                if not (was_ended or channel.failures or channel.refusal):  # It does not answer.
                    outbox.give_up()
        except BaseException:  # Who interrupts it does not want to wait for the other runs, either.
            outbox.is_interrupted = True
            raise
        finally:
            channel.abandon()
            outbox.leave(channel)
            outbox.notify()  # It may have nothing to do any more.
            if self._seed is None:
                outbox.warn()
            remove_if_empty(self._spill)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until the tracker has everything, and say whether it has; that of all runs, too.

        Gives up if the tracker is away, or nothing moves for so many seconds.

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
        channels = [self._channel]
        channels += [run._channel for run in self.runs.values() if isinstance(run, TrackerLogger)]
        for channel in channels:
            channel.catch_up()
        busy = [channel for channel in channels if channel.waiting]
        arrived = self._outbox.wait(busy, lambda: not any(c.waiting for c in busy), timeout)
        return arrived and not any(channel.refused or channel.is_behind for channel in channels)

    def fork(self, run: RunInfo) -> TrackerLogger:
        """Each run is one of the tracker's, with its number as `seed`, in a group together."""
        self._forked = True
        if self.group is None:
            self.group = self.name or "seeds"
            if self.resume == "never":  # Else it has to be found again.
                self.group += time.strftime("-%Y%m%d-%H%M%S")
        config = dict(self.config)
        if "seed" in config:
            config["base_seed"] = config["seed"]
        config["seed"] = run.number
        seed = f"seed-{run.number}"
        logger = self.remade()
        # Not as arguments: others may have been made with other ones.
        logger.name, logger.group = f"{self.name}-{seed}" if self.name else seed, self.group
        logger.config = config
        logger._given_id = self._given_id and f"{self._given_id}-{run.number}"
        logger._outbox, logger._seed = self._outbox, seed
        return logger

    def __repr__(self) -> str:
        # Not what goes to the tracker: there may be a key in it.
        known = {"name": self.name, "project": self.project, "run_id": self.run_id}
        words = ", ".join(f"{word}={value!r}" for word, value in known.items() if value)
        return f"<{type(self).__name__}({words}), {self._phase}>"

    @property
    def tag_words(self) -> list[str]:
        """The tags for trackers in which they have no values."""
        return [f"{tag}:{value}" if value else tag for tag, value in self.tags.items()]

    @property
    def native(self) -> Any:
        """The tracker's own object, for what only it can do. Opens the run, and waits for it.

        It is used by another thread as well; do not close it. It can still be had when the logger
        has been closed.
        """
        if self.is_open:
            self._open_run()
            channel = self._channel
            self._outbox.wait([channel], channel.connected.is_set, self._patience)
        elif self._phase == "new":
            self.check_open()
        if not self._channel.connected.is_set():
            raise TrackerError(self._why_not()) from self._channel.refusal or self._channel.error
        return self._native()

    def _why_not(self) -> str:
        reason = self._channel.refusal or self._channel.error or "it takes too long"
        return f"{type(self).__name__} could not open its run: {reason}"

    def _native(self) -> Any:
        return None

    def _open_run(self) -> None:
        self._channel.wanted = True
        self._outbox.notify()

    def check_options(self, f: Callable[..., Any], known: Iterable[str] = ()) -> None:
        """Raise an error if there are options that a function of the tracker does not have."""
        parameters = inspect.signature(f).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.check_known([*known, *names], f"{f.__module__.partition('.')[0]}.{f.__name__}")

    def check_known(self, names: Iterable[str], where: str) -> None:
        """Raise an error if there are options with other names."""
        check_options(self.options, type(self), names, where)

    def _path(self) -> Path:
        """The file in which rows wait."""
        words = [type(self).__name__, self.project, self.name or ""]
        stem = "-".join(re.sub(r"[^\w.=-]+", "_", word, flags=re.ASCII) for word in words if word)
        return self._spill / f"{stem[-150:]}-{self.unique}.jsonl"

    def _new_spill(self) -> Spill:
        if self._existing is not None:
            return self._existing
        return Spill(self._path(), self.about(), self.lag)

    def about(self) -> dict[str, Any]:
        """What has to be known to go on with the run."""
        return {
            "logger": type(self).__name__,
            "unique": self.unique,
            "connected": self._channel.connected.is_set(),
            "made_with": kept(self.words()),
        }

    def words(self) -> dict[str, Any]:
        """What such a logger is made with, wherever and whenever that is done."""
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


def remove_if_empty(directory: Path) -> None:
    """Remove the directory of files that wait, if it is ours."""
    if directory.name == UNSENT:
        with contextlib.suppress(OSError):
            directory.rmdir()
