"""The rows of a group, as they are read."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._extras import load
from .._logdict.logdict import LogDict
from ..errors import LogTypeError, StorageError
from ._careful import check_apart, column_of, found, guarded, number_of, rows_of, whole
from ._column import Column
from ._dtypes import dtype_of, from_file, stored_of
from ._file import ROWS
from ._h5py import get
from ._table import Form
from ._tree import Json, leaf_names, rebuilt

if TYPE_CHECKING:
    from ._reader import HDF5StorageReader


class GroupReader:
    """The rows of a group. Slices read just what they need.

    A slice or a number gives rows, as the tree that the view returned, and a name gives a part of
    it: `frames["x"][-10:]` reads nothing else.
    """

    _parts: tuple[str, ...]  # Which part of a row to read; all of it.

    def __init__(self, reader: HDF5StorageReader, name: str) -> None:
        self._reader, self.name, self._parts = reader, name, ()
        self._load()

    @guarded
    def _load(self) -> None:
        self._file = self._reader._file
        group = found(self._file, self.name)
        table: Json = json.loads(get(group, "table"))
        self._structure: Json = table["structure"]
        for part in self._parts:
            children = dict(self._structure.get("children", ()))
            if part not in children:
                known = ", ".join(map(repr, children)) or "nothing below it"
                raise StorageError(f"A row of {self.name!r} has no {part!r}, but {known}.")
            self._structure = children[part]
        self.about: Json = table["about"]
        self.is_timed, self._step = bool(table["timed"]), str(table["step"])
        self._columns: dict[str, tuple[Column | None, str, tuple[int, ...], str]] = {}
        types = table["types"]
        for leaf in leaf_names(self._structure):
            real, shape, key = types[leaf]
            shape = tuple(int(n) for n in shape)
            column = None
            if 0 not in shape:
                column = column_of(self._file, self.name, leaf, shape, self.is_timed)
            self._columns[leaf] = (column, str(real), shape, str(key))
        check_apart([column for column, *_ in self._columns.values() if column is not None])

    @guarded
    def __len__(self) -> int:
        if not self._reader._file:
            raise StorageError(
                f"The reader of {str(self._reader.path)!r} is closed. Read inside of its `with`."
            )
        if self._file is not self._reader._file:  # It was opened again.
            self._load()
        return max(0, int(number_of(self._file, f"{ROWS}/{self.name}")))

    @property
    @guarded
    def steps(self) -> np.ndarray[Any, Any]:
        """The steps of the rows."""
        count = len(self)
        steps = column_of(self._file, self.name, self._step, (), True)
        return rows_of(steps, 0, count)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        if not self.is_timed:
            return iter([self[...]][: len(self)])
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        about = ", ".join(f"{leaf}: {real}{list(s)}" for leaf, (real, s, _) in self.types.items())
        return f"<{len(self)} rows of {self.name!r} ({about})>"

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
            return self._tree(whole)
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            start, stop, stride = index.indices(count)
            if stride > 0:
                return self._tree(
                    lambda column: rows_of(column, start, max(start, stop))[::stride],
                    len(range(start, stop, stride)),
                )
            rows = list(range(start, stop, stride))
            low, high = (min(rows), max(rows) + 1) if rows else (0, 0)
            return self._tree(
                lambda column: rows_of(column, low, high)[[r - low for r in rows]], len(rows)
            )
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
        return self._tree(lambda column: rows_of(column, row, row + 1)[0])

    @property
    def form(self) -> Form:
        """What the group looks like, to whoever writes it."""
        columns = [(leaf, stored_of(*types)) for leaf, types in self.types.items()]
        return Form(self.name, self._structure, columns, self.is_timed, self.about)

    @property
    def types(self) -> dict[str, tuple[str, tuple[int, ...], str]]:
        """The type, the shape and the kind of key of the leaves, by name."""
        return {leaf: (real, shape, key) for leaf, (_, real, shape, key) in self._columns.items()}

    @guarded
    def raw(self, start: int, stop: int) -> list[Any]:
        """Rows as they are in the file, column by column."""
        there = [column for column, *_ in self._columns.values() if column is not None]
        return [
            rows_of(column, start, stop) if self.is_timed else np.asarray(whole(column))[None]
            for column in there
        ]

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
        """Yield `(steps, rows)` as they are written, until the run has ended."""
        done, waited = 0, time.monotonic()
        while True:
            status = self._reader.status  # Before looking, so that nothing comes in between.
            count = len(self)
            done = min(done, count)  # A run that goes on may have dropped some.
            if count > done:
                yield self.steps[done:count], self[done:count]
                done, waited = count, time.monotonic()
            elif status != "running" or (
                timeout is not None and time.monotonic() - waited > timeout
            ):
                return
            else:
                time.sleep(poll)

    @guarded
    def _tree(self, read: Callable[[Column], Any], rows: int | None = None) -> Any:
        def value(leaf: str) -> Any:
            column, real, shape, key = self._columns[leaf]
            if column is None:
                empty = np.zeros((*(() if rows is None else (rows,)), *shape), dtype_of(real))
                return from_file(empty, real, key)
            return from_file(read(column), real, key)

        return rebuilt(self._structure, value, self._reader._classes)
