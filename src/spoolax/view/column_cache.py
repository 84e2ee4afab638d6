"""Columns of numbers that were read before, so that zooming reads nothing again.

Rows are only ever appended to a file, so what was read stays right; more is read when there is
more. A file that takes the place of another is another file.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._runs.curve import Array, Rows
from .._runs.sources import Source, StoreSource

MOST_BYTES = 512 << 20
SMALL_ROW = 64  # Bytes. Larger rows are read when they are looked at, a few at a time.


class ColumnCache:
    """The beginnings of columns, as far as they were read. What is not used goes first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._lock = most_bytes, threading.Lock()
        self._kept: collections.OrderedDict[Any, tuple[Array, int]] = collections.OrderedDict()

    def first(self, key: Any, count: int, read: Callable[[int, int], Array]) -> Array:
        """The first rows of a column; `read(start, stop)` reads some."""
        with self._lock:
            room, done = self._kept.get(key, (None, 0))
        if room is None:
            room, done = read(0, count), count
        elif done < count:
            rest = read(done, count)
            if count > len(room):  # With room for more, which will come as long as the run lasts.
                grown = np.empty((count + count // 2, *room.shape[1:]), room.dtype)
                grown[:done] = room[:done]
                room = grown
            room[done:count] = rest
            done = count
        with self._lock:
            self._kept[key] = room, done
            self._kept.move_to_end(key)
            size = sum(one.nbytes for one, _ in self._kept.values())
            while size > self._most and len(self._kept) > 1:
                _, (one, _) = self._kept.popitem(last=False)
                size -= one.nbytes
        return room[:count]


class CachedRows:
    """Rows whose columns are kept once they have been read."""

    def __init__(self, rows: Rows, cache: ColumnCache, key: Any) -> None:
        self._rows, self._cache, self._key = rows, cache, key
        self.shapes: Mapping[str, tuple[int, ...]] = rows.shapes
        self.dtypes: Mapping[str, np.dtype[Any]] = rows.dtypes
        self.lanes, self.count = rows.lanes, rows.count

    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""
        return self._cache.first((self._key, None), stop, self._rows.steps)[start:stop]

    def spread(self, column: str, start: int, stop: int) -> Array:
        """The means of some rows, their lowest and their highest numbers."""
        read = functools.partial(self._rows.spread, column)
        return self._cache.first((self._key, column, "spread"), stop, read)[start:stop]

    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column."""
        size = self.dtypes[column].itemsize * int(np.prod(self.shapes[column]))
        if size > SMALL_ROW:
            return self._rows.read(column, start, stop)
        read = functools.partial(self._rows.read, column)
        return self._cache.first((self._key, column), stop, read)[start:stop]


_numbers = itertools.count()  # Of files that were opened: another one may get the same inode.


class CachedSource:
    """A file whose columns are kept once they have been read."""

    def __init__(self, source: Source, cache: ColumnCache) -> None:
        self._source, self._cache, self._number = source, cache, next(_numbers)
        self.path: Path = source.path
        self.meta, self.status, self.reason = source.meta, source.status, source.reason
        self.end, self.steps_run, self.close = source.end, source.steps_run, source.close

    def tables(self) -> list[tuple[Rows, dict[str, str]]]:
        """Its tables."""
        tables = self._source.tables()
        if not isinstance(self._source, StoreSource):  # It is in memory already.
            return tables
        name = (self._number, self._source.version)
        return [
            (CachedRows(rows, self._cache, (name, number)), keys)
            for number, (rows, keys) in enumerate(tables)
        ]
