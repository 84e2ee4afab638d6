"""Creating a file that survives a crash and can be read while it is written, and its size on disk.

It is written in HDF5's single-writer-multiple-reader (SWMR) mode, in which the order of writes
keeps the file consistent at every moment, and with paged allocation, because metadata could be
half-written without it. Nothing can be created in SWMR mode, so all datasets are created before.

`docs/format.md` describes what is in a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LogFileError
from .._store.contract import Status
from .._store.structures import Json
from ._h5py import h5py, put_text
from ._superblock import recorded_end

FORMAT = 1
PAGE = 4096
RESERVE = 1 << 18  # Bytes to be free besides the rows, for HDF5's metadata.
# By number.
STATUS: tuple[Status, ...] = ("running", "finished", "failed", "interrupted", "crashed")
REASON_BYTES = 512
# How many rows each table has, and the rows at its end that do not fill a chunk yet.
ROWS, TAILS = "_rows", "_tails"
RESERVED = ("_status", "_reason", "_end", "_ran", ROWS, TAILS)


def create(path: Path, meta: Json) -> Any:
    """Create a file, which must not exist, without tables."""
    try:
        file = h5py().File(
            path, "x", libver=("v110", "v110"), fs_strategy="page", fs_page_size=PAGE
        )
    except OSError as error:
        raise LogFileError(f"Cannot create {str(path)!r}: {error}") from error
    file.attrs["spoolax_format"] = FORMAT
    put_text(file, "meta", json.dumps(meta))
    # Attributes are not safe to change while others read, so what changes is in datasets.
    file.create_dataset("_status", data=np.uint8(STATUS.index("running")))
    file.create_dataset("_reason", shape=(), dtype=f"S{REASON_BYTES}")
    file.create_dataset("_end", data=np.float64(np.nan))
    file.create_dataset("_ran", data=np.int64(0))
    return file


def trim(path: Path) -> None:
    """Cut off space of a closed file that was reserved but not needed."""
    end = recorded_end(path)
    if end and end < path.stat().st_size:
        os.truncate(path, end)


def check_space(path: Path, size: int) -> None:
    """Raise an error if there is no space for a new file of this size. Nothing is left there."""
    try:
        path.touch()
        reserve(path, size)
    except OSError as error:
        raise LogFileError(f"Cannot create {str(path)!r}: {error}") from error
    finally:
        path.unlink(missing_ok=True)


def reserve(path: Path, size: int) -> None:
    """Make sure that a file can grow, because HDF5 cannot recover from a full disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size)
    except OSError as error:
        raise LogFileError(
            f"{str(path)!r} cannot grow: {error.strerror}. Rows written before are safe."
        ) from error
    finally:
        os.close(descriptor)
