"""A progress bar: tqdm in a terminal or notebook, and lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from .._extras import load

LINE_EVERY = 10.0  # Seconds between lines, where there is no bar.
UPDATE_EVERY = 0.1  # Seconds between updates of a bar.


class Bar:
    """Shows how many of `total` are done. None: the total is not known."""

    def __init__(
        self,
        total: float | None,
        description: str = "",
        position: int | None = None,
        file: TextIO | None = None,
        *,
        unit: str = "it",
        leave: bool = True,
    ) -> None:
        auto = load("tqdm.auto", "A progress bar", "progress").tqdm
        self._file = file or sys.stderr
        notebook = file is None and any(c.__name__ == "tqdm_notebook" for c in auto.__mro__)
        self._meter = auto.format_meter
        self._about = {"total": total, "prefix": description, "unit": unit, "ncols": 80}
        self._begun, self._printed = time.monotonic(), 0.0
        self._done, self._postfix = 0.0, ""
        self._bar: Any = None
        if notebook or self._file.isatty():
            self._bar = auto(
                total=total,
                desc=description or None,
                position=position,
                file=None if notebook else self._file,
                leave=leave,
                unit=unit,
                dynamic_ncols=True,
                mininterval=0,
            )

    def update(self, done: float, postfix: str = "") -> None:
        """Show how many are done."""
        self._done, self._postfix = done, postfix or self._postfix
        if self._bar is not None:
            self._bar.n = done
            self._bar.set_postfix_str(self._postfix, refresh=False)
            self._bar.refresh()
        elif time.monotonic() - max(self._printed, self._begun) >= LINE_EVERY:
            self._print()

    def restart(self, ago: float) -> None:
        """Begin again, `ago` seconds ago, as a loop inside another one does."""
        self._begun = time.monotonic() - ago
        if self._bar is not None:
            self._bar.reset()
            self._bar.start_t -= ago

    def discard(self) -> None:
        """Remove the bar without a trace."""
        if self._bar is not None:
            self._bar.leave = False
            self._bar.close()

    def close(self) -> None:
        """Show the last state, and leave it there."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._begun
        line = self._meter(self._done, elapsed=elapsed, postfix=self._postfix, **self._about)
        print(line.strip(), file=self._file, flush=True)


def print_above_bars(line: str, file: TextIO) -> None:
    """Print a line, above tqdm's bars if there are any."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and getattr(tqdm.tqdm, "_instances", None):
        tqdm.tqdm.write(line, file=file)
    else:
        print(line, file=file, flush=True)
