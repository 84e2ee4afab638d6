"""The files that loggers write. One that cannot be written is refused before the run begins."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Self

from ...errors import LogFileError, LogValueError

if TYPE_CHECKING:
    from .runs import RunInfo

StrPath = str | os.PathLike[str]
ZARR = ".zarr"  # How the names of directories end that are Zarr hierarchies.
MAIN = "log.h5"  # What `spoolax.run` stores a run in, in its directory.

URL = re.compile(r"(s3|gs|memory):/+(?=[^/])")


class UrlPath(PosixPath):
    """A place in a bucket, as a path: names and parents are those of its URL.

    It is never on the disk, so there is no file, and no directory.
    """

    def __str__(self) -> str:
        return URL.sub(r"\1://", super().__str__())

    def expanduser(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:
        del strict
        return self


def as_path(path: StrPath) -> Path:
    """A path, or a URL of a bucket or a file."""
    text = os.fspath(path)
    if URL.match(text):
        return UrlPath(text)
    return Path(re.sub("^file:/+", "/", text))


def writable(path: StrPath, logger: str) -> Path:
    """Make the directory of a file, and check that the file can be written there."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise LogFileError(
            f"{logger} cannot write to {str(path)!r}: it is a directory. Pass the name of a "
            "file in it."
        )
    can_write(path, logger)
    return path


def can_write(path: Path, logger: str) -> None:
    """Make the directory that something is to be written in, and check that it can be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogFileError(
            f"{logger} cannot make the directory {str(path.parent)!r}: {error.strerror}."
        ) from error
    there = path if path.exists() else path.parent
    if not os.access(there, os.W_OK):
        raise LogFileError(
            f"{logger} has no permission to write to {str(path)!r}. Choose another place, or "
            "change the permissions."
        )


# What `mode` says about a path that exists: one rule for everything that is written to one.
MODES = {"x": "refuse it", "w": "replace it", "a": "append to it"}


def check_mode(mode: str, modes: str = "xw", or_else: str = "") -> None:
    """Refuse a mode that is not one of these."""
    if not isinstance(mode, str) or len(mode) != 1 or mode not in modes:
        known = ", ".join(f"{one!r} to {MODES[one]}" for one in modes)
        raise LogValueError(f"`mode={mode!r}` is not known. If the path exists: {known}{or_else}.")


def check_free(
    path: Path, mode: str, modes: str = "xw", or_else: str = "", exists: bool | None = None
) -> None:
    """Refuse a path that exists, if the mode is to do so, and say what else can be done."""
    if mode == "x" and (path.exists() if exists is None else exists):
        others = ", ".join(f"`mode={one!r}` to {MODES[one]}" for one in modes if one != "x")
        raise LogFileError(
            f"{str(path)!r} exists, and is left as it is. Choose another name, or {others}"
            f"{or_else}."
        )


def run_path(path: StrPath, run: RunInfo) -> Path:
    """The file of one run: `losses.png` becomes `losses-run-2.png`."""
    return marked(path, f"-{run.name}")


def marked(path: StrPath, mark: str) -> Path:
    """The path of a file that is one of several: `losses.png` becomes `losses-run-2.png`."""
    path = as_path(path)
    return path.with_name(f"{path.stem}{mark}{path.suffix}")
