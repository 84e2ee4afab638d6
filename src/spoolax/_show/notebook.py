"""Notebooks: whether this is one, and output that is replaced while a cell runs.

What a cell shows last is what a saved notebook has, wherever it is looked at.
"""

from __future__ import annotations

import sys
from typing import Any


def in_notebook() -> bool:
    """Whether output goes to a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class Page:
    """A place in the output of a cell. Any thread may replace what is there."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show_html(self, html: str) -> None:
        """Show HTML, instead of what was there."""
        self._show({"text/html": html, "text/plain": ""})

    def show_png(self, image: bytes) -> None:
        """Show a picture, instead of what was there."""
        self._show({"image/png": image, "text/plain": ""})

    def _show(self, data: dict[str, Any]) -> None:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
