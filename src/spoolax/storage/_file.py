"""The file: how it is made, so that it survives a crash and can be read while it is written.

It is written in HDF5's single-writer-multiple-reader mode, in which the order of writes keeps the
file consistent at every moment, with paged allocation, without which metadata can be torn. In that
mode nothing can be created any more, so all datasets are made before.

`docs/format.md` describes what is in a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LogFileError
from ._h5py import h5py, put_text
from ._superblock import end_of
from ._tree import Json

FORMAT = 1
PAGE = 4096
RESERVE = 1 << 18  # Bytes that must be free besides the rows, for HDF5's own needs.
RUNNING, FINISHED, FAILED = 0, 1, 2
STATUS = ("running", "finished", "failed")
# How many rows a group has, and those of them that are in no chunk yet.
ROWS, TAILS = "_rows", "_tails"
RESERVED = ("_status", "_end", "_ran", ROWS, TAILS)


def create(path: Path, meta: Json) -> Any:
    """Make a new file. It must not exist."""
    try:
        file = h5py().File(
            path, "x", libver=("v110", "v110"), fs_strategy="page", fs_page_size=PAGE
        )
    except OSError as error:
        raise LogFileError(f"Cannot make {str(path)!r}: {error}") from error
    file.attrs["spoolax_format"] = FORMAT
    put_text(file, "meta", json.dumps(meta))
    # Attributes cannot be relied upon while others read, so what changes is in datasets.
    file.create_dataset("_status", data=np.uint8(RUNNING))
    file.create_dataset("_end", data=np.float64(np.nan))
    file.create_dataset("_ran", data=np.int64(0))
    return file


def trim(path: Path) -> None:
    """Cut off what was reserved, but not needed, once the file is closed."""
    end = end_of(path)
    if end and end < path.stat().st_size:
        os.truncate(path, end)


def room_for(path: Path, size: int) -> None:
    """See that there is room for a new file, which is not made."""
    try:
        path.touch()
        reserve(path, size)
    except OSError as error:
        raise LogFileError(f"Cannot make {str(path)!r}: {error}") from error
    finally:
        path.unlink(missing_ok=True)


def reserve(path: Path, size: int) -> None:
    """Make sure that a file can grow, before HDF5 tries to: it does not survive a full disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size)
    except OSError as error:
        raise LogFileError(
            f"{str(path)!r} cannot grow: {error.strerror}. What was written before is there."
        ) from error
    finally:
        os.close(descriptor)
