"""What was logged under one key, read when somebody asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import LogTypeError

Array = np.ndarray[Any, Any]
PLAIN = "biufc"  # Kinds of numbers of NumPy, which can be joined. Others cannot.
SPREAD_BYTES = 1 << 24  # Read at a time.
NAMED_STEP = "steps/"  # What the columns of named steps begin with.


class Rows(Protocol):
    """Rows of entries that were logged together."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The columns, and the shape of a row of each."""

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The columns, and the type of their numbers."""

    @property
    def lanes(self) -> int:
        """How many axes of a row are lanes of `vmap`."""

    def count(self) -> int:
        """How many rows there are by now."""

    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""

    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column."""

    def spread(self, column: str, start: int, stop: int) -> Array:
        """The means of some rows, their lowest and their highest numbers."""


class Part(NamedTuple):
    """Rows that hold a key, and the column that does."""

    rows: Rows
    column: str


class Still:
    """Rows as they were at some moment, though more may have been written since."""

    def __init__(self, rows: Rows) -> None:
        self._count = rows.count()
        self.shapes, self.dtypes, self.lanes = rows.shapes, rows.dtypes, rows.lanes
        self.steps, self.read, self.spread = rows.steps, rows.read, rows.spread

    def count(self) -> int:
        """How many rows there were."""
        return self._count


class Curve:
    """The values of one key, and their steps. Slices read only what they need.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     for i in range(5):
        ...         logger.log({"loss": i / 2}, 10 * i)
        >>> with spoolax.open(path) as run:
        ...     loss = run["loss"]
        ...     print(loss, loss[-2:].tolist(), loss.steps.tolist())
        <loss: 5 values of float64> [1.5, 2.0] [0, 10, 20, 30, 40]
    """

    def __init__(self, name: str, parts: list[Part]) -> None:
        self.name, self._parts = name, parts

    def takes(self, part: Part) -> bool:
        """Take in rows of another table, if they hold the same key with values of one kind."""
        rows, column = part
        mine, theirs = self.dtype, rows.dtypes[column]
        joins = mine == theirs or (mine.kind in PLAIN and theirs.kind in PLAIN)
        is_alike = rows.shapes[column] == self.shape and rows.lanes == self.lanes
        fits = column == self._parts[0].column and is_alike and joins
        if fits:
            self._parts.append(part)
        return fits

    def still(self) -> Curve:
        """The curve as it is now, so that values and steps go together while it is written."""
        return Curve(self.name, [Part(Still(rows), column) for rows, column in self._parts])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        rows, column = self._parts[0]
        return rows.shapes[column]

    @property
    def lanes(self) -> int:
        """How many axes of a value are lanes of `vmap`."""
        return self._parts[0].rows.lanes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.result_type(*(rows.dtypes[column] for rows, column in self._parts))

    def __len__(self) -> int:
        return sum(part.rows.count() for part in self._parts)

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis:
            index = slice(None)
        if not isinstance(index, (int, np.integer, slice)):
            raise LogTypeError(f"Values are taken by slices or numbers, not by {index!r}.")
        count = len(self)
        if len(self._parts) > 1 and isinstance(index, slice):
            return self._all(lambda part, n: part.rows.read(part.column, 0, n))[index]
        rows, column = self._parts[0]
        if isinstance(index, slice):
            chosen = range(count)[index]
            if not chosen:
                return rows.read(column, 0, 0)
            low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
            return rows.read(column, low, high + 1)[:: chosen.step]
        if not -count <= index < count:
            raise IndexError(f"{self.name!r} has {count} values, so there is no value {index}.")
        return self.take(np.asarray([int(index) % count]))[0]  # A copy of its own.

    def take(self, rows: Array) -> Array:
        """The values of some rows, by number. Only these are read."""
        counts = [part.rows.count() for part in self._parts]
        if len(self._parts) > 1:
            rows = self._order(counts)[rows]
        ends = np.cumsum(counts)
        values = np.empty((len(rows), *self.shape), self.dtype)
        owners = np.searchsorted(ends, rows, side="right")
        for number, (part, end, count) in enumerate(zip(self._parts, ends, counts, strict=True)):
            mine = owners == number
            values[mine] = _read_at(part, rows[mine] - (end - count))
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self[:], dtype=dtype, copy=copy)

    @property
    def steps(self) -> Array:
        """The step of each value."""
        return self._all(lambda part, n: part.rows.steps(0, n))

    @property
    def times(self) -> Array | None:
        """When each value was logged, in seconds since 1970, if that is known."""
        return self._column("time")

    @property
    def step_names(self) -> list[str]:
        """The names of the steps that it was logged with."""
        names = dict.fromkeys(name for rows, _ in self._parts for name in rows.shapes)
        return [n.removeprefix(NAMED_STEP) for n in names if n.startswith(NAMED_STEP)]

    def step(self, name: str) -> Array | None:
        """The named steps of all values, if all of them have one of that name."""
        return self._column(NAMED_STEP + name)

    @property
    def valid(self) -> Array | None:
        """Which lanes of `vmap` have logged each value. None: all of them."""
        return self._column("valid")

    def numbers(self) -> Array:
        """One number for each value: that, or its mean."""
        return self.spread()[0]

    def spread(self) -> tuple[Array, Array, Array]:
        """The mean of each value, its lowest and its highest number."""
        still = self.still()
        if not self.shape:
            values = np.asarray(still[:])
            numbers = np.abs(values) if values.dtype.kind == "c" else values
            return (numbers.astype(np.float64, copy=False),) * 3
        found = still._all(lambda part, n: part.rows.spread(part.column, 0, n))
        return found[:, 0], found[:, 1], found[:, 2]

    def _column(self, name: str) -> Array | None:
        if any(name not in part.rows.shapes for part in self._parts):
            return None
        return self._all(lambda part, n: part.rows.read(name, 0, n))

    def _all(self, read: Callable[[Part, int], Array]) -> Array:
        """All rows, in the order in which they were logged."""
        counts = [part.rows.count() for part in self._parts]
        arrays = [read(part, n) for part, n in zip(self._parts, counts, strict=True)]
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays)[self._order(counts)]

    def _order(self, counts: list[int]) -> Array:
        """Where the rows of all parts are, one part after the other, in the order of logging."""
        pairs = zip(self._parts, counts, strict=True)
        orders = [part.rows.read("order", 0, count) for part, count in pairs]
        return np.argsort(np.concatenate(orders), kind="stable")

    def __repr__(self) -> str:
        sizes = f"[{', '.join(map(str, self.shape))}]" if self.shape else ""
        count = len(self)
        return f"<{self.name}: {count} value{'s' * (count != 1)} of {self.dtype.name}{sizes}>"


def _read_at(part: Part, rows: Array) -> Array:
    """Some rows of a part, in one piece if there is not much between them."""
    rows_of, column = part
    if not len(rows):
        return rows_of.read(column, 0, 0)
    first, last = int(rows.min()), int(rows.max())
    if last - first < 4 * len(rows):
        together: Array = rows_of.read(column, first, last + 1)[rows - first]
        return together
    # Copies: each of them would keep all that was read with it.
    return np.stack([rows_of.read(column, int(row), int(row) + 1)[0].copy() for row in rows])


class Spreading:
    """What rows of any kind have in common."""

    def spread(self: Rows, column: str, start: int, stop: int) -> Array:
        """The means of some rows, their lowest and their highest numbers. Reads a few at a time."""
        size = math.prod(self.shapes[column])
        block = max(1, SPREAD_BYTES // max(1, 8 * size))
        made = np.full((max(0, stop - start), 3), np.nan)
        for first in range(start, stop if size else start, block):
            last = min(stop, first + block)
            valid = self.read("valid", first, last) if "valid" in self.shapes else None
            numbers = as_numbers(self.read(column, first, last), valid)
            made[first - start : last - start] = np.stack(spread_of(numbers), axis=1)
        return made


def as_numbers(values: Array, valid: Array | None) -> Array:
    """A row of numbers for each value, those of lanes that did not log being NaN."""
    numbers = np.abs(values) if values.dtype.kind == "c" else values
    numbers = numbers.reshape(len(values), math.prod(values.shape[1:])).astype(np.float64)
    if valid is None or not numbers.size:
        return numbers
    lanes = valid.reshape(len(values), math.prod(valid.shape[1:]))
    return np.where(np.repeat(lanes, numbers.shape[1] // lanes.shape[1], axis=1), numbers, np.nan)


def spread_of(numbers: Array) -> tuple[Array, Array, Array]:
    """The mean, the lowest and the highest of the numbers in each row, without those that are NaN.

    Where all of them are, so is the result.
    """
    count = np.sum(~np.isnan(numbers), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(numbers, axis=1) / count
    return mean, np.fmin.reduce(numbers, axis=1), np.fmax.reduce(numbers, axis=1)
