"""What trackers can show: an entry as scalars, histograms, images and texts.

A row is made on chiplog's thread, and written to a file as a line of JSON, from where it is sent.
So everything about numbers is decided here, and what sends them only has to send.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._host import logger as reports
from .._logdict import LogDict
from ..errors import LogTypeError, LogValueError
from ._json import NUMBERS, encode, finite_or_name
from ._record import Record

Number = int | float
BINS = 64
LARGEST = np.finfo(np.float64).max
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


class Rows:
    """Makes rows of records.

    Arrays with more than `histograms` numbers become histograms, or, if it is None, four curves.
    `images` are patterns of names.
    """

    def __init__(self, histograms: int | None, images: str | Iterable[str]) -> None:
        if histograms is not None and (type(histograms) is not int or histograms < 0):
            raise LogValueError(
                f"`histograms` is a number, above which arrays become histograms, or None, not "
                f"{histograms!r}."
            )
        many = isinstance(images, Iterable) and not isinstance(images, str)
        patterns: tuple[Any, ...] = tuple(images) if many else (images,)
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise LogTypeError(f"`images` are names, or patterns of names, not {images!r}.")
        self._histograms, self._images = histograms, patterns
        self._told: set[str] = set()

    def row(self, record: Record) -> Row:
        """Make a row of a record."""
        axis = _axis(record.steps)
        steps = {name: _last(at) for name, at in record.steps.items()}
        steps.setdefault(axis, record.step)
        row = Row(record.step, axis, record.time, steps, {}, {}, {}, {})
        for name, value in record.values.items():
            self._add(row, name, value, record.valid.get(name), record.tags)
        return row

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
        named = {name: _whole(at) for name, at in {axis: main, **named}.items()}
        rows = zip(*map(_listed, [*named.values(), *logs.values()]), strict=True)
        at, names, time = tuple(named), [_line_name(name) for name in logs], logs.origin.time
        return [
            encode(
                {
                    "_step": step,
                    "_time": time,
                    "_axis": axis,
                    "_steps": dict(zip(at, row[: len(at)], strict=True)),
                    **dict(zip(names, row[len(at) :], strict=True)),
                }
            )
            for step, row in zip(_listed(_whole(main)), rows, strict=True)
        ]

    def _add(self, row: Row, name: str, value: Any, valid: Any, tags: tuple[str, ...]) -> None:
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            value = value.item()
        if isinstance(value, (bool, int, float)) and valid is None:
            if row.steps.get(name) != value:  # A step that is logged as a value as well.
                row.scalars[_free(name, row)] = value
            return
        if isinstance(value, str):
            row.texts[name] = value
            return
        array = _plain(np.asarray(value))
        if self._is_image(name, array, tags):
            row.images[name] = self._bytes(name, array)
        elif array.dtype.kind == "c":
            self._add(row, f"{name}/real", array.real, valid, tags)
            self._add(row, f"{name}/imag", array.imag, valid, tags)
        elif array.dtype.kind in "biuf":
            self._add_numbers(row, name, array, valid, tags)
        else:
            row.texts[name] = str(value)

    def _add_numbers(
        self, row: Row, name: str, array: Any, valid: Any, tags: tuple[str, ...]
    ) -> None:
        mask = None if valid is None else np.broadcast_to(_aligned(valid, array), array.shape)
        most = FEW if self._histograms is None else self._histograms
        if array.size > most or "histogram" in tags:
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
            row.scalars[f"{name}/nonfinite"] = len(numbers) - len(finite)
        if not len(finite):
            return
        if self._histograms is not None:
            row.histograms[name] = histogram(finite)
            return
        for label in ("mean", "std", "min", "max"):
            row.scalars[f"{name}/{label}"] = float(getattr(finite, label)())

    def _is_image(self, name: str, array: Any, tags: tuple[str, ...]) -> bool:
        looks_like_one = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
        looks_like_one = looks_like_one and array.size > 0 and array.dtype.kind in "biuf"
        named = any(fnmatch.fnmatchcase(name, pattern) for pattern in self._images)
        if named and not looks_like_one:
            self._tell(
                name,
                "%r is to be shown as an image, but is %s of shape %s: it is logged as numbers. An "
                "image has height and width, and may have 1, 3 or 4 colours as its last axis.",
                array.dtype,
                array.shape,
            )
        return looks_like_one and (
            named or "image" in tags or (array.dtype == np.uint8 and min(array.shape[:2]) > 1)
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
    """Read a line that `as_line` wrote; or one that a `JsonlLogger` wrote."""
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
    found.pop("_tags", None)
    for name, value in found.items():
        name = name[1:] if name.startswith("__") else name
        for label, number in _scalars(name, value):
            if isinstance(number, str):
                row.texts[label] = number
            elif row.steps.get(label) != number:
                row.scalars[_free(label, row)] = number
    return row


def _scalars(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers of a value: one, or a nested list of them, in which lanes may be missing."""
    if isinstance(value, list):
        for i, one in enumerate(value):
            yield from _scalars(f"{name}/{i}", one)
    elif value is not None:
        yield name, _number(value)


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
    while name in row.steps or name in row.scalars:
        name = f"value/{name}"
    return name


def _last(at: Any) -> Number:
    """A step as a number; of several lanes, the one that is ahead."""
    number = np.max(np.asarray(at)).item()
    return int(number) if math.isfinite(number) and number == number // 1 else number


def _plain(array: Any) -> Any:
    """An array of numbers that NumPy itself knows; JAX has more kinds of them."""
    if array.dtype.kind == "V" or array.dtype.kind not in "biufcUSO":
        whole = jnp.issubdtype(array.dtype, np.integer)
        return array.astype(np.int64 if whole else np.float64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array


def _aligned(valid: Any, array: Any) -> Any:
    """The mask of lanes, which come first, with the axes that an array has after them."""
    valid = np.asarray(valid)
    return valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))
