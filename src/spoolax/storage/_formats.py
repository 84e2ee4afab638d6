"""Which backend a path gets."""

from __future__ import annotations

from pathlib import Path

from ..loggers._protocol.paths import ZARR, UrlPath
from ._store.contract import Backend
from ._store.structures import Json
from .hdf5 import HDF5Backend
from .zarr import ZarrBackend


def backend_of(path: Path, options: Json | None = None) -> Backend:
    """The backend for a path, with its default options or those that a store was made with.

    Buckets and directories called `*.zarr` are Zarr hierarchies, and everything else is HDF5.
    """
    is_zarr = isinstance(path, UrlPath) or path.suffix == ZARR
    return (ZarrBackend if is_zarr else HDF5Backend)(**options or {})
