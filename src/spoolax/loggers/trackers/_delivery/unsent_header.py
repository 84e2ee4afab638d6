"""The first line of a file of unsent rows: their run, and the position up to which they were sent.

It is `{"_run": {...}, "_sent": 1234}`, with spaces in between, so that both can be changed in
place: the run may grow a little, and the position has as many digits as it will ever need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOM = 256  # Characters by which the run may grow.
DIGITS = 16  # Of the position.
END = b"}\n"


def header_start(run: dict[str, Any]) -> bytes:
    """The header up to the spaces before the position."""
    return f'{{"_run": {json.dumps(run)}, "_sent": '.encode()


def header_position(position: int) -> bytes:
    """The position as it is in the header."""
    return f"{position:>{DIGITS}}".encode()


def parse_header(line: bytes) -> tuple[dict[str, Any], int] | None:
    """The run and the position; None if the line is not a header."""
    try:
        found = json.loads(line)
        run, sent = found["_run"], int(found["_sent"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (run, sent) if isinstance(run, dict) else None


def read_header(path: Path) -> tuple[dict[str, Any], int] | None:
    """The run and the position of a file; None if it is not a file of unsent rows."""
    with open(path, "rb") as file:
        return parse_header(file.readline())
