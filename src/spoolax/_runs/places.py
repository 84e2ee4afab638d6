"""Where the parts of a run are, in its directory."""

from __future__ import annotations

import glob
import itertools
import re
from pathlib import Path

from ..errors import StorageError
from ..loggers._protocol.paths import MAIN as MAIN
from ..loggers._protocol.paths import ZARR, UrlPath

SUB_RUN = re.compile(r"run-\d+")  # What the runs that `init` opened are called,
CHECKPOINT = re.compile(r"checkpoint(-\d+)?(-p\d+)?\.h5")  # and the last states of loops.
PART = re.compile(r"(.+)-(p\d{4,})")  # What files of processes are called besides the first one's.
SUFFIXES = (".h5", ".hdf5", ".jsonl", ZARR)  # Of what may be a run, or a part of one.


def is_run(path: Path) -> bool:
    """Whether a path is a run: a file, a Zarr hierarchy, or the directory of a run."""
    try:
        return is_single(path) or (path / MAIN).is_file()
    except PermissionError:  # Opening it will say so.
        return False


def is_single(path: Path) -> bool:
    """Whether there is one file, or one Zarr hierarchy, at a path."""
    return isinstance(path, UrlPath) or path.is_file() or root_of(path).is_file()


def root_of(path: Path) -> Path:
    """The file of a store that changes whenever the store does."""
    return path / "zarr.json" if path.suffix == ZARR and path.is_dir() else path


def files_of(path: Path) -> dict[str, Path]:
    """The files of a run, by what their keys begin with; the one that says how it is comes first.

    Those of other processes come next. Besides the file that `spoolax.run` writes, there may be
    others in its directory, such as that of an `HDF5StorageWriter`.
    """
    if is_single(path):
        return {"": path, **_parts(path)}
    if not path.exists():
        raise StorageError(f"There is no file {str(path)!r}, and no directory.")
    if not is_run(path):
        raise StorageError(
            f"{str(path)!r} is a directory, but not that of a run: there is no {MAIN!r} in it. "
            "`spoolax.runs(directory)` lists runs."
        )
    found = {"": path / MAIN, **_parts(path / MAIN)}
    others = (
        file
        for file in sorted(path.iterdir())
        if file.suffix in SUFFIXES
        and not file.name.startswith(".")
        and file not in found.values()
        and not CHECKPOINT.fullmatch(file.name)
        and not SUB_RUN.fullmatch(file.stem)
    )
    for file in list(others):
        found[f"{file.name}/" if f"{file.stem}/" in found else f"{file.stem}/"] = file
    return found


def _parts(main: Path) -> dict[str, Path]:
    """What other processes have written, besides the first one."""
    files = sorted(main.parent.glob(f"{glob.escape(main.stem)}-p*{main.suffix}"))
    named = [(PART.fullmatch(file.stem), file) for file in files]
    return {f"{name[2]}/": file for name, file in named if name and name[1] == main.stem}


def is_part(file: Path) -> bool:
    """Whether a file belongs to one that the first process has written."""
    name = PART.fullmatch(file.stem)
    return name is not None and file.with_name(name[1] + file.suffix).exists()


def checkpoint_of(directory: Path, loop: int, mark: str = "") -> Path:
    """The file with the state that a loop has kept, given its number in the run.

    The mark is that of the process, if each of them keeps one.
    """
    return directory / (f"checkpoint-{loop}{mark}.h5" if loop else f"checkpoint{mark}.h5")


def last_checkpoint(directory: Path, mark: str = "") -> Path | None:
    """The file with the state that was kept last: a loop begins when the one before has ended."""
    files = (checkpoint_of(directory, loop, mark) for loop in itertools.count())
    found = list(itertools.takewhile(Path.is_file, files))
    return found[-1] if found else None


def as_typed(path: Path) -> str:
    """A path as one would type it: from here, if it is below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
