"""The directory that has the files of unsent rows, one for each run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

DEFAULT_NAME = "spoolax-unsent"  # Unless the user chose another one.


class UnsentDirectory:
    """A directory of files of unsent rows."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def path_for(self, names: Iterable[str | None], unique: str) -> Path:
        """The file of a run, called after `names`, as far as a file can be."""
        stem = "-".join(re.sub(r"[^\w.=-]+", "_", name, flags=re.ASCII) for name in names if name)
        return self._path / f"{stem[-150:]}-{unique}.jsonl"

    def remove_if_empty(self) -> None:
        """Remove the directory if it is ours, and nothing is left in it."""
        if self._path.name == DEFAULT_NAME:
            with contextlib.suppress(OSError):
                self._path.rmdir()
