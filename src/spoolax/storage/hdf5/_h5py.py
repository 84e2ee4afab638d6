"""h5py, which is loaded when it is needed: numbers, attributes and compression."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._extras import load
from ...errors import LogValueError, StorageError

ZSTD = 32015  # The number of the filter in HDF5.


def h5py() -> Any:
    """The module."""
    return load("h5py", "Storing trajectories", "hdf5")


def refresh(data: Any) -> None:
    """Let a dataset see what was written since it was read last, if its file is being written.

    After that, HDF5 returns wrong values from other handles of the same dataset in this process. So
    it is not done needlessly, and readers share their datasets: see `_reader.py`.
    """
    if data.file.swmr_mode:
        data.refresh()


def commit_count(data: Any, count: int) -> None:
    """Write a number into a dataset of one 64-bit integer, and flush that.

    `data[()] = count` takes several times as long, most of which h5py spends on what it means.
    """
    everything = h5py().h5s.ALL
    data.id.write(everything, everything, np.asarray(count, np.int64))
    data.id.flush()


def put_text(of: Any, name: str, text: str) -> None:
    """Write an attribute of text, with a fixed length.

    Text of variable length would be in a heap without checksums: if that is damaged, HDF5 may hang.
    """
    data = text.encode()
    of.attrs.create(name, data, dtype=h5py().string_dtype("utf-8", max(1, len(data))))


def get_attribute(of: Any, name: str) -> Any:
    """Read an attribute: a number, or text."""
    attribute = of.attrs.get_id(name)
    if attribute.dtype.hasobject or attribute.shape:
        raise StorageError(f"The attribute {name!r} does not have a type that spoolax writes.")
    value = np.zeros((), attribute.dtype)
    attribute.read(value)
    return value.item().decode() if value.dtype.kind == "S" else value.item()


def filters(compression: str | None) -> dict[str, Any]:
    """The options of h5py for datasets with this compression."""
    if compression is None:
        return {}
    if compression == "zstd":
        plugin = load("hdf5plugin", '`compression="zstd"`', "zstd")
        return {**plugin.Zstd(), "shuffle": True}
    if compression not in ("gzip", "lzf"):
        raise LogValueError(
            f"`compression={compression!r}` is not known: use 'gzip', 'lzf', 'zstd' or None."
        )
    return {"compression": compression, "shuffle": True}


def load_filters_of(data: Any) -> bool:
    """Load what is needed to read a dataset; return whether it is compressed."""
    created = data.id.get_create_plist()
    if any(created.get_filter(i)[0] == ZSTD for i in range(created.get_nfilters())):
        load("hdf5plugin", f"Reading {data.name!r}, which is compressed with zstd,", "zstd")
    return bool(created.get_nfilters())
