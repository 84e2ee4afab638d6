"""`run`: the easy door. A logger that makes a directory for a run, and stores everything in it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from .._jax import processes
from .._jax.processes import readable
from .._listen.options import Options
from .._processes import Processes, checked_processes, from_first, mark
from .._show import words
from .._tap.blocks import Block, BlockTap
from .._tap.listening import Listening
from ..errors import LogFileError, LogTypeError, StorageError
from ..loggers._composite import CompositeLogger, forks
from ..loggers._console import ConsoleLogger
from ..loggers._protocol.frequency import EveryNStep, EverySeconds, Frequency, Schedule
from ..loggers._protocol.logger import Logger
from ..loggers._protocol.paths import StrPath, marked
from ..loggers._protocol.runs import RunInfo
from ..storage._save import SaveLogger
from ..storage._writable import Position
from .checkpoint import Progress, progress_at, read_checkpoint, write_checkpoint
from .places import MAIN, as_typed, checkpoint_of, last_checkpoint
from .run import Run
from .source_code import keep_diff


class run(CompositeLogger):
    """Record a run: what is logged in the block is stored in a new directory, and shown.

    Every `spoolax.log` in the block arrives, in Python or in compiled functions. The directory is
    `runs/<name>-<date>-<time>`; it has the entries, the settings, the command line, the versions of
    packages, the git commit and what differs from it. A table is shown meanwhile, in a terminal or
    notebook, and lines elsewhere.

    It is a logger as well: `run.log(values, step)`, `run.tap(f)`, `run.spool(f)`, and
    `run.init(key)` for one run per seed. Needs h5py and rich (the extras `hdf5` and `console`).

    Args:
        name: What to call it.
        config: Its settings: a dictionary or dataclass.
        *loggers: More loggers, which get everything, too.
        directory: Where runs are.
        total: How many steps there will be, if that is known, for a bar.
        show: Whether to show what is logged.
        announce: Whether to say at the end where the run is.
        resume: Go on with a run: True for the last one of this name, if that has a checkpoint and
            did not finish; or its directory.
        processes: Of several processes, whether the "first" stores what it gets, or "each".

    Examples:
        >>> import spoolax, jax, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> @jax.jit
        ... def train_step(x):
        ...     spoolax.log({"loss": x**2})
        ...     return x / 2
        >>> x = 1.0
        >>> with spoolax.run("demo", {"rate": 0.5}, directory=directory, show=False) as run:
        ...     for _ in range(3):
        ...         x = train_step(x)
        >>> with spoolax.open(run.path) as again:
        ...     again["loss"][:].tolist(), again.config, again.status
        ([1.0, 0.25, 0.0625], {'rate': 0.5}, 'finished')
    """

    def __init__(
        self,
        name: str = "run",
        config: Any = None,
        *loggers: Any,
        directory: StrPath = "runs",
        total: int | None = None,
        show: bool = True,
        announce: bool = True,
        resume: bool | StrPath = False,
        processes: Processes = "first",
    ) -> None:
        self._processes = checked_processes(processes)
        if not isinstance(name, str):
            raise LogTypeError(f"The name of a run is a string, not {name!r}.")
        self.name, self._config, self._resume = _safe(name), config, resume
        self._directory, self._announces = Path(directory).expanduser(), show and announce
        self._before: Progress | None = None  # Where it goes on.
        shown = [ConsoleLogger(title=self.name, total=total)] if show else []
        self._others = (*shown, *loggers)
        super().__init__(*self._others)

    def _to_resume(self) -> Path | None:
        """The directory of the run to go on with, if there is one."""
        if self._resume is False:
            return None
        if self._resume is not True:
            path = Path(self._resume).expanduser()
            if last_checkpoint(path) is None:
                raise StorageError(
                    f"Cannot go on with {str(path)!r}: it has no checkpoint. Call "
                    "`run.checkpoint(state, step)` from time to time."
                )
            return path
        made = (path.parent for path in self._directory.glob(f"{self.name}-*/{MAIN}"))
        mine = sorted(path for path in made if _name_in(path) == self.name)
        if not mine or last_checkpoint(mine[-1]) is None:  # Their names end with the time.
            return None
        with Run(mine[-1]) as before:
            return None if before.status in ("finished", "running") else mine[-1]

    def _place(self) -> tuple[str, bool]:
        """The directory of the run, and whether it was there."""
        resumed = self._to_resume()
        path = resumed or _made(self._directory, self.name)
        return str(path.resolve()), resumed is not None

    def __enter__(self) -> Self:
        is_first, (path, goes_on) = from_first(f"run({self.name!r})", self._place)
        self.path, self._announces = Path(path), self._announces and is_first
        if goes_on:
            kept = last_checkpoint(self.path, self._mark)
            assert kept is not None
            self._before = progress_at(kept)
            if self._announces:
                print(f"Going on with {as_typed(self.path)} after step {self._before.step}.")
        self._loop, self._first_step, self._begun_at = -1, 0, dict[str, Position]()
        super().__init__(self._saved(MAIN), *self._others)  # Now that it is known where it is.
        super().__enter__()
        if is_first:
            keep_diff(self.path)
        # Not `listening(self)`, which would open a logger that is not open yet.
        self._listening = Listening(BlockTap, Options(keep_logs=True), [self.as_sink()])
        self._listening.__enter__()
        if self._before is not None:
            self._heard.number_on(self._before.numbering)
            for logger in self._counting:
                logger._counts.update(self._before.counts)
        self._begun = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._listening.__exit__(kind, error, trace)
        finally:
            super().__exit__(kind, error, trace)
            if self._announces:
                self._say_where()

    def _say_where(self) -> None:
        assert self.ending is not None
        took = words.duration(time.monotonic() - self._begun)
        why = f" ({self.ending.reason})" if self.ending.reason else ""
        print(f"\n{self.path.name} {self.ending.status} after {took}{why}")
        path = as_typed(self.path)
        print(f"  spoolax show {path}")
        print(f"  spoolax plot {path}", flush=True)

    def _saved(self, file: str, attributes: Mapping[str, Any] | None = None) -> SaveLogger:
        """The logger of a file, which goes on where the run does."""
        mine = marked(file, self._mark).name
        before = False if self._before is None else self._before.position(mine)
        return SaveLogger(
            self.path / file,
            resume=before,
            config=self._config,
            attributes=attributes,
            processes=self._processes,
        )

    @property
    def _mark(self) -> str:
        """What the files of this process have in their names, if each has its own."""
        return mark() if self._processes == "each" else ""

    @property
    def _saves(self) -> SaveLogger:
        """The logger of the main file."""
        return self.loggers[0]  # type: ignore[no-any-return]

    @property
    def _heard(self) -> Block:
        return self._listening.blocks[0]

    @property
    def _counting(self) -> list[Logger[Any]]:
        """The loggers that count entries without steps."""
        return [self, *self.loggers]

    def fork(self, run: RunInfo) -> CompositeLogger:
        """A run of `init` has a file of its own in the directory."""
        mine = self._saved(
            f"{run.name}{self._mark}.h5", {"key": list(run.key), "lane": list(run.lane)}
        )
        # Not that of this run: it would take its file for one that is not needed.
        return CompositeLogger(mine, *forks(self.loggers[1:], run))

    def checkpoint(self, state: Any, step: int) -> None:
        """Keep a state, so that a run that is interrupted or crashes can go on after this step.

        Examples:
            >>> import spoolax, tempfile
            >>> directory = tempfile.mkdtemp()
            >>> def train(steps):
            ...     with spoolax.run("demo", directory=directory, show=False, resume=True) as run:
            ...         x, start = run.restored(0.0)
            ...         for i in range(start, steps):
            ...             x = x + 1.0
            ...             run.log({"x": x}, i)
            ...             run.checkpoint(x, i)
            ...             if i == 3 and start == 0:
            ...                 raise KeyboardInterrupt
            ...         return x, start, run.path
            >>> try:
            ...     train(6)
            ... except KeyboardInterrupt:
            ...     x, start, path = train(6)
            >>> x, start, spoolax.load(path)["x"].tolist()
            (6.0, 4, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        """
        self.check_open()
        if not isinstance(step, (int, np.integer)) or isinstance(step, bool):
            raise LogTypeError(f"The step of a checkpoint is a whole number, not {step!r}.")
        state = _readable(state)
        if self._saves.is_silent:
            return
        counts: dict[str, int] = {}
        positions = self._positions()
        for logger in self._counting:
            counts |= {call: max(n, counts.get(call, 0)) for call, n in logger._counts.items()}
        self._keep(state, Progress(int(step), positions, None, self._heard.numbering(), counts))

    def checkpoint_within(self, state: Any, step: int) -> None:
        """Keep a state while later steps may have logged something already.

        They are known by their steps, which are those of the loop.
        """
        state = _readable(state)
        if self._saves.is_silent:
            return
        self._positions()  # To commit what was logged.
        ran = step + 1 - self._first_step
        positions = {
            file: Position(at.entries, at.steps_run + ran, step)
            for file, at in self._begun_at.items()
        }
        self._keep(state, Progress(step, positions, step))

    def _keep(self, state: Any, progress: Progress) -> None:
        path = checkpoint_of(self.path, max(0, self._loop), self._mark)
        write_checkpoint(path, state, progress)

    def _positions(self) -> dict[str, Position]:
        """How far all files are. What was logged before must not be missing when it goes on."""
        recorded: list[Any] = [self, *self.runs.values()]
        saved = [one.loggers[0] for one in recorded]
        return {one.path.name: one.position() for one in saved}

    def checkpoints(self, every: Frequency | int | None = None) -> Logger[Any]:
        """A logger that keeps the states that it gets: by default, once a minute.

        Several processes keep them together, so it is every thousand steps then.
        """
        by_default = EverySeconds(60) if processes.count() == 1 else EveryNStep(1000)
        return _Checkpoints(self, by_default if every is None else every)

    def restored(self, state: Any) -> tuple[Any, int]:
        """The state that was kept last, and the step to go on with; or this one, and 0.

        Every loop of a run that keeps states calls it once, before the first step, and keeps the
        last state.
        """
        self.check_open()
        path, first = checkpoint_of(self.path, self._loop + 1, self._mark), 0
        if path.is_file():
            state, first = read_checkpoint(path, state), progress_at(path).step + 1
        positions = {} if self._saves.is_silent else self._positions()
        self._loop, self._first_step, self._begun_at = self._loop + 1, first, positions
        return state, self._first_step


class _Checkpoints(Logger[Any]):
    """Keeps the states that it gets."""

    processes = "all"  # It leaves that to the run.

    def __init__(self, run: run, every: Frequency | int) -> None:
        self._run, self._schedule = run, Schedule(every)

    def log(self, state: Any, step: int) -> None:
        """Keep a state."""
        if self._schedule.take(step):
            self._run.checkpoint_within(state, step)

    def wants(self, step: int) -> bool:
        """Whether `every` includes the step."""
        return self._schedule.wanted(step)


def _readable(state: Any) -> Any:
    """A state as a whole, which processes that have parts of it put together."""
    leaves, tree = jax.tree.flatten(state)
    return jax.tree.unflatten(tree, readable(leaves))


def _safe(name: str) -> str:
    """A name that can be a part of a path."""
    return re.sub(r"[^\w.+=,-]+", "-", name).strip("-.") or "run"


def _name_in(path: Path) -> str:
    """The name of the run, given its directory."""
    return re.sub(r"-\d{4}-\d\d-\d\d-\d{6}(-\d+)?$", "", path.name)


def _made(directory: Path, name: str) -> Path:
    """Make a directory that was not there."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    for number in range(1, 10_000):
        path = directory / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise LogFileError(
                f"Cannot make a directory for the run in {str(directory)!r}: {error.strerror}. "
                "Choose another one: `spoolax.run(name, directory=...)`."
            ) from error
        return path
    raise LogFileError(f"There are too many runs called {name!r} in {str(directory)!r}.")
