"""A progress bar: tqdm in a terminal, HTML in a notebook, and lines of text elsewhere.

Only one thing can redraw a terminal. While a live display is there, bars are part of what it draws.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

from .._extras import load
from .._show import html
from .._show.notebook import Page, in_notebook

LINE_EVERY = 10.0  # Seconds between lines, where there is no bar.
UPDATE_EVERY = 0.1  # Seconds between updates of a bar.
# A fraction has no number of iterations to show, nor a pace.
FRACTION = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"


class Display(Protocol):
    """Something that redraws a terminal again and again, with the bars that are there."""

    @property
    def file(self) -> TextIO:
        """The terminal."""

    def print_above(self, line: str) -> None:
        """Print a line that stays."""


class Bar:
    """Shows how many of `total` are done. None: the total is not known."""

    def __init__(
        self,
        total: float | None,
        description: str = "",
        position: int | None = None,
        file: TextIO | None = None,
        *,
        leave: bool = True,
        form: str | None = None,
    ) -> None:
        self._tqdm = load("tqdm", "A progress bar", "progress").tqdm
        self._given, self._position, self.leave = file, position, leave
        # That of tqdm is a widget, of which a saved notebook shows nothing.
        self._page = Page() if file is None and in_notebook() else None
        self._about: dict[str, Any] = {"total": total, "bar_format": form}
        self._description = description
        self._begun, self._printed = time.monotonic(), 0.0
        self._done, self._postfix = 0.0, ""
        self._bar: Any = None
        self._live = self._page is not None or self.file.isatty()
        screen.add(self)

    @property
    def file(self) -> TextIO:
        """Where it is shown."""
        return self._given or sys.stderr

    @property
    def position(self) -> int:
        """How far down it is among others."""
        return self._position or 0

    def draw(self) -> None:
        """Show the bar by itself, if there is something to show it in."""
        if self._page is not None:
            self._show_page()
        elif self._live:
            self._bar = self._tqdm(
                desc=self._description or None,
                position=self._position,
                file=self.file,
                leave=self.leave,
                dynamic_ncols=True,
                mininterval=0,
                **self._about,
            )
            self._bar.start_t -= time.monotonic() - self._begun
            self.update(self._done)

    def erase(self) -> None:
        """Stop showing it; it may be drawn again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.leave = False
            bar.close()

    def update(self, done: float, postfix: str = "") -> None:
        """Show how many are done."""
        self._done, self._postfix = done, postfix or self._postfix
        bar = self._bar  # Another thread may erase it.
        if bar is not None:
            bar.n = done
            bar.set_postfix_str(self._postfix, refresh=False)
            bar.refresh()
        elif self._page is not None:
            self._show_page()
        elif not self._live and (time.monotonic() - max(self._printed, self._begun) >= LINE_EVERY):
            self._print()

    def restart(self, ago: float) -> None:
        """Begin again, `ago` seconds ago, as a loop inside another one does."""
        self._begun = time.monotonic() - ago
        if self._bar is not None:
            self._bar.reset()
            self._bar.start_t -= ago

    def discard(self) -> None:
        """Remove the bar without a trace."""
        screen.remove(self)
        self.erase()
        if self._page is not None:
            self._page.show_html("")

    def finish(self) -> None:
        """Show that all is done, whatever was the last that was heard, and leave it there."""
        total = self._about["total"]
        if total is not None:
            self.update(total)
        self.close()

    def close(self) -> None:
        """Show the last state, and leave it there."""
        display = screen.remove(self)
        if self._bar is not None:
            self._bar.close()
        elif self._page is not None:
            self._page.show_html("") if not self.leave else self._show_page()
        elif display is not None and self.leave:
            display.print_above(self.line(80))
        elif not self._live:
            self._print()

    def _show_page(self) -> None:
        """Show the bar in a notebook."""
        assert self._page is not None
        total = self._about["total"]
        bar = html.bar(self._done / total) if total else ""
        words = self.line(60).strip()
        about = words.rpartition("|")[2].strip() if total else words.partition(":")[2].strip()
        self._page.show_html(html.titled(self._description, about or words, bar))

    def line(self, width: int) -> str:
        """The bar as text."""
        elapsed = time.monotonic() - self._begun
        about = {"prefix": self._description, "postfix": self._postfix, **self._about}
        return str(self._tqdm.format_meter(self._done, elapsed=elapsed, ncols=width, **about))

    def _print(self) -> None:
        self._printed = time.monotonic()
        print(self.line(80).strip(), file=self.file, flush=True)


class Screen:
    """The bars that there are, and the displays that show those of their terminals.

    What draws takes locks of its own, so nothing is drawn while ours is held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: list[Bar] = []
        self._displays: list[Display] = []

    def add(self, bar: Bar) -> None:
        """There is a new bar. It draws itself, unless there is a display for it."""
        with self._lock:
            self._bars.append(bar)
            display = self._display_of(bar)
        if display is None:
            bar.draw()

    def remove(self, bar: Bar) -> Display | None:
        """A bar is over. Return the display that it was in."""
        with self._lock:
            if bar in self._bars:
                self._bars.remove(bar)
            return self._display_of(bar)

    def open(self, display: Display) -> None:
        """From now on a display draws the bars of its terminal."""
        with self._lock:
            self._displays.append(display)
        for bar in self.bars_in(display):
            bar.erase()

    @contextlib.contextmanager
    def closing(self, display: Display) -> Iterator[None]:
        """A display draws for the last time, without bars; then they draw themselves again."""
        bars = self.bars_in(display)
        with self._lock:
            self._displays.remove(display)
        try:
            yield
        finally:
            for bar in bars:
                bar.draw()

    def bars_in(self, display: Display) -> list[Bar]:
        """The bars that a display is to draw, in order."""
        with self._lock:
            bars = [bar for bar in self._bars if self._display_of(bar) is display]
            return sorted(bars, key=lambda bar: bar.position)

    def _display_of(self, bar: Bar) -> Display | None:
        return next((one for one in self._displays if _same_terminal(one.file, bar.file)), None)


screen = Screen()


def _same_terminal(one: TextIO, other: TextIO) -> bool:
    if one is other:
        return True
    try:
        return os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except (OSError, AttributeError):  # A file, or an object that is no file.
        return False


def print_above_bars(line: str, file: TextIO) -> None:
    """Print a line, above tqdm's bars if there are any."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None and getattr(tqdm.tqdm, "_instances", None):
        tqdm.tqdm.write(line, file=file)
    else:
        print(line, file=file, flush=True)
