"""Build rows: of one record, or of a whole batch of entries at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ...._logdict.logdict import LogDict
from ....errors import LogValueError
from ..._protocol.as_json import encode, numpy_numbers
from ..._protocol.record import Record
from ..._read_jsonl import finite_or_name
from .histogram import histogram
from .images import Images
from .row import STEP, Number, TrackerRow, scalar_key
from .surrogates import escape_surrogates

REMEMBERED = 10_000  # Steps whose last rows are remembered, however long ago they were.
FEW = 16  # Numbers that can each have a curve of their own.


class _Value(NamedTuple):
    """A value of an entry, and what is known about it."""

    value: Any
    valid: Any  # Lanes that logged, if not all did.
    lanes: int  # How many of its axes are lanes.
    tags: tuple[str, ...]


class RowBuilder:
    """Builds rows of records.

    Arrays with more than `histograms` numbers become histograms or, if it is None, four curves.
    `images` are patterns of names. With `distinct_times`, no two rows of one step have the same
    time in milliseconds.
    """

    def __init__(
        self, histograms: int | None, images: str | Iterable[str], distinct_times: bool = False
    ) -> None:
        if histograms is not None and (type(histograms) is not int or histograms < 0):
            raise LogValueError(
                "`histograms` must be a number, above which arrays become histograms, or None, not "
                f"{histograms!r}."
            )
        self._histograms, self._images = histograms, Images(images)
        self._float_steps: set[str] = set()  # Names of steps that were not always integers.
        self._distinct_times = distinct_times
        self._last_times: dict[Number, int] = {}  # Of each step, in milliseconds.
        self._most_times = REMEMBERED

    def row(self, record: Record) -> TrackerRow:
        """Build the row of a record."""
        axis = _axis(record.steps)
        steps = {name: _furthest(at) for name, at in record.steps.items()}
        if axis not in steps or np.ndim(record.steps[axis]):  # Not of lanes that did not log.
            steps[axis] = record.step
        steps = {name: self._step(name, at) for name, at in steps.items()}
        time = self.time_of(record.time, record.step)
        row = TrackerRow(record.step, axis, time, steps, {}, {}, {}, {})
        for name, value in record.values.items():
            one = _Value(value, record.valid.get(name), record.lanes.get(name, 0), record.tags)
            self._add(row, escape_surrogates(name), one)
        return row

    def _step(self, name: str, at: Number) -> Number:
        """A step: a float from the first one on that is not an integer."""
        if isinstance(at, float):
            self._float_steps.add(name)
        return float(at) if name in self._float_steps else at

    def time_of(self, time: float, step: Number) -> float:
        """The time of a row: its own or, if times are distinct, a little later."""
        if not self._distinct_times:
            return time
        now = int(1000 * time)
        at = self._last_times[step] = max(now, self._last_times.get(step, 0) + 1)
        if len(self._last_times) > self._most_times:
            self._last_times = {step: t for step, t in self._last_times.items() if t >= now}
            self._most_times = max(REMEMBERED, 2 * len(self._last_times))
        return at / 1000

    def lines(self, logs: LogDict, steps: Callable[[], Any]) -> list[str] | None:
        """The rows of a batch as lines of JSON; None if it has anything but scalars in it."""
        named = {name: next(iter(at.values())) for name, at in logs.steps.items()}
        columns = [*named.values(), *logs.values()]
        axis = _axis(named)
        taken = {axis, *named}
        if logs._valid or logs.origin is None or not taken.isdisjoint(logs):
            return None
        if not all(type(x) is np.ndarray and _are_scalars(x) for x in columns):
            return None
        main = steps()
        for name, at in {axis: main, **named}.items():
            integers = _integers(at)
            if integers.dtype.kind == "f":
                self._float_steps.add(name)
            named[name] = at.astype(np.float64) if name in self._float_steps else integers
        rows = zip(*map(_to_list, [*named.values(), *logs.values()]), strict=True)
        at, time = tuple(named), logs.origin.time
        keys = [scalar_key(escape_surrogates(name)) for name in logs]
        return [
            encode(
                {
                    "_step": step,
                    "_time": self.time_of(time, step),
                    "_axis": axis,
                    "_steps": dict(zip(at, row[: len(at)], strict=True)),
                    **dict(zip(keys, row[len(at) :], strict=True)),
                }
            )
            for step, row in zip(_to_list(_integers(main)), rows, strict=True)
        ]

    def _add(self, row: TrackerRow, name: str, one: _Value) -> None:
        value = one.value
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            value = value.item()
        if isinstance(value, (bool, int, float)) and one.valid is None:
            if row.steps.get(name) != value:  # A step that is logged as a value as well.
                row.scalars[_free_name(name, row)] = _within_float(value)
            return
        array = None if isinstance(value, str) else numpy_numbers(np.asarray(value))
        if array is None or array.dtype.kind not in "biufc":
            row.texts[_free_name(name, row)] = escape_surrogates(str(value))
        elif self._images.includes(name, array, one.lanes, one.tags):
            row.images[_free_name(name, row)] = self._images.to_bytes(name, array)
        elif array.dtype.kind == "c":
            self._add(row, f"{name}/real", one._replace(value=array.real))
            self._add(row, f"{name}/imag", one._replace(value=array.imag))
        else:
            self._add_array(row, name, one._replace(value=array))

    def _add_array(self, row: TrackerRow, name: str, one: _Value) -> None:
        array = one.value
        mask = None if one.valid is None else _mask(one)
        most = FEW if self._histograms is None else self._histograms
        if array.size > most or "histogram" in one.tags:
            numbers = array.ravel() if mask is None else array[mask]
            self._add_distribution(row, name, numbers.astype(np.float64))
            return
        for index in np.ndindex(array.shape):
            if mask is None or mask[index]:
                label = "/".join([name, *map(str, index)])
                row.scalars[_free_name(label, row)] = array[index].item()

    def _add_distribution(self, row: TrackerRow, name: str, numbers: Any) -> None:
        finite = numbers[np.isfinite(numbers)]
        if len(finite) < len(numbers):
            row.scalars[_free_name(f"{name}/nonfinite", row)] = len(numbers) - len(finite)
        if not len(finite):
            return
        if self._histograms is not None:
            row.histograms[_free_name(name, row)] = histogram(finite)
            return
        for label in ("mean", "std", "min", "max"):
            row.scalars[_free_name(f"{name}/{label}", row)] = float(getattr(finite, label)())


def _axis(steps: Any) -> str:
    """The name of the step to draw over."""
    return STEP if STEP in steps else next(iter(steps), STEP)


def _are_scalars(column: Any) -> bool:
    return bool(column.ndim == 1 and column.dtype.kind in "biuf")


def _integers(column: Any) -> Any:
    """Steps as integers, if that is what they are."""
    are_integers = column.dtype.kind == "f" and bool(
        np.isfinite(column).all() and (column % 1 == 0).all() and (np.abs(column) < 2**62).all()
    )
    return column.astype(np.int64) if are_integers else column


def _to_list(column: Any) -> list[Any]:
    numbers = column.tolist()
    return numbers if np.isfinite(column).all() else [finite_or_name(x) for x in numbers]


def _free_name(name: str, row: TrackerRow) -> str:
    """A name that nothing else in the row has."""
    taken = (row.steps, row.scalars, row.histograms, row.images, row.texts)
    while any(name in names for names in taken):
        name = f"value/{name}"
    return name


def _within_float(number: Number) -> Number:
    """A number that a float can hold: trackers, and readers of JSON, need not have larger ones."""
    if isinstance(number, int) and number.bit_length() > 1023:
        return math.inf if number > 0 else -math.inf
    return number


def _furthest(at: Any) -> Number:
    """A step as a number; of several lanes, the one furthest ahead."""
    number = np.max(np.asarray(at)).item()
    return int(number) if math.isfinite(number) and number == number // 1 else number


def _mask(one: _Value) -> Any:
    """Which numbers of an array were logged: its first axes are lanes."""
    valid = np.asarray(one.valid)
    return np.broadcast_to(
        valid.reshape(valid.shape + (1,) * (one.value.ndim - valid.ndim)), one.value.shape
    )
