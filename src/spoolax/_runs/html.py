"""A run as HTML, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._show import html, words
from .._show.curves import svg_curve

if TYPE_CHECKING:
    from .run import Run

MOST = 30  # Keys that are shown.


def run_as_html(run: Run) -> str:
    """Its status, and a small curve of every key."""
    curves = run.own_curves() or run.curves()
    rows = []
    for key, curve in list(curves.items())[:MOST]:
        count = len(curve)
        numbers = curve.numbers().tolist() if count else []
        last = words.value(curve[-1]) if count else ""
        rows.append([key, str(count), last, html.Markup(svg_curve(numbers))])
    if len(curves) > MOST:
        rows.append([f"and {len(curves) - MOST} more keys", "", "", ""])
    about = [run.status or "a file", words.moment(run.start)]
    if run.duration is not None:
        about.append(words.duration(run.duration))
    about += [f"step {run.last_step}", words.size(run.size)]
    if run.runs:
        about.append(f"{words.counted(len(run.runs), 'run')} inside")
    line = ", ".join(filter(None, about))
    return html.titled(run.name, line, html.table(rows, ["key", "values", "last", ""], (1, 2)))
