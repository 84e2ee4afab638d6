"""The state of the source code that a run was made with: what is not in its last commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

DIFF = "uncommitted.diff"
MOST_BYTES = 10_000_000
PATIENCE = 5.0  # Seconds.


def keep_diff(directory: Path) -> None:
    """Write what differs from the last commit into a directory, if there is anything."""
    try:
        ran = subprocess.run(
            ["git", "diff", "HEAD", "--no-color", "--no-ext-diff"],
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # There is no git, or no repository.
        return
    if ran.stdout and len(ran.stdout) <= MOST_BYTES:
        (directory / DIFF).write_bytes(ran.stdout)
