"""Curves in an image file that is redrawn during the run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from .._extras import load
from .._logdict.logdict import matches
from .._processes import Processes
from .._show.notebook import Page, in_notebook
from .._show.pictures import as_png, write_picture
from .._tap.sinks import reports
from ..errors import LogTypeError
from ._history import History
from ._protocol.frequency import Frequency
from ._protocol.paths import StrPath, check_free, check_mode, run_path, writable
from ._protocol.record import Record, scalar
from ._protocol.runs import RunInfo
from ._protocol.writer import Viewer, WritingLogger

MOST_POINTS = 2000
MOST_CURVES = 24  # More take too long to draw, and are too small to see.
SHARE = 0.1  # Of the time, what may be spent on drawing.


class PlotLogger(WritingLogger):
    """Draws the values of some keys against the step, into a PNG or SVG file.

    The file is redrawn during the run, which takes at most a tenth of the time, and once more at
    the end. It is replaced atomically, so a viewer never sees half a file. In a notebook, it is
    shown in the output of the cell as well. Arrays are drawn as their mean. Needs matplotlib (the
    extra `plot`).

    Args:
        path: The file. Its suffix is the format.
        mode: "x" refuses a file that exists, "w" replaces it.
        keys: What to draw, as names or glob patterns. By default everything.
        every: Which steps to draw: a number of steps, or a frequency.
        view: Takes what to draw out of the state.
        log_scale: Whether the vertical axes are logarithmic.
        processes: Of several processes, whether the "first" writes, or "each a file of its own".

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/loss.png"
        >>> with PlotLogger(path, "loss", every=10) as logger:
        ...     for i in range(30):
        ...         logger.log({"loss": 1 / (1 + i), "other": 3}, i)
        >>> import pathlib
        >>> pathlib.Path(path).read_bytes()[:4]
        b'\\x89PNG'
    """

    def __init__(
        self,
        path: StrPath,
        keys: str | tuple[str, ...] | list[str] | None = None,
        every: Frequency | int | None = None,
        mode: str = "x",
        *,
        view: Viewer = None,
        log_scale: bool = False,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        check_mode(mode)
        self._mode = mode
        if isinstance(keys, str):
            keys = (keys,)
        elif keys is not None and not isinstance(keys, (tuple, list)):
            raise LogTypeError(f"`keys` must be names of values, not {keys!r}.")
        self.path, self._keys, self._log_scale = Path(path), keys, log_scale
        self._curves: dict[str, History] = {}
        self._seen: dict[str, None] = {}
        self._cost, self._drawn = 0.0, -math.inf

    def open(self) -> None:
        """Import matplotlib before the run begins, and check that the file can be written."""
        self._figures = load("matplotlib.figure", "PlotLogger", "plot")
        self._page = Page() if in_notebook() else None
        self.path = writable(self.path, "PlotLogger")
        check_free(self.path, self._mode)
        known = load("matplotlib.backend_bases", "PlotLogger", "plot")
        kinds = known.FigureCanvasBase.get_supported_filetypes()
        if self.path.suffix[1:].lower() not in kinds:
            raise LogTypeError(
                f"PlotLogger cannot draw {str(self.path)!r}: the name must end with one of "
                f"{', '.join(f'.{kind}' for kind in sorted(kinds))}."
            )

    def write(self, record: Record) -> None:
        """Add points, and redraw if it is time."""
        for name, value in record.values.items():
            self._seen[name] = None
            if self._keys is None or any(matches(name, key) for key in self._keys):
                number = scalar(value, record.valid.get(name))
                if number is not None:
                    self._curves.setdefault(name, History(MOST_POINTS)).add(record.step, number)
        waited = time.monotonic() - self._drawn
        if self._curves and waited * SHARE >= self._cost:
            self.draw()

    def close(self, error: BaseException | None) -> None:
        """Draw a last time, if there is anything to draw."""
        if len(self._curves) > MOST_CURVES:
            reports.warning(
                "PlotLogger drew only %d of %d curves. Choose some with `keys`.",
                MOST_CURVES,
                len(self._curves),
            )
        if self._curves:
            self.draw()
        elif self._keys is not None and self._seen:
            reports.warning(
                "PlotLogger drew nothing: no key matches %s. The keys were %s.",
                ", ".join(map(repr, self._keys)),
                ", ".join(map(repr, self._seen)),
            )

    def fork(self, run: RunInfo) -> PlotLogger:
        """Each run has its own image."""
        return self.remade(path=run_path(self.path, run))

    def draw(self) -> None:
        """Draw the image."""
        begun = time.monotonic()
        curves = dict(list(self._curves.items())[:MOST_CURVES])
        count = len(curves)
        figure = self._figures.Figure(figsize=(7, 2.2 * count + 0.4), layout="constrained")
        axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, curve) in zip(axes, curves.items(), strict=True):
            self._draw_curve(axis, name, curve)
        axes[-1].set_xlabel("step")
        write_picture(figure, self.path)
        if self._page is not None:
            self._page.show_png(as_png(figure))
        self._drawn = time.monotonic()
        self._cost = self._drawn - begun

    def _draw_curve(self, axis: Any, name: str, curve: History) -> None:
        steps, values = curve.curve()
        axis.plot(steps, values, linewidth=1.3, marker="." if len(steps) < 30 else "")
        axis.set_title(name.replace("$", r"\$"), loc="left", fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if self._log_scale and curve.lowest > 0:
            axis.set_yscale("log")
        axis.set_title(f"{curve.latest:.5g}", loc="right", fontsize=9)
