"""Small curves: in one line of text, and as SVG for a page or notebook."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
WIDE = 30  # A curve that spans more than this factor is drawn on a logarithmic scale.
WIDTH, HEIGHT, MARGIN = 120.0, 22.0, 2.0  # Pixels.


def sparkline(values: Sequence[float], most: int | None = None) -> str:
    """Draw numbers as a line of bars; NaN and infinities are dots."""
    return "".join(
        "·" if height is None else BARS[round(height * (len(BARS) - 1))]
        for height in _heights(values, most)
    )


def svg_curve(values: Sequence[float], most: int = 120) -> str:
    """Draw numbers as a small line in the colour of the text, with gaps for those that are none."""
    heights = _heights(values, most)
    across = (WIDTH - 2 * MARGIN) / max(1, len(heights) - 1)
    lines, words = [], ["M"]
    for i, height in enumerate(heights):
        if height is None:
            words = ["M"]
            continue
        y = HEIGHT - MARGIN - height * (HEIGHT - 2 * MARGIN)
        lines.append(f"{words[0]}{MARGIN + i * across:.1f} {y:.1f}")
        words = ["L"]
    path = "".join(lines)
    if len(lines) == 1:
        path += "h0.1"  # A dot.
    return (
        f'<svg width="{WIDTH:.0f}" height="{HEIGHT:.0f}" style="vertical-align:middle">'
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.3" '
        'stroke-linejoin="round" stroke-linecap="round" opacity="0.8"/></svg>'
    )


def squeezed(values: Sequence[float], most: int) -> list[float]:
    """As many values as there is room for, each the mean of neighbours."""
    most = min(most, len(values)) or 1
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [float(sum(part)) / len(part) for part in parts if len(part)]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a curve is drawn on a logarithmic scale: a linear one would show only its start."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and 0 < WIDE * min(finite) < max(finite)


def _heights(values: Sequence[float], most: int | None = None) -> list[float | None]:
    """Where numbers are between the lowest, 0, and the highest, 1. None: it is no number."""
    is_logarithmic = spans_decades(values)
    values = values if most is None else squeezed(values, most)
    if is_logarithmic:
        values = [math.log(x) if math.isfinite(x) else x for x in values]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if math.isinf(high - low):
        return _heights([value / 4 for value in values])
    return [
        ((x - low) / (high - low) if high > low else 0.0) if math.isfinite(x) else None
        for x in values
    ]
