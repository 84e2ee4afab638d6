"""Curves of runs as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._extras import load
from .._show.pictures import as_png, write_picture
from ..errors import LogFileError, LogValueError
from .lines import Line, keys_of, lines_of

if TYPE_CHECKING:
    from .run import Run

MOST = 24  # Curves that can be drawn below each other and still be seen.
# Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


def panels(
    runs: Sequence[Run], names: Sequence[str], x: str = "step", smooth: float = 0.0
) -> dict[str, list[Line]]:
    """The lines to draw, by key: one for each run that has it."""
    keys = keys_of(runs, names)
    if not keys:
        raise LogValueError("There is nothing to draw: nothing was logged.")
    several = len(runs) > 1
    drawn: dict[str, list[Line]] = {}
    for key in keys[:MOST]:
        having = [
            (number, run)
            for number, run in enumerate(runs)
            if key in run or any(key in one for one in run.runs.values())
        ]
        lines = [lines_of(run, key, x, run.name if several else "", n) for n, run in having]
        drawn[key] = [line.smoothed(smooth).thinned() for line in lines]
    return drawn


def draw(
    runs: Sequence[Run],
    names: Sequence[str] = (),
    *,
    x: str = "step",
    log_x: bool = False,
    log_y: bool = False,
    smooth: float = 0.0,
) -> Any:
    """Draw the curves of some keys below each other, those of all runs in the same panel."""
    figures = load("matplotlib.figure", "Drawing a plot", "plot")
    drawn = panels(runs, names, x, smooth)
    figure = figures.Figure(figsize=(7, 2.2 * len(drawn) + 0.6), layout="constrained")
    axes = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (key, lines) in zip(axes, drawn.items(), strict=True):
        for line in lines:
            _draw_line(axis, line, COLOURS[line.number % len(COLOURS)])
        axis.set_title(key.replace("$", r"\$"), loc="left", fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if log_y and any(np.any(line.y > 0) for line in lines):
            axis.set_yscale("log")
        if log_x:
            axis.set_xscale("symlog" if any(np.any(line.x <= 0) for line in lines) else "log")
    axes[-1].set_xlabel("seconds" if x == "time" else x)
    if len(runs) > 1:
        every = {line.number: line.label for lines in drawn.values() for line in lines}
        handles = [
            axes[0].plot([], [], color=COLOURS[number % len(COLOURS)], label=label)[0]
            for number, label in sorted(every.items())
        ]
        axes[0].legend(handles=handles, fontsize=8, frameon=False)
    # Notebooks show figures of `pyplot` only, which keeps them all.
    figure._repr_png_ = lambda: as_png(figure)
    return figure


def _draw_line(axis: Any, line: Line, colour: str) -> None:
    marker = "." if len(line.x) < 30 else ""
    axis.plot(line.x, line.y, linewidth=1.3, marker=marker, color=colour, label=line.label or None)
    if line.low is not None and line.high is not None:
        axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a file that somebody has named."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        kinds = ", ".join(f".{kind}" for kind in sorted(known))
        raise LogValueError(f"Cannot draw {str(path)!r}: the name must end with one of {kinds}.")
    try:
        write_picture(figure, path)
    except OSError as error:
        raise LogFileError(f"Cannot write {str(path)!r}: {error.strerror}.") from error
