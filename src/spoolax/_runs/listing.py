"""The runs in a directory.

What a run that has ended looked like is kept in an index, so that a thousand of them are listed at
once. It is never wrong: what is known of a run counts only for files that have not changed since,
and only of runs that had ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from .._show import html, words
from ..errors import StorageError
from ..loggers._protocol.paths import StrPath, UrlPath, as_path
from .places import SUFFIXES, is_part, is_run, is_single, root_of

if TYPE_CHECKING:
    from .run import Run

INDEX = ".spoolax-index.json"
VERSION = 1  # Of what is in the index.
DEEPEST = 4  # Directories of runs may be in each other.
# What can be remembered. "": a file that does not say, so all that is known is in it.
ENDED = ("finished", "interrupted", "failed", "crashed", "")


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a list says about a run; `open()` gives the run itself.

    Examples:
        >>> import spoolax, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> with spoolax.storage.SaveLogger(directory + "/a.h5") as logger:
        ...     logger.log({"loss": 0.5}, 3)
        >>> (one,) = spoolax.runs(directory)
        >>> one.name, one.status, one.step, one.last
        ('a.h5', 'finished', 3, {'loss': 0.5})
    """

    path: Path
    name: str  # Its path inside of the directory that was listed.
    status: str
    reason: str
    start: float | None
    duration: float | None
    step: int | None  # The last one.
    size: int
    config: Any
    last: dict[str, float]  # The last value of each key of numbers.
    sub_runs: int  # How many runs `init` has opened inside of it.

    def open(self) -> Run:
        """Open the run."""
        from .run import Run

        return Run(self.path)


FIELDS = {field.name for field in dataclasses.fields(Summary)} - {"path", "name"}


class Runs(Sequence[Summary]):
    """The runs in a directory, those that began last at the end. What is no run is in `skipped`.

    Examples:
        >>> import spoolax, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> for name in ("a", "b"):
        ...     with spoolax.storage.SaveLogger(f"{directory}/{name}.h5") as logger:
        ...         logger.log({"loss": 0.5}, 3)
        >>> runs = spoolax.runs(directory)
        >>> len(runs), runs[-1].name, runs["a.h5"].last
        (2, 'b.h5', {'loss': 0.5})
    """

    def __init__(self, directory: Path, found: list[Summary], skipped: dict[Path, str]) -> None:
        self.directory, self._found, self.skipped = directory, found, skipped

    @overload
    def __getitem__(self, index: int | str) -> Summary: ...
    @overload
    def __getitem__(self, index: slice) -> list[Summary]: ...
    def __getitem__(self, index: int | slice | str) -> Summary | list[Summary]:
        if isinstance(index, str):
            named = {one.name: one for one in self._found}
            if index not in named:
                raise StorageError(_no_such_run(index, self.directory, list(named)))
            return named[index]
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        lines = [f"{words.counted(len(self), 'run')} in {str(self.directory)!r}"]
        widest = max((len(one.name) for one in self), default=0)
        for one in self:
            step = "" if one.step is None else f"step {one.step}"
            about = f"{one.status:11}  {words.moment(one.start):16}  {step:>12}"
            lines.append(f"  {one.name:{widest}}  {about}  {last_values(one)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        header = ["run", "status", "began", "took", "step", "size", "last values"]
        rows = [
            [
                one.name,
                one.status,
                words.moment(one.start),
                "" if one.duration is None else words.duration(one.duration),
                "" if one.step is None else str(one.step),
                words.size(one.size),
                last_values(one),
            ]
            for one in reversed(self)
        ]
        about = words.counted(len(self), "run")
        return html.titled(str(self.directory), about, html.table(rows, header, numbers=(3, 4, 5)))


def runs(directory: StrPath = "runs") -> Runs:
    """List the runs in a directory, and in directories in it.

    Examples:
        >>> import spoolax, tempfile
        >>> directory = tempfile.mkdtemp()
        >>> with spoolax.storage.SaveLogger(directory + "/a.h5", config={"rate": 0.1}) as logger:
        ...     logger.log({"loss": 0.5}, 3)
        >>> [(one.name, one.status, one.config) for one in spoolax.runs(directory)]
        [('a.h5', 'finished', {'rate': 0.1})]
    """
    top = Path(directory).expanduser().resolve()
    if not top.is_dir():
        what = "is a file, not a directory" if top.exists() else "does not exist"
        raise StorageError(
            f"There are no runs in {str(directory)!r}: it {what}. `spoolax demo` makes one."
        )
    index, found, changed = Index(top), [], False
    skipped: dict[Path, str] = {}
    for path in candidates(top, skipped):
        name = str(path.relative_to(top))
        try:
            at = signature(path)
            known = index.known(name, at)
            is_new = known is None
            known = _summary(path) if known is None else known
        except Exception as error:  # Anything can be in a file. The others are still of use.
            skipped[path] = str(error)
            continue
        if is_new:
            # The signature was taken before: if something has changed since, it is read again.
            changed |= index.learn(name, at, known)
        found.append(Summary(path=path, name=name, **known))
    if changed:
        index.keep()
    found.sort(key=lambda one: (one.start or 0.0, one.name))
    return Runs(top, found, skipped)


def find_run(text: str, directory: StrPath = "runs") -> Path:
    """Find the run that somebody means: by a path, a name, or the beginning of one, or "last".

    Of several runs with that beginning, it is the one that began last.
    """
    top = Path(directory).expanduser()
    for path in (as_path(text).expanduser(), top / text):
        with contextlib.suppress(PermissionError):  # Listing the runs will say so.
            if is_run(path):
                return path
    if not top.is_dir():
        raise StorageError(_no_such_run(text, Path.cwd(), []))
    if Path(text).expanduser().is_dir():
        raise StorageError(f"{text!r} is a directory, but not that of a run.{_LIST}")
    found = runs(top)
    if not found:
        raise StorageError(f"There are no runs in {str(directory)!r} yet.{_LIST}")
    names = {one.name: one.path for one in found} | {
        str(place.relative_to(found.directory)): place for place in found.skipped
    }
    if text == "last" and len(found):
        return found[-1].path
    fitting = [place for name, place in names.items() if name.startswith(text)]
    if not fitting:
        raise StorageError(_no_such_run(text, top, list(names)))
    return fitting[-1]


def last_values(one: Summary, most: int = 3) -> str:
    """The last values of a run in one line: of a few keys, those with short names first."""
    keys = sorted(one.last, key=lambda key: (key.count("/"), len(key)))[:most]
    shown = "  ".join(f"{key}={words.number(one.last[key], 4)}" for key in keys)
    return f"{shown} ..." if len(one.last) > most else shown


_LIST = " `spoolax ls DIRECTORY` lists runs, and `spoolax demo` makes one."


def _no_such_run(text: str, where: Path, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else _LIST
    return f"There is no run {text!r} in {str(where)!r}.{hint}"


def candidates(directory: Path, skipped: dict[Path, str], depth: int = 0) -> Iterator[Path]:
    """The directories of runs, and files that may be runs."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except PermissionError as error:
        if not depth:
            raise StorageError(f"Cannot read {str(directory)!r}: {error.strerror}.") from error
        skipped[directory] = f"{error.strerror}."
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith(".") or (path.suffix in SUFFIXES and is_part(path)):
            continue
        if entry.is_dir():
            if is_run(path):
                yield path
            elif depth < DEEPEST:
                yield from candidates(path, skipped, depth + 1)
        elif path.suffix in SUFFIXES:
            yield path


def signature(path: Path) -> list[list[Any]]:
    """What changes whenever a file of a run does."""
    if isinstance(path, UrlPath):
        from ..storage._formats import backend_of  # Which needs NumPy.

        return [[path.name, backend_of(path).last_written(path)]]
    files = [path] if is_single(path) else sorted(path.iterdir())
    made = []
    for file in files:
        if file.suffix in SUFFIXES and not file.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(root_of(file))
                made.append([file.name, status.st_mtime_ns, status.st_size, status.st_ino])
    return made


def summary_of(path: Path, name: str) -> Summary:
    """What a list says about a run."""
    return Summary(path=path, name=name, **_summary(path))


def _summary(path: Path) -> dict[str, Any]:
    from .run import Run  # Which needs NumPy. If everything is in the index, that is not needed.

    with Run(path) as run:
        return {**run.about(), "config": run.config, "sub_runs": len(run.runs)}


class Index:
    """What is known about the runs in a directory. Losing it costs only time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / INDEX
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            stored = json.loads(self._path.read_text())
            if isinstance(stored, dict) and stored.get("version") == VERSION:
                known = stored.get("runs")
                self._known = known if isinstance(known, dict) else {}

    def known(self, name: str, signature: list[list[Any]]) -> dict[str, Any] | None:
        """What is known about a run, if its files have not changed."""
        entry = self._known.get(name)
        if not isinstance(entry, dict) or entry.get("signature") != signature:
            return None
        summary = entry.get("summary")
        return summary if isinstance(summary, dict) and set(summary) == FIELDS else None

    def learn(self, name: str, signature: list[list[Any]], summary: dict[str, Any]) -> bool:
        """Remember a run, if it has ended. Return whether there is something new."""
        if summary["status"] not in ENDED:
            return False
        self._known[name] = {"signature": signature, "summary": summary}
        return True

    def keep(self) -> None:
        """Write the index, if that is possible: the directory may be somebody else's."""
        with contextlib.suppress(OSError):
            handle, draft = tempfile.mkstemp(prefix=INDEX, dir=self._path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump({"version": VERSION, "runs": self._known}, file)
            os.chmod(draft, 0o644)
            os.replace(draft, self._path)
