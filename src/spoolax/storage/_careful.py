"""Reading files that may be damaged, or made to do harm.

Nothing in a file is believed: links to other places are not followed, sizes are compared with what
the file really holds, and whatever HDF5 says is wrong becomes an error of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import LogTypeError, StorageError
from ._column import Column
from ._file import TAILS
from ._h5py import h5py, load_filters_of
from ._tree import DEEPEST

P = ParamSpec("P")
T = TypeVar("T")
DENSEST = 1 << 15  # How many times smaller than its numbers compressed data can be.


def guarded(f: Callable[P, T]) -> Callable[P, T]:
    """Turn what goes wrong in a damaged file into an error that says so."""

    @functools.wraps(f)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return f(*args, **kwargs)
        except (StorageError, LogTypeError):
            raise
        except (
            OSError,
            RuntimeError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            MemoryError,
            OverflowError,
            RecursionError,
        ) as error:
            raise StorageError(f"The file is damaged, or none of ours: {error}") from error

    return wrapped


def found(group: Any, name: str) -> Any:
    """Find something in a file, step by step, but never outside of it."""
    parts = name.split("/")
    if len(parts) > DEEPEST:
        raise StorageError(f"The file is nested too deeply at {name[:40]!r}.")
    for part in parts:
        try:
            link = group.id.links.get_info(part.encode())
        except KeyError:
            link = None
        if link is None or link.type != h5py().h5l.TYPE_HARD:
            raise StorageError(f"{name!r} is missing from the file, or is a link to elsewhere.")
        group = group[part]
    if isinstance(group, h5py().Dataset):
        made = group.id.get_create_plist()
        own = made.get_layout() in (h5py().h5d.COMPACT, h5py().h5d.CONTIGUOUS, h5py().h5d.CHUNKED)
        if not own or made.get_external_count():
            raise StorageError(f"{name!r} is stored elsewhere, which spoolax never does.")
        if group.dtype.hasobject:
            raise StorageError(f"{name!r} is not of a type that spoolax writes.")
    return group


def number_of(file: Any, name: str) -> Any:
    """A number that may have changed."""
    data = found(file, name)
    if data.shape != ():
        raise StorageError(f"{name!r} is not a number.")
    data.refresh()
    return data[()]


def column_of(file: Any, group: str, leaf: str, shape: tuple[int, ...], timed: bool) -> Column:
    """Find a column of a group whose rows have a shape, and its tail if it has one."""
    data, tail = found(file, f"{group}/{leaf}"), None
    if data.shape[int(timed) :] != shape or (timed and not data.chunks):
        raise StorageError(f"{data.name!r} is of another shape than the file says.")
    if load_filters_of(data) and data.chunks[0] > 1:
        tail = found(file, f"{TAILS}/{group}/{leaf}")
        if tail.shape != (data.chunks[0], *shape) or tail.dtype != data.dtype:
            raise StorageError(f"{tail.name!r} is no tail of {data.name!r}.")
        _check_size(tail, len(tail))
    return Column(data, tail)


def rows_of(column: Column, start: int, stop: int) -> Any:
    """Read rows, if there can be that many."""
    column.data.refresh()
    _check_size(column.data, min(stop, column.data.shape[0]) - min(start, column.data.shape[0]))
    return column.read(start, stop)


def whole(column: Column) -> Any:
    """Read all of what has no time axis."""
    _check_size(column.data, 1, 0)
    return column.data[()]


def _check_size(data: Any, rows: int, axes: int = 1) -> None:
    """See that there is something in the file for so many rows."""
    needed = rows * int(np.prod(data.shape[axes:])) * data.dtype.itemsize
    most = data.id.get_storage_size() * (DENSEST if data.compression or data.shuffle else 1)
    if needed > most:
        raise StorageError(f"{data.name!r} claims to hold more than there is in the file.")


def check_apart(columns: Sequence[Column]) -> None:
    """See that no dataset stands for several leaves, each of which would be read."""
    places = {h5py().h5o.get_info(column.data.id).addr for column in columns}
    if len(places) < len(columns):
        raise StorageError("Several leaves are the same dataset, which spoolax never does.")
