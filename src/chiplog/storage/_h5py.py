"""h5py, which is loaded when it is needed, and attributes."""

from __future__ import annotations

from typing import Any

from .._extras import load
from ..errors import StorageError


def h5py() -> Any:
    """The library, if it is installed."""
    return load("h5py", "Storing trajectories", "hdf5")


def put_text(of: Any, name: str, text: str) -> None:
    """Write an attribute, with a length that is fixed.

    Others would be in a heap without checksums, in which HDF5 can get lost if it is damaged.
    """
    data = text.encode()
    of.attrs.create(name, data, dtype=h5py().string_dtype("utf-8", max(1, len(data))))


def get(of: Any, name: str) -> Any:
    """Read an attribute: a number or text."""
    if of.attrs.get_id(name).dtype.hasobject:
        raise StorageError(f"The attribute {name!r} is not of a type that chiplog writes.")
    value = of.attrs[name]
    return value.decode() if isinstance(value, bytes) else value
