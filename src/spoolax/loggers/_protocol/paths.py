"""The files that loggers write. One that cannot be written is refused before the run begins."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import LogFileError
from .runs import RunInfo

StrPath = str | os.PathLike[str]


def writable(path: StrPath, logger: str) -> Path:
    """Make the directory of a file, and check that the file can be written there."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise LogFileError(
            f"{logger} cannot write to {str(path)!r}: it is a directory. Pass the name of a "
            "file in it."
        )
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
    return path


def run_path(path: StrPath, run: RunInfo) -> Path:
    """The file of one run: `losses.png` becomes `losses-run-2.png`."""
    path = Path(path)
    return path.with_name(f"{path.stem}-{run.name}{path.suffix}")
