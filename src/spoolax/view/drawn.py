"""What is drawn: curves, at the resolution of the screen; fields, distributions and frames."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._runs.curve import Array, Curve, as_numbers
from .._runs.lines import Line
from ..errors import LogValueError

MOST_COLUMNS = 300  # Moments in a heat map or histogram.
MOST_ROWS = 256  # Numbers of a vector in a heat map.
BINS = 48
MOST_PIXELS = 1024  # On a side of a frame.
SAMPLED_FRAMES = 16  # From which the range of their colours is taken.
SAMPLED_NUMBERS = 100_000
CSV_ROWS = 10_000  # Made at a time.

Window = tuple[float | None, float | None]


def packed(array: Any) -> dict[str, Any]:
    """Numbers for the page: their bytes, which need not be parsed."""
    numbers = np.ascontiguousarray(array, np.float64)
    return {"shape": numbers.shape, "data": base64.b64encode(numbers.tobytes()).decode()}


def kinds_of(curve: Curve) -> list[str]:
    """The ways in which a key can be drawn, the best one first."""
    sizes = curve.shape[curve.lanes :]
    if not math.prod(curve.shape) or curve.dtype.kind not in "biufV":
        return [] if curve.dtype.kind != "c" or not math.prod(curve.shape) else ["lines"]
    if math.prod(curve.shape) == 1 or (curve.lanes and not sizes):
        return ["lines", *(["heat"] if math.prod(curve.shape) > 1 else [])]
    is_image = len(sizes) == 3 and sizes[-1] in (1, 3, 4)
    if (len(sizes) == 2 or is_image) and min(sizes[:2]) >= 4 and not curve.lanes:
        return ["frames", "lines", "histogram"]
    return ["heat", "lines", "histogram"] if len(sizes) == 1 else ["lines", "histogram"]


def described(curve: Curve) -> dict[str, Any]:
    """What the page has to know about a key."""
    return {
        "count": len(curve),
        "shape": curve.shape,
        "dtype": curve.dtype.name,
        "steps": curve.step_names,
        "kinds": kinds_of(curve),
    }


def drawn_line(
    line: Line, window: Window, points: int, smooth: float, log_x: bool
) -> dict[str, Any]:
    """A curve in a window, at some resolution, and its moving average."""
    made = {"count": len(line.x), **_windowed(line, window, points, log_x)}
    if smooth and len(line.x):
        made["smooth"] = _windowed(line.smoothed(smooth), window, points, log_x)
    return made


def _windowed(line: Line, window: Window, points: int, log_x: bool) -> dict[str, Any]:
    shown = line.within(*window).thinned(points, log_x)
    made = {"x": packed(shown.x), "y": packed(shown.y)}
    if shown.low is not None and shown.high is not None:
        made |= {"low": packed(shown.low), "high": packed(shown.high)}
    return made


def rows_within(x: Array, window: Window, most: int) -> Array:
    """Rows to draw, evenly spread over a window, in the order of x; the last one of equal x."""
    low, high = (-math.inf if window[0] is None else window[0]), window[1]
    inside = np.flatnonzero((x >= low) & (x <= (math.inf if high is None else high)))
    inside = inside[np.argsort(x[inside], kind="stable")]
    inside = inside[np.append(x[inside][1:] != x[inside][:-1], True)] if len(inside) else inside
    if len(inside) <= most:
        return inside
    chosen: Array = inside[np.linspace(0, len(inside) - 1, most).astype(np.int64)]
    return chosen


def read_rows(curve: Curve, rows: Array) -> Array:
    """Some rows of a curve, one number per row and column. Lanes that did not log are NaN."""
    valid = curve.valid
    return as_numbers(curve.take(rows), None if valid is None else valid[rows])


def heat_map(curve: Curve, x: Array, window: Window) -> dict[str, Any]:
    """How the numbers of a vector change: a column for each moment, a row for each number."""
    rows = rows_within(x, window, MOST_COLUMNS)
    values = read_rows(curve, rows)
    every = -(-values.shape[1] // MOST_ROWS)
    return {
        "x": packed(x[rows]),
        "y": packed(np.arange(0, values.shape[1], every)),
        "z": packed(values[:, ::every].T),
        "count": len(x),
    }


def histograms(curve: Curve, x: Array, window: Window) -> dict[str, Any]:
    """How the numbers of an array are distributed: a column for each moment, a row for each bin."""
    rows = rows_within(x, window, MOST_COLUMNS)
    values = read_rows(curve, rows)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise LogValueError(f"{curve.name!r} has no finite numbers here.")
    low, high = float(finite.min()), float(finite.max())
    wide = max(high - low, 1e-6 * abs(high), 1e-300)
    if not math.isfinite(wide):
        raise LogValueError(f"{curve.name!r} spans too much for histograms.")
    edges = np.linspace(low, low + wide, BINS + 1)
    counts = np.stack([np.histogram(one[np.isfinite(one)], edges)[0] for one in values])
    return {
        "x": packed(x[rows]),
        "y": packed((edges[1:] + edges[:-1]) / 2),
        "z": packed(counts.T),
        "count": len(x),
    }


def frame(curve: Curve, row: int) -> dict[str, Any]:
    """One value of a 2-D field or image, with the range of all of them."""
    count = len(curve)
    if not count:
        raise LogValueError(f"{curve.name!r} has no values yet.")
    row = min(max(row, 0), count - 1)
    value = np.asarray(curve[row]).astype(np.float64)
    if value.ndim < 2:
        raise LogValueError(f"{curve.name!r} has no frames in this run: a value is {value.shape}.")
    every = -(-max(value.shape[:2]) // MOST_PIXELS)
    return {
        "row": row,
        "count": count,
        "step": int(curve.steps[row]),
        "values": packed(value[::every, ::every]),
        "range": _range_of(curve, count),
    }


def _range_of(curve: Curve, count: int) -> list[float]:
    """The range of the colours: the same for all frames, so that they can be compared."""
    rows = np.unique(np.linspace(0, count - 1, SAMPLED_FRAMES).astype(np.int64))
    some = read_rows(curve, rows).reshape(-1)
    some = some[:: -(-len(some) // SAMPLED_NUMBERS)]
    finite = some[np.isfinite(some)]
    if curve.dtype.name == "uint8":
        return [0.0, 255.0]
    return [float(finite.min()), float(finite.max())] if finite.size else [0.0, 1.0]


def as_csv(lines: Sequence[tuple[str, Line]], x: str) -> Iterator[str]:
    """Curves of several runs as a table for other programs: of arrays, their means."""
    yield f"run,{_quoted(x)},value\n"
    for name, line in lines:
        quoted = _quoted(name)
        for start in range(0, len(line.x), CSV_ROWS):
            rows = slice(start, start + CSV_ROWS)
            pairs = zip(line.x[rows].tolist(), line.y[rows].tolist(), strict=True)
            yield "".join(f"{quoted},{at},{value!r}\n" for at, value in pairs)


def _quoted(text: str) -> str:
    plain = text.replace("_", "").isalnum()
    return text if plain else '"' + text.replace('"', '""') + '"'
