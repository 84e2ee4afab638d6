"""`spoolax plot`: draw curves, in the terminal or into a file."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._extras import load
from .._show import words
from ..errors import LogValueError, StorageError
from ._common import click, guarded, in_directory

if TYPE_CHECKING:
    from .._runs.lines import Line
    from .._runs.run import Run

HEIGHT, TICKS = 16, 5
COLOURS = ("blue+", "orange+", "green+", "magenta+", "red+", "cyan+")


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="RUN... [KEY...]")
@click.option("--output", "-o", default="", help="A .png, .svg or .pdf file.")
@click.option("--x", default="step", show_default=True, help="`step`, `time`, or a named step.")
@click.option("--log-x", is_flag=True, help="A logarithmic x axis.")
@click.option("--log-y", "--log", is_flag=True, help="A logarithmic y axis.")
@click.option("--smooth", default=0.0, help="A moving average: from 0 (nothing) to 1.")
@in_directory
@guarded
def plot(
    what: tuple[str, ...],
    output: str,
    x: str,
    log_x: bool,
    log_y: bool,
    smooth: float,
    directory: str,
) -> None:
    """Draw curves of one or several runs over each other, in the terminal or into a file.

    Keys may be patterns, such as 'train/*'. Runs of seeds are drawn as their mean, in a band.
    """
    with contextlib.ExitStack() as stack:
        runs, keys = _runs_and_keys(what, directory, stack)
        if output:
            from .._runs.figure import draw, save_figure

            figure = draw(runs, keys, x=x, log_x=log_x, log_y=log_y, smooth=smooth)
            save_figure(figure, Path(output))
            print(output)
        else:
            from .._runs.figure import panels

            drawn = {
                key: in_terminal(key, lines, log_x=log_x, log_y=log_y)
                for key, lines in panels(runs, keys, x, smooth).items()
            }
            nothing = [repr(key) for key, text in drawn.items() if not text]
            why = "no number is finite" + " and positive" * (log_x or log_y)
            if len(nothing) == len(drawn):
                raise LogValueError(f"There is nothing to draw of {', '.join(nothing)}: {why}.")
            print(*filter(None, drawn.values()), sep="\n")
            if nothing:
                print(f"Nothing to draw of {', '.join(nothing)}: {why}.")


def _runs_and_keys(
    what: Sequence[str], directory: str, stack: contextlib.ExitStack
) -> tuple[list[Run], list[str]]:
    """Runs come first. What one of them has as a key is not another run."""
    from .._runs.listing import find_run
    from .._runs.run import Run

    runs: list[Run] = []
    for number, text in enumerate(what):
        if any(text in one for run in runs for one in (run, *run.runs.values())):
            return runs, list(what[number:])
        try:
            runs.append(stack.enter_context(Run(find_run(text, directory))))
        except StorageError:
            if not runs:
                raise
            return runs, list(what[number:])
    return runs, []


def in_terminal(
    key: str, lines: Sequence[Line], *, log_x: bool = False, log_y: bool = False
) -> str:
    """A plot as text; "" if there is nothing to draw."""
    import numpy as np

    plotext = load("plotext", "Drawing in the terminal", "cli")
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    plotext.clear_figure()
    drawn = False
    for line in lines:
        thin = line.thinned(4 * width)
        keep = np.isfinite(thin.y) & ((thin.y > 0) | (not log_y)) & ((thin.x > 0) | (not log_x))
        if not np.any(keep):
            continue
        drawn = True
        style: dict[str, Any] = {"color": COLOURS[line.number % len(COLOURS)], "marker": "braille"}
        for band in (thin.low, thin.high):
            if band is not None:
                there = keep & np.isfinite(band) & ((band > 0) | (not log_y))
                points = thin.x[there].tolist(), band[there].tolist()
                plotext.plot(*points, color="gray", marker="dot")
        label = {"label": line.label} if line.label else {}
        plotext.plot(thin.x[keep].tolist(), thin.y[keep].tolist(), **style, **label)
    if not drawn:
        return ""
    if log_x:
        plotext.xscale("log")
    else:
        ends = [edge for line in lines if len(line.x) for edge in (line.x[0], line.x[-1])]
        ticks = np.unique(np.linspace(min(ends), max(ends), TICKS).round(_digits(ends)))
        plotext.xticks(ticks.tolist(), [words.number(tick, 6) for tick in ticks.tolist()])
    if log_y:
        plotext.yscale("log")
    plotext.title(f"{key} (logarithmic)" if log_y else key)
    plotext.plotsize(width, HEIGHT)
    plotext.theme("clear")
    text = str(plotext.build())
    return text if sys.stdout.isatty() else str(plotext.uncolorize(text))


def _digits(ends: Sequence[float]) -> int:
    """How many digits after the point tell numbers between these apart."""
    wide = max(ends) - min(ends)
    return 0 if wide <= 0 or wide >= TICKS else 2 - math.floor(math.log10(wide))
