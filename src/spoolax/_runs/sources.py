"""The files that runs are read from: stores of any kind, and lines of JSON."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np

from ..errors import StorageError
from ..loggers._read_jsonl import read_jsonl
from ..storage._formats import backend_of
from ..storage._store.contract import StoreReader, TableReader
from ..storage._store.damage import raises_storage_errors
from ..storage._store.dtypes import dtype_named, from_stored
from ..storage._store.lock import status_of
from ..storage._store.structures import Json, leaf_names
from .curve import Array, Curve, Part, Rows, Spreading, Still

VALUES = "values/"  # What the columns of values begin with, in a store of entries.


class Source(Protocol):
    """A file that holds a run, or a part of one."""

    path: Path

    def meta(self) -> Json:
        """What is known about the run: "config", "start", "host", ..."""

    def status(self) -> str:
        """Whether it runs, or how it ended. "" if nobody can tell."""

    def reason(self) -> str:
        """Why it ended."""

    def end(self) -> float:
        """When it ended, in seconds since 1970, or was last written."""

    def steps_run(self) -> int:
        """How many steps have run."""

    def tables(self) -> list[tuple[Rows, dict[str, str]]]:
        """Rows that were logged together, and the keys of those of their columns that are values.

        There may be more of them later, while the run is written.
        """

    def close(self) -> None:
        """Close it."""


def source_of(path: Path) -> Source:
    """Open a file."""
    return LinesSource(path) if path.suffix == ".jsonl" else StoreSource(path)


def curves_of(source: Source, still: bool = False) -> dict[str, Curve]:
    """The curves of a file. A key whose values change their shape has several: "x", "x#1", ...

    They grow as the file does, unless they are `still`: then rows are counted once for all keys.
    """
    curves: dict[str, Curve] = {}
    for table, keys in source.tables():
        rows: Rows = Still(table) if still else table
        for column, key in keys.items():
            part = Part(rows, column)
            for number in itertools.count():
                name = f"{key}#{number}" if number else key
                if name not in curves:
                    curves[name] = Curve(name, [part])
                    break
                if curves[name].takes(part):
                    break
    return curves


class TableRows(Spreading):
    """The rows of a table of a store. It is found anew each time: the store may be replaced."""

    def __init__(self, table: TableReader, find: Callable[[], TableReader]) -> None:
        self._find, self._types = find, dict(table.spec.columns)
        self.shapes = {name: column.shape for name, column in self._types.items()}
        self.dtypes = {name: dtype_named(column.dtype) for name, column in self._types.items()}
        self.lanes = int(table.spec.about.get("lanes", 0))

    def count(self) -> int:
        """How many rows there are by now."""
        return self._find().row_count()

    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""
        return self._find().steps(start, stop)

    @raises_storage_errors
    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column. Keys of `jax.random` are the numbers that they consist of."""
        kind = self._types[column]
        if 0 in kind.shape:  # Nothing is stored.
            return np.zeros((max(0, stop - start), *kind.shape), kind.stored)
        rows = self._find().read(column, start, stop)
        return np.asarray(from_stored(rows, kind._replace(key="")))


class MemoryRows(Spreading):
    """Rows that are in memory."""

    lanes = 0

    def __init__(self, steps: Array, columns: Mapping[str, Array]) -> None:
        self._steps, self._columns = steps, columns
        self.shapes = {name: column.shape[1:] for name, column in columns.items()}
        self.dtypes = {name: column.dtype for name, column in columns.items()}

    def count(self) -> int:
        """How many rows there are."""
        return len(self._steps)

    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""
        return self._steps[start:stop]

    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column."""
        return self._columns[column][start:stop]


class StoreSource:
    """What a `SaveLogger`, a storage writer or `spoolax.save` has stored."""

    def __init__(self, path: Path) -> None:
        self.path, self._backend = path, backend_of(path)
        self._store: StoreReader = self._backend.open(path)
        self._lock = self._backend.lock(path)
        self.version = 0  # Counts the stores that have taken each other's place.
        self._tables: dict[str, tuple[Rows, dict[str, str]]] = {}
        self._whole: list[tuple[Rows, dict[str, str]]] = []  # Of `spoolax.save`, in memory.

    def _current(self) -> StoreReader:
        """The store, which another may have replaced, as when tables were added to it."""
        if not self._store.is_current():
            self._store.close()
            self._store, self._whole = self._backend.open(self.path), []
            self._tables.clear()
            self.version += 1
        return self._store

    def meta(self) -> Json:
        """What is known about the run."""
        return self._current().meta

    def status(self) -> str:
        """Whether it runs, or how it ended."""
        return status_of(self._lock, self._current())

    def is_left_open(self) -> bool:
        """Whether its writer died, and nobody has closed it since."""
        return self.status() == "crashed" and self._current().status() == "running"

    def reason(self) -> str:
        """Why it ended."""
        return self._current().reason()

    def end(self) -> float:
        """When it ended, or was last written."""
        end = self._current().end()
        return self._backend.last_written(self.path) if math.isnan(end) else end

    def steps_run(self) -> int:
        """How many steps have run."""
        return self._current().steps_run()

    def tables(self) -> list[tuple[Rows, dict[str, str]]]:
        """Its tables."""
        store = self._current()
        kind = store.meta.get("kind")
        for name in leaf_names(store.meta["schema"]):
            if name not in self._tables:
                table = store.table(name)
                if kind == "log":
                    self._whole = self._whole or list(_whole_log(table))
                    return self._whole
                keys = _entry_keys(table) if kind == "logs" else _group_keys(table)
                rows = TableRows(table, functools.partial(self._table, name))
                self._tables[name] = rows, keys
        return list(self._tables.values())

    def _table(self, name: str) -> TableReader:
        return self._current().table(name)

    def close(self) -> None:
        """Close it."""
        self._store.close()


def _entry_keys(table: TableReader) -> dict[str, str]:
    names = (name for name, _ in table.spec.columns if name.startswith(VALUES))
    return {name: unquote(name.removeprefix(VALUES)) for name in names}


def _group_keys(table: TableReader) -> dict[str, str]:
    """The leaves of a group of a trajectory; one that is an array has the name of the group."""
    group = unquote(table.spec.name)
    columns = [name for name, _ in table.spec.columns]
    return {name: group if name == "value" else f"{group}/{unquote(name)}" for name in columns}


def _whole_log(table: TableReader) -> Iterator[tuple[Rows, dict[str, str]]]:
    """A `LogDict` that was saved in one row: every key has its own time axis, or none."""
    if not table.row_count():
        return
    rows, stacked = TableRows(table, lambda: table), set(table.spec.about.get("stacked", ()))
    for column, key in _entry_keys(table).items():
        of = column.removeprefix(VALUES).split("/")[0]
        value = rows.read(column, 0, 1)
        value = value[0] if unquote(of) in stacked else value
        named = {}
        for name, shape in rows.shapes.items():
            kind, _, rest = name.partition("/")
            step, _, owner = rest.rpartition("/")
            if kind == "steps" and owner == of:
                at = rows.read(name, 0, 1)
                named[f"steps/{unquote(step)}"] = at[0] if shape[:1] == value.shape[:1] else at
        fitting = {name: at for name, at in named.items() if at.shape == value.shape[:1]}
        steps = fitting.get("steps/step", next(iter(fitting.values()), np.arange(len(value))))
        yield MemoryRows(steps, {column: value, **fitting}), {column: key}


class LinesSource:
    """What a `JsonlLogger` has written."""

    def __init__(self, path: Path) -> None:
        self.path, self._read_at = path, -1
        self._rows: list[tuple[Rows, dict[str, str]]] = []
        try:
            with open(path, "rb") as file:
                start = file.read(1)
        except OSError as error:
            raise StorageError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
        if start not in (b"", b"{"):
            raise StorageError(f"{str(path)!r} is not a file of a JsonlLogger.")

    def meta(self) -> Json:
        """It has no metadata; the run began with the first line."""
        first = next(iter(read_jsonl(self.path)), {})
        return {"start": first["_time"]} if "_time" in first else {}

    def status(self) -> str:
        """Nobody can tell."""
        return ""

    def reason(self) -> str:
        """Nobody can tell."""
        return ""

    def end(self) -> float:
        """When it was last written."""
        return self.path.stat().st_mtime

    def steps_run(self) -> int:
        """How many lines there are."""
        return sum(rows.count() for rows, _ in self.tables())

    def tables(self) -> list[tuple[Rows, dict[str, str]]]:
        """Lines that have the same keys are the rows of one table."""
        size = os.stat(self.path).st_size
        if size != self._read_at:
            kinds: dict[Any, list[tuple[int, Json]]] = {}
            for order, line in enumerate(_objects(self.path)):
                kinds.setdefault(_kind(line), []).append((order, line))
            self._rows = [_line_table(lines) for lines in kinds.values()]
            self._read_at = size
        return self._rows

    def close(self) -> None:
        """Nothing is open."""


def _objects(path: Path) -> Iterator[Json]:
    try:
        yield from read_jsonl(path)
    except (AttributeError, UnicodeDecodeError) as error:
        raise StorageError(f"{str(path)!r} is not a file of a JsonlLogger: {error}.") from error


def _kind(line: Json) -> Any:
    """What lines that fit into one table have in common: names, and shapes of the values."""
    return tuple((name, _shape(value)) for name, value in line.items() if name != "_tags")


def _shape(value: Any) -> Any:
    if isinstance(value, list):
        return (len(value), *(_shape(value[0]) if value else ()))
    return "text" if isinstance(value, (str, dict)) else ()


def _line_table(lines: list[tuple[int, Json]]) -> tuple[Rows, dict[str, str]]:
    columns: dict[str, Array] = {"order": np.asarray([order for order, _ in lines])}
    keys = {}
    for name, _ in _kind(lines[0][1]):
        try:
            column = np.asarray([line[name] for _, line in lines])
            if column.dtype == object:  # Lanes that did not log are None, which becomes NaN.
                column = column.astype(np.float64)
        except (ValueError, TypeError):  # Lists of unequal lengths, or objects.
            continue
        if column.dtype.kind not in "biuf":  # Text.
            continue
        if name == "_time":
            columns["time"] = column
        elif name != "_step":
            columns[name], keys[name] = column, name
    steps = [line.get("_step", order) for order, line in lines]
    return MemoryRows(np.asarray(steps), columns), keys
