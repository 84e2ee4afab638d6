"""Reading files that may be damaged or malicious.

Nothing in a file is trusted: links to other files are not followed, and sizes are compared with
what the file really holds. Errors that HDF5 raises become a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import StorageError
from .._store.contract import Array
from .._store.structures import MAX_DEPTH
from ._column import Column
from ._file import TAILS
from ._h5py import h5py, load_filters_of, refresh

MAX_COMPRESSION = 1 << 15  # How many times smaller than its numbers compressed data can be.


def find_object(group: Any, name: str) -> Any:
    """Find a group or dataset by its path, without leaving the file."""
    parts = name.split("/")
    if len(parts) > MAX_DEPTH:
        raise StorageError(f"The file is nested too deeply at {name[:40]!r}.")
    for part in parts:
        try:
            link = group.id.links.get_info(part.encode())
        except KeyError:
            link = None
        if link is None or link.type != h5py().h5l.TYPE_HARD:
            raise StorageError(f"{name!r} is missing from the file, or links to another one.")
        group = group[part]
    if isinstance(group, h5py().Dataset):
        created = group.id.get_create_plist()
        h5d = h5py().h5d
        is_here = created.get_layout() in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED)
        if not is_here or created.get_external_count():
            raise StorageError(f"{name!r} is stored in another file, which spoolax never does.")
        if group.dtype.hasobject:
            raise StorageError(f"{name!r} does not have a type that spoolax writes.")
    return group


def read_scalar(file: Any, name: str) -> Any:
    """Read a number, which may have changed since it was read last."""
    data = find_object(file, name)
    if data.shape != ():
        raise StorageError(f"{name!r} is not a number.")
    refresh(data)
    return data[()]


def find_column(file: Any, group: str, leaf: str, shape: tuple[int, ...], timed: bool) -> Column:
    """Find a column whose rows have this shape, and its tail if it has one."""
    data, tail = find_object(file, f"{group}/{leaf}"), None
    if data.shape[int(timed) :] != shape or (timed and not data.chunks):
        raise StorageError(f"{data.name!r} does not have the shape that the file says.")
    if load_filters_of(data) and data.chunks[0] > 1:
        tail = find_object(file, f"{TAILS}/{group}/{leaf}")
        if tail.shape != (data.chunks[0], *shape) or tail.dtype != data.dtype:
            raise StorageError(f"{tail.name!r} is not a tail of {data.name!r}.")
        _check_size(tail, len(tail))
    return Column(data, tail)


def read_rows(column: Column, start: int, stop: int) -> Array:
    """Read rows, if the file can hold that many."""
    refresh(column.data)
    _check_size(column.data, min(stop, column.data.shape[0]) - min(start, column.data.shape[0]))
    return column.read(start, stop)


def read_row(column: Column) -> Array:
    """Read the only row of a column without a time axis."""
    _check_size(column.data, 1, 0)
    return np.asarray(column.data[()])


def _check_size(data: Any, rows: int, axes: int = 1) -> None:
    """Refuse to read more rows than the file can hold, before memory is allocated for them."""
    needed = rows * int(np.prod(data.shape[axes:])) * data.dtype.itemsize
    limit = data.id.get_storage_size() * (
        MAX_COMPRESSION if data.compression or data.shuffle else 1
    )
    if needed > limit:
        raise StorageError(f"{data.name!r} claims to hold more than there is in the file.")


def check_distinct(columns: Sequence[Column]) -> None:
    """Refuse leaves that share a dataset: a small file could make a reader read a lot."""
    addresses = {h5py().h5o.get_info(column.data.id).addr for column in columns}
    if len(addresses) < len(columns):
        raise StorageError("Several leaves are the same dataset, which spoolax never does.")
