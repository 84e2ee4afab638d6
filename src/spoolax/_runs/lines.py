"""Lines to draw: what curves of runs look like at the resolution of a picture."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._extras import load
from ..errors import LogValueError, MissingKeyError
from .curve import Array, Curve, spread_of

if TYPE_CHECKING:
    from .run import Run

MOST_POINTS = 2000  # More than a picture has columns.
MOST_IN_MEAN = 20_000


@dataclasses.dataclass
class Line:
    """A line: its points, and the band around it if there is more than one number at a point."""

    label: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    number: int = 0  # Of the run, among those that are drawn.

    def smoothed(self, weight: float) -> Line:
        """A moving average: each point is `1 - weight` itself, and the rest what was before it."""
        if not 0 <= weight < 1:
            raise LogValueError(f"`smooth={weight}` is not from 0 (nothing) to 1 (too much).")
        if not weight:
            return self
        y = _average(self.y, weight)
        if self.low is None or self.high is None:
            return dataclasses.replace(self, y=y)
        low, high = _average(self.low, weight), _average(self.high, weight)
        return dataclasses.replace(self, y=y, low=low, high=high)

    def within(self, low: float | None, high: float | None) -> Line:
        """The points in a window, and one more on each side, to which the line leads."""
        first = 0 if low is None else max(0, int(np.searchsorted(self.x, low)) - 1)
        last = None if high is None else int(np.searchsorted(self.x, high, side="right")) + 1
        return self._at(slice(first, last))

    def thinned(self, most: int = MOST_POINTS, log_x: bool = False) -> Line:
        """As many points as can be seen. Of each stretch, the lowest and the highest remain."""
        if log_x and len(self.x) > most:
            self = self._at(slice(int(np.searchsorted(self.x, 0, side="right")), None))
        count = len(self.x)
        if count <= most:
            return self
        sampler = load("tsdownsample", "Drawing many points", "plot").MinMaxDownsampler()
        x = np.log10(self.x) if log_x else np.ascontiguousarray(self.x, np.float64)
        y, n_out = np.ascontiguousarray(self.y), most // 2 * 2
        is_axis = x[0] < x[-1] and bool(np.all(np.isfinite(x)))  # Or else stretches are by number.
        found = sampler.downsample(*([x, y] if is_axis else [y]), n_out=n_out)
        chosen = np.unique(np.concatenate([[0], found.astype(np.int64), [count - 1]]))
        thin = self._at(chosen)
        if self.low is not None and self.high is not None:
            thin.low = np.fmin.reduceat(self.low, chosen)
            thin.high = np.fmax.reduceat(self.high, chosen)
        return thin

    def _at(self, index: Any) -> Line:
        low, high = (None if band is None else band[index] for band in (self.low, self.high))
        return dataclasses.replace(self, x=self.x[index], y=self.y[index], low=low, high=high)


def lines_of(run: Run, key: str, x: str = "step", label: str = "", number: int = 0) -> Line:
    """The line of a key: of the run, or the mean of its runs of `init`, with a band around it."""
    if key not in run:
        line = mean_of([lines_of(one, key, x) for one in run.runs.values() if key in one])
        return dataclasses.replace(line, label=label, number=number)
    curve = run[key].still()
    mean, low, high = curve.spread()
    line = Line(label, axis_of(run, curve, x), mean, number=number)
    if curve.shape:
        line.low, line.high = low, high
    is_sorted = bool(np.all(line.x[1:] >= line.x[:-1]))
    return line if is_sorted else line._at(np.argsort(line.x, kind="stable"))


def keys_of(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """The keys of several runs that fit some names, or all that can be drawn."""
    found: dict[str, None] = {}
    missing: MissingKeyError | None = None
    for name in names:
        fitting: dict[str, None] = {}
        for one in (each for run in runs for each in (run, *run.runs.values())):
            try:
                fitting.update(dict.fromkeys(one.filter(name, own=True)))
            except MissingKeyError as error:
                missing = missing or error
        if not fitting:
            for run in runs:
                with contextlib.suppress(MissingKeyError):
                    fitting.update(dict.fromkeys(run.filter(name)))
        if not fitting:
            assert missing is not None
            raise missing
        found.update(fitting)
    if not names:
        for one in (each for run in runs for each in (run, *run.runs.values())):
            mine = one.own_curves().items()
            found.update(dict.fromkeys(key for key, curve in mine if len(curve)))
    return list(found)


def mean_of(lines: Sequence[Line]) -> Line:
    """The mean of several lines, in a band. A line counts from its first point to its last."""
    if len(lines) == 1:
        return lines[0]
    x = lines[0].x
    if all(np.array_equal(line.x, x) for line in lines):
        numbers = np.stack([line.y for line in lines], axis=1)
    else:
        # If there are too many points, those that stick out remain.
        few = [line.thinned(max(100, MOST_IN_MEAN // len(lines))) for line in lines]
        x = np.unique(np.concatenate([line.x for line in few]))
        inside = [line for line in lines if len(line.x)]
        each = [np.interp(x, line.x, line.y, left=np.nan, right=np.nan) for line in inside]
        numbers = np.stack(each, axis=1)
    return Line("", x, *spread_of(numbers))


def axis_of(run: Run, curve: Curve, x: str) -> Array:
    """What the values of a curve are drawn over: "step", "time", or a named step."""
    if x == "step":
        return curve.steps
    at = curve.times if x == "time" else curve.step(x)
    if at is None:
        known = ", ".join(map(repr, dict.fromkeys(["step", "time", *curve.step_names])))
        raise LogValueError(f"{curve.name!r} cannot be drawn by {x!r}: there are {known}.")
    return at - (run.start or at[0]) if x == "time" and len(at) else at


def _average(values: Array, weight: float) -> Array:
    """An exponential average that begins with the first number, and skips those that are none."""
    from scipy import signal  # It takes its time, and hardly anybody needs it.

    finite = np.isfinite(values)
    filled = np.where(finite, values, 0.0)
    top = signal.lfilter([1 - weight], [1, -weight], filled)
    bottom = signal.lfilter([1 - weight], [1, -weight], finite.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(finite, top / bottom, values)
