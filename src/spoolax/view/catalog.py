"""Which runs the page shows. Each has an id, so that no request ever names a path."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._runs.listing import Summary, candidates, runs, signature, summary_of
from .._runs.places import MAIN, is_run, is_single
from .._runs.run import Run
from .._runs.settings import flat_settings
from .._runs.sources import source_of
from ..errors import SpoolaxError, StorageError
from ..storage._formats import backend_of
from .column_cache import CachedSource, ColumnCache

MOST_OPEN = 200  # Files of runs that are kept open.


class Catalog:
    """The runs in some directories, or some runs, opened when they are looked at.

    Args:
        places: Directories with runs in them, or runs.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = [place.expanduser().resolve() for place in places]
        self._cache = ColumnCache()
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._live: set[str] = set()  # Runs that are being written, for all that is known.
        self._there: set[Path] = set()  # What was in the directories, whether it is a run or not.
        self._names: dict[str, str] = {}
        self.version = 0  # Counts how often there were other runs.
        self._open: dict[str, tuple[Run, threading.Lock]] = {}

    def listed(self) -> dict[str, Any]:
        """All runs, those that began last first, and what could not be read."""
        found: list[Summary] = []
        skipped: dict[str, str] = {}
        there = self._candidates()
        for place in self.places:
            try:
                if is_run(place):
                    found.append(summary_of(place, place.name))
                elif place.is_dir():
                    listed = runs(place)
                    found += listed
                    skipped |= {str(path.name): why for path, why in listed.skipped.items()}
            except Exception as error:  # Anything can be in a file. The others are still of use.
                skipped[place.name] = str(error)
        ids = {id_of(one.path): one for one in found}
        with self._lock:
            self._paths = {key: one.path for key, one in ids.items()}
            self._live = {key for key, one in ids.items() if one.status in ("running", "")}
            self._names = {key: one.name for key, one in ids.items()}
            self.version += there != self._there
            self._there = there
        self._forget_others()
        newest = sorted(ids.items(), key=lambda pair: (-(pair[1].start or 0.0), pair[1].name))
        return {
            "places": [str(place) for place in self.places],
            "runs": [_described(key, one) for key, one in newest],
            "skipped": skipped,
        }

    @contextlib.contextmanager
    def opened(self, key: str) -> Iterator[Run]:
        """The run with an id, for one thread at a time."""
        if key not in self._paths:
            self.listed()  # It may be new.
        if key not in self._open:
            self._forget_others()
        while True:
            with self._lock:
                run, lock = self._opened(key)
            with lock:
                if self._open.get(key, (None,))[0] is not run:
                    continue  # It was closed in between.
                try:
                    yield run
                except FileNotFoundError as error:
                    raise StorageError(f"{run.name} is not there any more.") from error
                return

    def _opened(self, key: str) -> tuple[Run, threading.Lock]:
        path = self._paths.get(key)
        if path is None:
            raise StorageError("This run is not there any more.")
        if key not in self._open:
            run = Run(path, source_of=lambda file: CachedSource(source_of(file), self._cache))
            self._open[key] = run, threading.Lock()
        return self._open[key]

    def signatures(self, all_of_them: bool) -> dict[str, Any]:
        """What changes whenever a run does: of those that are being written, or of all."""
        with self._lock:
            paths, live = dict(self._paths), set(self._live)
        made: dict[str, Any] = {}
        for key, path in paths.items():
            if key in live or all_of_them:
                with contextlib.suppress(OSError):
                    # A writer that was killed leaves the files as they are, but not its lock.
                    main = path if is_single(path) else path / MAIN
                    is_held = key in live and backend_of(main).lock(main).is_held()
                    made[key] = signature(path), is_held
        return made

    def name_of(self, key: str) -> str:
        """What the list calls a run."""
        return self._names.get(key, "")

    def has_changed(self) -> bool:
        """Whether there are other runs than those that were listed."""
        return self._candidates() != self._there

    def _candidates(self) -> set[Path]:
        found: set[Path] = set()
        for place in self.places:
            with contextlib.suppress(SpoolaxError, OSError):
                found.update([place] if is_run(place) else candidates(place, {}))
        return found

    def _forget_others(self) -> None:
        with self._lock:
            closing = [self._open.pop(key) for key in [*self._open] if key not in self._paths]
            files = sum(len(run.open_files) for run, _ in self._open.values())
            while files > MOST_OPEN:
                closing.append(self._open.pop(next(iter(self._open))))
                files -= len(closing[-1][0].open_files)
        for run, lock in closing:
            with lock:  # Somebody may be reading it.
                run.close()


def id_of(path: Path) -> str:
    """The id of a run: the same as long as it is where it is, so that links to it last."""
    return hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:12]


def _described(key: str, one: Summary) -> dict[str, Any]:
    """What the page lists of a run. No name is there twice, as runs are compared by all of them."""
    about = {
        "id": key,
        "name": one.name,
        "status": one.status,
        "reason": one.reason,
        "start": one.start,
        "duration": one.duration,
        "step": one.step,
        "size": one.size,
        "seeds": one.sub_runs,
    }
    settings = flat_settings(one.config).items()
    config = {f"config.{k}" if k in about else k: _plain(value) for k, value in settings}
    taken = {**about, **config}
    last = {f"last.{k}" if k in taken else k: value for k, value in one.last.items()}
    return {**about, "config": config, "last": last}


def _plain(setting: Any) -> Any:
    """A setting that can be compared: a number, a text, or None. Lists are text."""
    is_plain = setting is None or isinstance(setting, (str, int, float, bool))
    return setting if is_plain else str(setting)
