"""Reading files that may be damaged, or made to do harm.

Nothing in a file is believed: links to other places are not followed, sizes are compared with what
the file really holds, and whatever HDF5 says is wrong becomes an error of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..errors import StorageError
from ._column import Column
from ._file import TAILS
from ._h5py import h5py, load_filters_of
from ._tree import DEEPEST

P = ParamSpec("P")
T = TypeVar("T")
DENSEST = 4096  # How many times smaller than its numbers compressed data can be.
SLACK = 1 << 24


def guarded(f: Callable[P, T]) -> Callable[P, T]:
    """Turn what goes wrong in a damaged file into an error that says so."""

    @functools.wraps(f)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return f(*args, **kwargs)
        except StorageError:
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
    if getattr(getattr(group, "dtype", None), "hasobject", False):
        raise StorageError(f"{name!r} is not of a type that chiplog writes.")
    return group


def column_of(file: Any, group: str, leaf: str) -> Column:
    """Find a column of a group, and its tail if it has one."""
    data = found(file, f"{group}/{leaf}")
    has_tail = load_filters_of(data) and data.chunks[0] > 1
    return Column(data, found(file, f"{TAILS}/{group}/{leaf}") if has_tail else None)


def rows_of(column: Column, start: int, stop: int) -> Any:
    """Read rows, if there can be that many."""
    data = column.data
    row = int(np.prod(data.shape[1:])) * data.dtype.itemsize
    data.refresh()
    there = data.id.get_storage_size()
    if column.tail is not None:
        there += column.tail.id.get_storage_size()
    if (stop - start) * row > DENSEST * there + SLACK:
        raise StorageError(f"{data.name!r} claims to hold more than there is in the file.")
    return column.read(start, stop)
