"""The rows of a group of a store that is open for reading."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._extras import load
from .._jax.arrays import type_text
from .._logdict.logdict import LogDict
from ..errors import LogTypeError, StorageError
from ._store.damage import raises_storage_errors
from ._store.dtypes import from_stored
from ._store.structures import Json, leaf_names
from ._store.tables import TableSpec
from ._store.trees import rebuild

if TYPE_CHECKING:
    from ._reader import StorageReader


class GroupReader:
    """The rows of a group. Slices read only what they need.

    A slice or a number gives rows, as the pytree that the view returned, and a name gives a part of
    it: `frames["x"][-10:]` reads nothing else.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     for i in range(5):
        ...         logger.log({"loss": i / 2}, i)
        >>> with spoolax.open(path) as reader:
        ...     rows = reader.focus_group(reader.groups[0])
        ...     len(rows), rows["values"]["loss"][-2:].tolist(), rows.steps.tolist()
        (5, [1.5, 2.0], [0, 1, 2, 3, 4])
    """

    _parts: tuple[str, ...]  # The path of the part of a row that is read.

    def __init__(self, reader: StorageReader, name: str) -> None:
        self._reader, self.name, self._parts = reader, name, ()
        self._load()

    @raises_storage_errors
    def _load(self) -> None:
        self._store = self._reader._store
        self._table = self._store.table(self.name)
        self._structure: Json = self.spec.structure
        for part in self._parts:
            children = dict(self._structure.get("children", ()))
            if part not in children:
                known = ", ".join(map(repr, children)) or "nothing below it"
                raise StorageError(f"A row of {self.name!r} has no {part!r}, only {known}.")
            self._structure = children[part]
        leaves = set(leaf_names(self._structure))
        self._columns = {name: column for name, column in self.spec.columns if name in leaves}

    @property
    def spec(self) -> TableSpec:
        """What the table of the group looks like."""
        return self._table.spec

    @property
    def about(self) -> Json:
        """Whatever else is known about the group."""
        return self.spec.about

    @property
    def is_timed(self) -> bool:
        """Whether the group has a time axis."""
        return self.spec.timed

    def __len__(self) -> int:
        if not self._reader._is_open:
            raise StorageError(
                f"The reader of {str(self._reader.path)!r} is closed. Read inside its `with` block."
            )
        if self._store is not self._reader._store:  # It was opened again.
            self._load()
        return self._table.row_count()

    @property
    def steps(self) -> np.ndarray[Any, Any]:
        """The steps of the rows."""
        return self._table.steps(0, len(self))

    def __iter__(self) -> Iterator[Any]:
        if not self.is_timed:
            return iter([self[...]][: len(self)])
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {type_text(c)}" for name, c in self._columns.items())
        return f"<{len(self)} rows of {self.name!r} ({columns})>"

    def __getitem__(self, index: Any) -> Any:
        count = len(self)
        if isinstance(index, str):
            part = copy.copy(self)
            part._parts = (*self._parts, index)
            part._load()
            return part
        if not self.is_timed:
            if not count:
                raise StorageError(f"The group {self.name!r} was never written.")
            return self._tree(0, 1, 0)
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            rows = range(count)[index]
            if not rows:
                return self._tree(0, 0, slice(None))
            low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1])
            return self._tree(low, high + 1, slice(None, None, rows.step))
        if not isinstance(index, (int, np.integer)):
            raise LogTypeError(
                f"Rows are taken by slices or numbers, not by {index!r}. A part of them has a "
                'name: `frames["x"][10:20]`.'
            )
        row = int(index) + (count if index < 0 else 0)
        if not 0 <= row < count:
            raise IndexError(
                f"The group {self.name!r} has {count} rows, so there is no row {index}."
            )
        return self._tree(row, row + 1, 0)

    def to_xarray(self) -> Any:
        """All rows as an `xarray.Dataset`, with the steps as a coordinate."""
        return self._logs().to_xarray()

    def to_pandas(self) -> Any:
        """All rows as a `pandas.DataFrame`: one column per number, and one for the steps."""
        return self._logs().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`."""
        polars = load("polars", "`to_polars`", "polars")
        frame = self.to_pandas()
        return polars.DataFrame({str(name): frame[name].to_numpy() for name in frame.columns})

    def _logs(self) -> LogDict:
        rows, steps = self[:], self.steps
        name = (self.name, *self._parts)[-1].rpartition("/")[2]
        values = rows if isinstance(rows, dict) else {name: rows}
        values = {key: value for key, value in values.items() if jax.tree.leaves(value)}
        if not self.is_timed:
            return LogDict(values)
        named = {"step": dict.fromkeys(values, steps)}
        return LogDict(values, steps=named, stacked=tuple(values))

    def follow(self, poll: float = 0.2, timeout: float | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield `(steps, rows)` as they are written, until the run ends."""
        done, waited = 0, time.monotonic()
        while True:
            status = self._reader.status  # Before counting, so that no row comes in between.
            count = len(self)
            done = min(done, count)  # A run that was resumed may have dropped some.
            if count > done:
                yield self.steps[done:count], self[done:count]
                done, waited = count, time.monotonic()
            elif status != "running" or (
                timeout is not None and time.monotonic() - waited > timeout
            ):
                return
            else:
                time.sleep(poll)

    @raises_storage_errors
    def _tree(self, start: int, stop: int, index: Any) -> Any:
        """The pytree of some rows, after taking an index of them."""

        def value(name: str) -> Any:
            column = self._columns[name]
            if 0 in column.shape:  # Nothing is stored.
                rows = np.zeros((max(0, stop - start), *column.shape), column.stored)
            else:
                rows = self._table.read(name, start, stop)
            return from_stored(rows[index], column)

        return rebuild(self._structure, value, self._reader._classes)
