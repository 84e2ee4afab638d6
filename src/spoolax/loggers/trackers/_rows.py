"""What trackers can show: an entry as scalars, histograms, images and texts.

A row is made on spoolax's thread, and written to a file as a line of JSON, from where it is sent.
So everything about numbers is decided here, and what sends them only has to send.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._logdict.logdict import LogDict
from ..._tap.sinks import reports
from ...errors import LogTypeError, LogValueError
from .._protocol.as_json import NUMBERS, encode, finite_or_name
from .._protocol.record import Record

Number = int | float
BINS = 64
LARGEST = np.finfo(np.float64).max
MANY = 10_000  # Steps whose last rows are remembered, whenever that was.
FEW = 16  # Numbers that can each have a curve of their own.
AXIS = "step"  # What the step is called if it has no name.


class Histogram(NamedTuple):
    """How many numbers there are between the edges, and what is known about all of them."""

    counts: list[int]
    edges: list[float]
    low: float
    high: float
    total: float
    squares: float


class Row(NamedTuple):
    """An entry as a tracker gets it."""

    step: Number
    axis: str  # Which of the steps that is.
    time: float  # In seconds since 1970.
    steps: dict[str, Number]
    scalars: dict[str, Number]
    histograms: dict[str, Histogram]
    images: dict[str, np.ndarray]  # Height, width, and colours, as bytes.
    texts: dict[str, str]


class _Value(NamedTuple):
    """A value of an entry, and what is known about it."""

    value: Any
    valid: Any  # Lanes that logged, if not all did.
    lanes: int  # How many of its axes are lanes.
    tags: tuple[str, ...]


class Rows:
    """Makes rows of records.

    Arrays with more than `histograms` numbers become histograms, or, if it is None, four curves.
    `images` are patterns of names. If they are to be kept `apart`, no two rows of one step are of
    the same millisecond.
    """

    def __init__(
        self, histograms: int | None, images: str | Iterable[str], apart: bool = False
    ) -> None:
        if histograms is not None and (type(histograms) is not int or histograms < 0):
            raise LogValueError(
                f"`histograms` is a number, above which arrays become histograms, or None, not "
                f"{histograms!r}."
            )
        many = isinstance(images, Iterable) and not isinstance(images, str)
        patterns: tuple[Any, ...] = tuple(images) if many else (images,)
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise LogTypeError(f"`images` are names, or patterns of names, not {images!r}.")
        self._histograms, self._images, self._apart = histograms, patterns, apart
        self._told: set[str] = set()
        self._fractions: set[str] = set()  # Steps that were not whole.
        self._last: dict[Number, int] = {}  # When a step last had a row, in milliseconds.
        self._most = MANY

    def row(self, record: Record) -> Row:
        """Make a row of a record."""
        axis = _axis(record.steps)
        steps = {name: _last(at) for name, at in record.steps.items()}
        if axis not in steps or np.ndim(record.steps[axis]):  # Not of lanes that did not log.
            steps[axis] = record.step
        steps = {name: self._step(name, at) for name, at in steps.items()}
        row = Row(record.step, axis, self.moment(record.time, record.step), steps, {}, {}, {}, {})
        for name, value in record.values.items():
            one = _Value(value, record.valid.get(name), record.lanes.get(name, 0), record.tags)
            self._add(row, printable(name), one)
        return row

    def _step(self, name: str, at: Number) -> Number:
        """A step; if it is not always whole, it is never."""
        if isinstance(at, float):
            self._fractions.add(name)
        return float(at) if name in self._fractions else at

    def moment(self, time: float, step: Number) -> float:
        """When a row is said to be of: its time, or a little later."""
        if not self._apart:
            return time
        now = int(1000 * time)
        at = self._last[step] = max(now, self._last.get(step, 0) + 1)
        if len(self._last) > self._most:
            self._last = {step: last for step, last in self._last.items() if last >= now}
            self._most = max(MANY, 2 * len(self._last))
        return at / 1000

    def lines(self, logs: LogDict, steps: Callable[[], Any]) -> list[str] | None:
        """The lines of a batch of entries; None if there is more in them than scalars."""
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
            whole = _whole(at)
            if whole.dtype.kind == "f":
                self._fractions.add(name)
            named[name] = at.astype(np.float64) if name in self._fractions else whole
        rows = zip(*map(_listed, [*named.values(), *logs.values()]), strict=True)
        at, time = tuple(named), logs.origin.time
        names = [_line_name(printable(name)) for name in logs]
        return [
            encode(
                {
                    "_step": step,
                    "_time": self.moment(time, step),
                    "_axis": axis,
                    "_steps": dict(zip(at, row[: len(at)], strict=True)),
                    **dict(zip(names, row[len(at) :], strict=True)),
                }
            )
            for step, row in zip(_listed(_whole(main)), rows, strict=True)
        ]

    def _add(self, row: Row, name: str, one: _Value) -> None:
        value = one.value
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            value = value.item()
        if isinstance(value, (bool, int, float)) and one.valid is None:
            if row.steps.get(name) != value:  # A step that is logged as a value as well.
                row.scalars[_free(name, row)] = _ordinary(value)
            return
        array = None if isinstance(value, str) else _plain(np.asarray(value))
        if array is None or array.dtype.kind not in "biufc":
            row.texts[_free(name, row)] = printable(str(value))
        elif self._is_image(name, array, one):
            row.images[_free(name, row)] = self._bytes(name, array)
        elif array.dtype.kind == "c":
            self._add(row, f"{name}/real", one._replace(value=array.real))
            self._add(row, f"{name}/imag", one._replace(value=array.imag))
        else:
            self._add_numbers(row, name, one._replace(value=array))

    def _add_numbers(self, row: Row, name: str, one: _Value) -> None:
        array = one.value
        mask = None if one.valid is None else np.broadcast_to(_aligned(one), array.shape)
        most = FEW if self._histograms is None else self._histograms
        if array.size > most or "histogram" in one.tags:
            numbers = array.ravel() if mask is None else array[mask]
            self._add_many(row, name, numbers.astype(np.float64))
            return
        for place in np.ndindex(array.shape):
            if mask is None or mask[place]:
                label = "/".join([name, *map(str, place)])
                row.scalars[_free(label, row)] = array[place].item()

    def _add_many(self, row: Row, name: str, numbers: Any) -> None:
        finite = numbers[np.isfinite(numbers)]
        if len(finite) < len(numbers):
            row.scalars[_free(f"{name}/nonfinite", row)] = len(numbers) - len(finite)
        if not len(finite):
            return
        if self._histograms is not None:
            row.histograms[_free(name, row)] = histogram(finite)
            return
        for label in ("mean", "std", "min", "max"):
            row.scalars[_free(f"{name}/{label}", row)] = float(getattr(finite, label)())

    def _is_image(self, name: str, array: Any, one: _Value) -> bool:
        looks_like_one = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
        looks_like_one = looks_like_one and array.size > 0 and array.dtype.kind in "biuf"
        looks_like_one = looks_like_one and not one.lanes  # They are neither height nor width.
        named = any(fnmatch.fnmatchcase(name, pattern) for pattern in self._images)
        if named and not looks_like_one:
            self._tell(
                name,
                "%r is to be shown as an image, but is %s of shape %s%s: it is logged as numbers. "
                "An image has height and width, and may have 1, 3 or 4 colours as its last axis.",
                array.dtype,
                array.shape,
                ", of several lanes" if one.lanes else "",
            )
        return looks_like_one and (
            named or "image" in one.tags or (array.dtype == np.uint8 and min(array.shape[:2]) > 1)
        )

    def _bytes(self, name: str, array: Any) -> Any:
        """An image as bytes; of others, 0 is black, and 1 is white."""
        if array.dtype.kind in "iu":
            array = np.clip(array, 0, 255).astype(np.uint8)
        else:
            array = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
            low, high = array.min(), array.max()
            if low < 0 or high > 1:
                message = "The image %r has numbers from %g to %g: 0 is black, and 1 is white."
                self._tell(name, message, low, high)
            array = np.round(255 * np.clip(array, 0, 1)).astype(np.uint8)
        return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array

    def _tell(self, name: str, message: str, *about: Any) -> None:
        """Warn of something once for each name."""
        if name not in self._told:
            self._told.add(name)
            reports.warning(message, name, *about)


def histogram(numbers: Any) -> Histogram:
    """Count finite numbers."""
    low, high = float(numbers.min()), float(numbers.max())
    largest = max(-low, high)
    scale = largest if largest > 1e100 else 1.0  # Else there would be no room for what is between.
    first, last = low / scale, high / scale
    room = BINS * 1e-9 * max(abs(first), abs(last), 1e-30)  # Nor between equal numbers.
    scope = (first, last) if last - first > room else (first - room, last + room)
    counts, edges = np.histogram(numbers / scale, BINS, scope)
    with np.errstate(over="ignore", invalid="ignore"):
        total, squares = float(numbers.sum()), float(np.square(numbers).sum())
        edges = np.clip(scale * edges, -LARGEST, LARGEST)
    return Histogram(counts.tolist(), edges.tolist(), low, high, total, squares)


def as_line(row: Row) -> str:
    """Write a row as one line of JSON, without the end of the line."""
    line: dict[str, Any] = {
        "_step": finite_or_name(row.step),
        "_time": row.time,
        "_axis": row.axis,
        "_steps": {name: finite_or_name(at) for name, at in row.steps.items()},
    }
    for name, number in row.scalars.items():
        line[_line_name(name)] = finite_or_name(number)
    for name, text in row.texts.items():
        line.setdefault("_texts", {})[name] = text
    for name, counted in row.histograms.items():
        sums = {"total": finite_or_name(counted.total), "squares": finite_or_name(counted.squares)}
        line.setdefault("_histograms", {})[name] = {**counted._asdict(), **sums}
    for name, image in row.images.items():
        data = base64.b64encode(image.tobytes()).decode()
        line.setdefault("_images", {})[name] = {"shape": image.shape, "data": data}
    return encode(line)


def from_line(line: str) -> Row:
    """Read a line that `as_line` wrote."""
    found = json.loads(line)
    step, time = _number(found.pop("_step")), found.pop("_time", 0.0)
    axis = found.pop("_axis", AXIS)
    steps = {name: _number(at) for name, at in found.pop("_steps", {axis: step}).items()}
    row = Row(step, axis, time, steps, {}, {}, {}, found.pop("_texts", {}))
    for name, counted in found.pop("_histograms", {}).items():
        sums = {name: _number(counted[name]) for name in ("total", "squares")}
        row.histograms[name] = Histogram(**{**counted, **sums})
    for name, image in found.pop("_images", {}).items():
        data = np.frombuffer(base64.b64decode(image["data"]), np.uint8)
        row.images[name] = data.reshape(image["shape"])
    for name, number in found.items():
        row.scalars[name[1:] if name.startswith("__") else name] = _number(number)
    return row


def other_steps(row: Row) -> dict[str, Number]:
    """The steps that are values, for trackers whose steps are whole, and of which there is one."""
    return {name: at for name, at in row.steps.items() if name != row.axis or isinstance(at, float)}


def printable(text: str) -> str:
    """The same text; what is no character, and cannot be written, is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _number(value: Any) -> Any:
    return NUMBERS.get(value, value) if isinstance(value, str) else value


def _line_name(name: str) -> str:
    """The name of a scalar in a line, where those with an underscore in front mean other things."""
    return f"_{name}" if name.startswith("_") else name


def _axis(steps: Any) -> str:
    """The name of the step to draw over."""
    return AXIS if AXIS in steps else next(iter(steps), AXIS)


def _are_scalars(column: Any) -> bool:
    return bool(column.ndim == 1 and column.dtype.kind in "biuf")


def _whole(column: Any) -> Any:
    """Steps as whole numbers, if that is what they are."""
    is_whole = column.dtype.kind == "f" and bool(
        np.isfinite(column).all() and (column % 1 == 0).all() and (np.abs(column) < 2**62).all()
    )
    return column.astype(np.int64) if is_whole else column


def _listed(column: Any) -> list[Any]:
    numbers = column.tolist()
    return numbers if np.isfinite(column).all() else [finite_or_name(x) for x in numbers]


def _free(name: str, row: Row) -> str:
    """A name that nothing else has."""
    taken = (row.steps, row.scalars, row.histograms, row.images, row.texts)
    while any(name in names for names in taken):
        name = f"value/{name}"
    return name


def _ordinary(number: Number) -> Number:
    """A number that others can have as well: neither Python's floats nor JSON go beyond that."""
    if isinstance(number, int) and number.bit_length() > 1023:
        return math.inf if number > 0 else -math.inf
    return number


def _last(at: Any) -> Number:
    """A step as a number; of several lanes, the one that is ahead."""
    number = np.max(np.asarray(at)).item()
    return int(number) if math.isfinite(number) and number == number // 1 else number


def _plain(array: Any) -> Any:
    """An array of numbers that NumPy itself knows; JAX has more kinds of them."""
    if jnp.issubdtype(array.dtype, np.number) and array.dtype.kind not in "iufc":
        whole = jnp.issubdtype(array.dtype, np.integer)
        return array.astype(np.int64 if whole else np.float64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array


def _aligned(one: _Value) -> Any:
    """The mask of lanes, which come first, with the axes that an array has after them."""
    valid = np.asarray(one.valid)
    return valid.reshape(valid.shape + (1,) * (one.value.ndim - valid.ndim))
