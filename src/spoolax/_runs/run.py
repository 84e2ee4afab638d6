"""A run that was recorded, or is being recorded, opened to look at it."""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .._extras import load
from .._show import words
from ..errors import MissingKeyError, SpoolaxError
from ..loggers._protocol.paths import StrPath, as_path
from .curve import Curve
from .entries import Logged, new_entries
from .missing_key import no_such_key
from .places import SUB_RUN, files_of
from .sources import Source, curves_of, source_of
from .table import table_of

if TYPE_CHECKING:
    import pandas
    import xarray

    from .._logdict.logdict import LogDict
    from ..storage._group import GroupReader
    from ..storage._reader import StorageReader


class Run(Mapping[str, Curve]):
    """A run, by key: its curves, settings and status, also while it is being written.

    It is a directory that `spoolax.run` made, or a file of a `SaveLogger`, `HDF5StorageWriter`,
    `ZarrStorageWriter`, `JsonlLogger` or `spoolax.save`. Nothing is read before it is asked for.

    Args:
        path: The directory or file, or the URL of a Zarr hierarchy in a bucket.
        classes: Classes of the pytrees in a trajectory, by name: see `HDF5StorageReader`.
        source_of: How to open one of its files.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path, config={"rate": 0.1}) as logger:
        ...     for i in range(3):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        >>> with spoolax.open(path) as run:
        ...     print(run.status, run.config, list(run), run["loss"][-1])
        finished {'rate': 0.1} ['loss'] 0.3333333333333333
    """

    def __init__(
        self,
        path: StrPath,
        classes: Mapping[str, Any] | None = None,
        *,
        source_of: Callable[[Path], Source] = source_of,
    ) -> None:
        self.path, self._classes = as_path(path).expanduser().resolve(), classes
        self._source_of = source_of
        self._sources: dict[str, Source] = {}
        self.skipped: dict[Path, str] = {}  # Files in its directory that are no part of it.
        for prefix, file in files_of(self.path).items():
            try:
                self._sources[prefix] = source_of(file)
            except SpoolaxError as error:
                if not self._sources:
                    raise
                self.skipped[file] = str(error)
        self._reader: StorageReader | None = None
        self._sub_runs: dict[str, Run] = {}

    @property
    def _main(self) -> Source:
        return next(iter(self._sources.values()))

    @property
    def sources(self) -> list[Source]:
        """The files that it is read from."""
        return list(self._sources.values())

    @property
    def open_files(self) -> list[Path]:
        """The files that are open, also those of runs of `init`."""
        inside = [file for run in self._sub_runs.values() for file in run.open_files]
        return [*(source.path for source in self._sources.values()), *inside]

    @property
    def name(self) -> str:
        """Its name: that of the directory or file."""
        return self.path.name

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about it: "config", "attributes", "start", "host", "command", ..."""
        return self._main.meta()

    @property
    def config(self) -> Any:
        """The settings of the run."""
        return self.meta.get("config")

    @property
    def status(self) -> str:
        """Whether it runs, or how it ended.

        "running"; "finished"; "interrupted" (by Ctrl-C or `spoolax.StopRun`); "failed" (something
        else was raised); "crashed" (its writer died); or "" for a file that does not say.
        """
        return self._main.status()

    @property
    def reason(self) -> str:
        """Why the run ended, if it did not just come to its end."""
        return self._main.reason()

    @property
    def start(self) -> float | None:
        """When it began, in seconds since 1970, if that is known."""
        start = self.meta.get("start")
        return None if start is None else float(start)

    @property
    def duration(self) -> float | None:
        """How many seconds it took, or has been running so far."""
        start = self.start
        end = time.time() if self.status == "running" else self._main.end()
        return None if start is None else max(0.0, end - start)

    @property
    def steps_run(self) -> int:
        """How many steps had run when something was last written."""
        return self._main.steps_run()

    @property
    def last_step(self) -> int | None:
        """The last step at which something was logged."""
        rows = [rows for source in self._sources.values() for rows, _ in source.tables()]
        counts = [(one, one.count()) for one in rows]
        last = [int(one.steps(count - 1, count)[0]) for one, count in counts if count]
        inside = (run.last_step for run in self.runs.values())
        return max([*last, *(step for step in inside if step is not None)], default=None)

    def about(self) -> dict[str, Any]:
        """What a list of runs says about it."""
        return {
            "status": self.status,
            "reason": self.reason,
            "start": self.start,
            "duration": self.duration,
            "step": self.last_step,
            "size": self.size,
            "last": self.last(),
        }

    @property
    def size(self) -> int:
        """How many bytes its files have."""
        if self.path.is_file():
            return self.path.stat().st_size
        sizes = 0
        for file in self.path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # It was there for a moment only.
                sizes += file.stat().st_size if file.is_file() else 0
        return sizes

    @property
    def runs(self) -> dict[str, Run]:
        """The runs that `init` opened inside of it, one per key, by name."""
        if self.path.is_dir():
            found = (f for f in self.path.glob("run-*.h5") if SUB_RUN.fullmatch(f.stem))
            for file in sorted(found, key=lambda f: int(f.stem.removeprefix("run-"))):
                if file.stem not in self._sub_runs:
                    one = Run(file, self._classes, source_of=self._source_of)
                    self._sub_runs[file.stem] = one
        return self._sub_runs

    def curves(self) -> dict[str, Curve]:
        """All curves, by key. Those of runs of `init` begin with their names, "run-0/loss"."""
        curves = self.own_curves()
        for name, run in self.runs.items():
            _put(curves, f"{name}/", run.own_curves())
        return curves

    def own_curves(self, still: bool = False) -> dict[str, Curve]:
        """The curves of the run itself, without those of runs of `init`; or as they are now."""
        curves: dict[str, Curve] = {}
        for prefix, source in self._sources.items():
            _put(curves, prefix, curves_of(source, still))
        return curves

    def __getitem__(self, key: str) -> Curve:
        curves = self.curves()
        if key not in curves:
            raise MissingKeyError(no_such_key(key, curves, self.name))
        return curves[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.curves())

    def __len__(self) -> int:
        return len(self.curves())

    def __contains__(self, key: object) -> bool:
        return key in self.curves()

    def filter(self, *names: str, own: bool = False) -> dict[str, Curve]:
        """The curves of some keys, by name or glob pattern. A name that fits none is an error.

        Args:
            *names: Keys or patterns.
            own: Whether to leave out those of runs of `init`.
        """
        curves, chosen = self.own_curves() if own else self.curves(), {}
        for name in names:
            fitting = [key for key in curves if key == name or fnmatch.fnmatchcase(key, name)]
            if not fitting:
                raise MissingKeyError(no_such_key(name, curves, self.name))
            chosen.update({key: curves[key] for key in fitting})
        return chosen

    def last(self) -> dict[str, float]:
        """The last value of each curve of numbers; their mean, of curves of runs of `init`."""
        curves = self.own_curves(still=True).items()
        mine = {key: float(c[-1]) for key, c in curves if not c.shape and len(c) and _is_real(c)}
        inside = [run.last() for run in self.runs.values()]
        for key in dict.fromkeys(key for one in inside for key in one):
            mine.setdefault(key, float(np.mean([one[key] for one in inside if key in one])))
        return mine

    def to_pandas(self, *names: str) -> pandas.DataFrame:
        """A `pandas.DataFrame` with a row for each step: of all keys, or of some.

        Needs pandas (the extra `pandas`). Values that are large arrays are left out.
        """
        frames = load("pandas", "`Run.to_pandas`", "pandas")
        frame = frames.DataFrame(table_of(self.filter(*names) if names else self.curves()))
        frame.attrs.update(config=self.config, name=self.name)
        return frame  # type: ignore[no-any-return]

    def to_xarray(self) -> xarray.Dataset:
        """An `xarray.Dataset` with one variable per key. Needs xarray (the extra `xarray`)."""
        dataset = self.to_logs().to_xarray()
        dataset.attrs.update(name=self.name)
        return dataset

    def to_logs(self) -> LogDict:
        """All keys as a `LogDict`: see also `spoolax.load`."""
        from .._logdict.logdict import LogDict  # Which needs JAX.

        curves = {key: curve.still() for key, curve in self.curves().items()}
        return LogDict(
            {key: curve[:] for key, curve in curves.items()},
            steps={"step": {key: curve.steps for key, curve in curves.items()}},
            stacked=tuple(curves),
        )

    def plot(self, *names: str, **options: Any) -> Any:
        """Draw curves: see `spoolax plot --help` for the options. Returns a matplotlib figure.

        Needs matplotlib (the extra `plot`).

        Args:
            *names: Keys or glob patterns. By default, everything.
            **options: `x` ("step", "time", or a named step), `log_x`, `log_y`, `smooth`.
        """
        from .figure import draw  # Which imports nothing that is not needed, until it draws.

        return draw([self], names, **options)

    def follow(
        self, *names: str, poll: float = 0.2, timeout: float | None = None
    ) -> Iterator[Logged]:
        """Yield entries, those that are there and then new ones, until the run ends.

        Args:
            *names: Keys or patterns. By default, everything.
            poll: Seconds between two looks at the file.
            timeout: Seconds after which to give up if nothing comes.
        """
        for entries in self.follow_many(names, {}, poll, timeout):
            yield from entries

    def follow_many(
        self,
        names: tuple[str, ...],
        done: dict[Any, int],
        poll: float = 0.2,
        timeout: float | None = None,
    ) -> Iterator[list[Logged]]:
        """Yield what came between two looks at the file. `done` is what had been read before."""
        heard = time.monotonic()
        while True:
            status = self.status  # Before reading, so that nothing comes in between.
            found = self.entries_after(done, names)
            if found:
                yield found
                heard = time.monotonic()
            if status not in ("running", "") or (
                timeout is not None and time.monotonic() - heard > timeout
            ):
                return
            time.sleep(poll)

    def entries_after(
        self, done: dict[Any, int], names: tuple[str, ...], most: int | None = None
    ) -> list[Logged]:
        """Entries that are new since `done`, which is brought up to date; or the last of them."""
        sources = dict(self._sources)
        for name, run in self.runs.items():
            sources |= {f"{name}/{prefix}": source for prefix, source in run._sources.items()}
        return new_entries(sources, done, names, most)

    @property
    def reader(self) -> StorageReader:
        """The reader of its store, for pytrees and groups of a trajectory."""
        from ..storage._formats import backend_of
        from ..storage._reader import StorageReader  # Which needs JAX.

        if self._reader is None:
            path = self._main.path
            self._reader = StorageReader(path, self._classes, backend=backend_of(path))
        return self._reader

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its store."""
        return self.reader.groups

    def focus_group(self, which: str | Callable[[Any], Any]) -> GroupReader:
        """A group of its store, by name or by a function of the schema: `lambda s: s.frames`."""
        return self.reader.focus_group(which)

    def steps(self, which: str | Callable[[Any], Any]) -> np.ndarray[Any, Any]:
        """The steps of a key, or of the rows of a group."""
        if isinstance(which, str) and which in self:
            return self[which].steps
        return self.reader.steps(which)

    def close(self) -> None:
        """Close its files."""
        for one in (*self._sources.values(), *self._sub_runs.values(), self._reader):
            if one is not None:
                one.close()
        self._sub_runs, self._reader = {}, None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        status, keys = self.status or "a file", words.counted(len(self), "key")
        return f"<Run {self.name!r}: {status}, at step {self.last_step}, {keys}>"

    def _repr_html_(self) -> str:
        from .html import run_as_html

        return run_as_html(self)


def open_run(path: StrPath, classes: Mapping[str, Any] | None = None) -> Run:
    """Open a run to look at it: a directory that `spoolax.run` made, or a file of a logger.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 10)
        >>> with spoolax.open(path) as run:
        ...     run.status, run["loss"].steps.tolist()
        ('finished', [10])
    """
    return Run(path, classes)


def _put(curves: dict[str, Curve], prefix: str, more: Mapping[str, Curve]) -> None:
    """Add curves with a prefix, under names that are free."""
    for key, curve in more.items():
        curve.name = prefix + key
        while curve.name in curves:
            curve.name += "#"
        curves[curve.name] = curve


def _is_real(curve: Curve) -> bool:
    return curve.dtype.kind != "c"
