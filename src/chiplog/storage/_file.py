"""The file: how it is made, so that it survives a crash and can be read while it is written.

It is written in HDF5's single-writer-multiple-reader mode, in which the order of writes keeps the
file consistent at every moment, with paged allocation, without which metadata can be torn. In that
mode nothing can be created any more, so all datasets are made before. Datasets of a table grow one
after the other; the one of the steps grows last, and so says which rows are complete.

`docs/format.md` describes what is in a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._extras import load
from ..errors import LogFileError, StorageError
from ._dtypes import DTYPE, KEY, Stored, to_file
from ._superblock import end_of
from ._tree import Json

FORMAT = 1
ROWS_IN_CHUNK = 1024  # Of scalars: a page, so that little of the last one is wasted.
MANY = 100_000  # Rows that are better read in larger pieces.
STEPS_IN_CHUNK = 8192  # Compressed, because steps are mostly regular.
BYTES_IN_CHUNK = 1 << 20
LARGE = 1 << 16  # Bytes of a row that is a chunk by itself, and so written as it is.
PAGE = 4096
RESERVE = 1 << 18  # Bytes that must be free besides the rows, for HDF5's own needs.
RUNNING, FINISHED, FAILED = 0, 1, 2
STATUS = ("running", "finished", "failed")


def h5py() -> Any:
    """The library, if it is installed."""
    return load("h5py", "Storing trajectories", "hdf5")


def create(path: Path, meta: Json) -> Any:
    """Make a new file. It must not exist."""
    try:
        file = h5py().File(
            path,
            "x",
            libver=("v110", "v110"),
            fs_strategy="page",
            fs_page_size=PAGE,
            locking=False,  # We have a lock of our own; readers, and so this, go without.
        )
    except OSError as error:
        raise LogFileError(f"Cannot make {str(path)!r}: {error}") from error
    file.attrs["chiplog_format"] = FORMAT
    put_text(file, "meta", json.dumps(meta))
    # Attributes cannot be relied upon while others read, so what changes is in datasets.
    file.create_dataset("_status", data=np.uint8(RUNNING))
    file.create_dataset("_end", data=np.float64(np.nan))
    file.create_dataset("_ran", data=np.int64(0))
    return file


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


class Form(NamedTuple):
    """What a table looks like."""

    name: str
    structure: Json
    columns: Sequence[tuple[str, Stored]]
    timed: bool  # Whether it has rows; else there is just one.
    about: Json = {}  # Whatever else there is to know about it.


class Table:
    """A group of the file: rows of several columns, or just one row if there is no time axis."""

    def __init__(self, file: Any, form: Form) -> None:
        self.name, self.timed = form.name, form.timed
        group = file[form.name]
        # What is empty has no dataset.
        self._which = [i for i, (_, stored) in enumerate(form.columns) if 0 not in stored.shape]
        self.columns = [(*form.columns[i], group[form.columns[i][0]]) for i in self._which]
        self._step = group[get(group, "step")]
        self.rows = int(self._step.shape[0])

    @staticmethod
    def create(file: Any, form: Form, expected: int | None, options: dict[str, Any]) -> None:
        """Make the datasets of a table. `expected` is how many rows there will be, perhaps."""
        group = file.create_group(form.name)
        step = "step" if "step" not in {leaf for leaf, _ in form.columns} else "_step"
        types = {leaf: [s.real, list(s.shape), s.key] for leaf, s in form.columns}
        group.attrs["timed"] = form.timed
        put_text(group, "step", step)
        put_text(group, "structure", json.dumps(form.structure))
        put_text(group, "about", json.dumps(form.about))
        put_text(group, "types", json.dumps(types))
        rows = ROWS_IN_CHUNK if (expected or 0) < MANY else STEPS_IN_CHUNK
        rows = rows if expected is None else max(1, min(rows, expected))
        steps = group.create_dataset(
            step,
            (0,),
            "i8",
            maxshape=(None,),
            chunks=(STEPS_IN_CHUNK,),
            compression="gzip",
            compression_opts=1,
            shuffle=True,
        )
        steps.make_scale(step)
        for leaf, stored in form.columns:
            if 0 not in stored.shape:
                data = _column(group, leaf, stored, form.timed, rows, options)
                if form.timed:
                    data.dims[0].attach_scale(steps)
                _attach_sizes(group, data, stored.shape, int(form.timed))

    def size_of(self, count: int) -> int:
        """How many bytes the file may grow by, if so many rows are appended."""
        total = 0
        for _, _, data in self.columns:
            if self.timed:
                chunk = data.chunks[0]
                new = -(-(self.rows + count) // chunk) - -(-self.rows // chunk)
                total += new * int(np.prod(data.chunks)) * data.dtype.itemsize
        return total + RESERVE

    def append(self, steps: Any, columns: Sequence[Any]) -> None:
        """Append rows, given the array or the rows of each column.

        They count when the steps are written.
        """
        blocks: list[Any] = []
        for i, (_, stored, _) in zip(self._which, self.columns, strict=True):
            column = columns[i]
            if isinstance(column, (tuple, list)):  # Of rows that are too large to be joined.
                blocks.append([to_file(row, stored) for row in column])
            else:
                blocks.append(to_file(column, stored))
        self.append_raw(steps, blocks)

    def append_raw(self, steps: Any, blocks: Sequence[Any]) -> None:
        """Append rows as they are in a file, without what is empty."""
        first = self.rows
        for (_, _, data), block in zip(self.columns, blocks, strict=True):
            _write(data, block, first if self.timed else None)
        _write(self._step, np.asarray(steps, np.int64), first)
        self.rows = first + len(steps)


def _column(
    group: Any, leaf: str, stored: Stored, timed: bool, rows: int, options: dict[str, Any]
) -> Any:
    size = int(np.prod(stored.shape)) * stored.dtype.itemsize
    if timed:
        rows = max(1, min(rows, BYTES_IN_CHUNK // size if size < LARGE or options else 1))
        data = group.create_dataset(
            leaf,
            (0, *stored.shape),
            stored.dtype,
            maxshape=(None, *stored.shape),
            chunks=(rows, *_cut(stored.shape, size)),
            **options,
        )
    else:
        data = group.create_dataset(leaf, stored.shape, stored.dtype)
    if stored.dtype.name != stored.real:
        put_text(data, DTYPE, stored.real)
    if stored.key:
        put_text(data, KEY, stored.key)
    return data


def _cut(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of a chunk of one row: all of it, unless HDF5 could not hold it (4 GB)."""
    if not shape or size < 1 << 30:
        return shape
    return (max(1, shape[0] // -(-size // (1 << 30))), *shape[1:])


def _attach_sizes(group: Any, data: Any, shape: tuple[int, ...], first: int) -> None:
    """Name the axes of one row, as netCDF wants it: those of the same size are the same."""
    for axis, size in enumerate(shape):
        name = f"_size_{size}"
        if name not in group:
            group.create_dataset(name, data=np.arange(size, dtype=np.int32)).make_scale(name)
        data.dims[first + axis].attach_scale(group[name])


def _write(data: Any, block: Any, first: int | None) -> None:
    """Write a block, or rows, at the end of a dataset; or all of it."""
    if first is None:
        data[...] = np.asarray(block[0]).reshape(data.shape)
    else:
        shape = data.shape[1:]
        data.id.set_extent((first + len(block), *shape))
        if data.chunks == (1, *shape) and not data.compression:
            for row, values in enumerate(block, first):
                data.id.write_direct_chunk((row, *[0] * len(shape)), values)
        else:
            space = data.id.get_space()
            pieces = [row[None] for row in block] if isinstance(block, list) else [block]
            for piece in pieces:
                space.select_hyperslab((first, *[0] * len(shape)), piece.shape)
                memory = h5py().h5s.create_simple(piece.shape)
                data.id.write(memory, space, piece)
                first += len(piece)
    data.id.flush()


def trim(path: Path) -> None:
    """Cut off what was reserved, but not needed, once the file is closed."""
    end = end_of(path)
    if end and end < path.stat().st_size:
        os.truncate(path, end)


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
