"""Figures of matplotlib as pictures."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

DPI = 110


def as_png(figure: Any) -> bytes:
    """A figure as a PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure to a file. A viewer sees either the old or the new one."""
    draft = path.with_name(f".{path.stem}.draft{path.suffix}")
    figure.savefig(draft, dpi=DPI)
    os.replace(draft, path)
