"""Rows that a tracker will never accept: put aside, into a file next to that of the others."""

from __future__ import annotations

import uuid

from ...._tap.sinks import reports
from .unsent_file import UnsentFile


class RefusedRows:
    """The refused rows of one run."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.file: UnsentFile | None = None
        self.count = 0

    def add(self, line: str, unsent: UnsentFile, error: Exception) -> None:
        """Put aside a row of the file `unsent`, which the tracker refused with an error."""
        if self.file is None:
            stem = unsent.path.stem.partition("-refused")[0]
            path = unsent.path.with_name(f"{stem}-refused-{uuid.uuid4().hex[:6]}.jsonl")
            self.file = UnsentFile(path, unsent.run)
            reports.warning(
                "%s: the tracker refused a row (%s: %s). It is kept in %s, with others like it.",
                self._title,
                type(error).__name__,
                error,
                path,
            )
        self.file.append(line)
        self.count += 1
