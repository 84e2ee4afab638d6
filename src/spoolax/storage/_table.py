"""A group of a file: rows of several columns.

Its datasets grow one after the other, and it is written last how many rows there are. So those rows
are complete, whatever happens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._column import Column
from ._dtypes import DTYPE, KEY, Stored, to_file
from ._file import PAGE, RESERVE, ROWS, TAILS
from ._h5py import put_text
from ._tree import Json

ROWS_IN_CHUNK = 1024  # Of scalars: a page, so that little of the last one is wasted.
STEPS_IN_CHUNK = 1024  # They are compressed, because they are mostly regular.
MANY, MORE = 100_000, 8192  # So many rows are better read in larger pieces.
BYTES_IN_CHUNK = 1 << 20
LARGE = 1 << 16  # Bytes of a row that is a chunk by itself, and so written as it is.
STEP = Stored(np.dtype("i8"), (), "int64", "")
GZIP = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


class Form(NamedTuple):
    """What a table looks like."""

    name: str
    structure: Json
    columns: Sequence[tuple[str, Stored]]
    timed: bool  # Whether it has rows; else there is just one.
    about: Json = {}  # Whatever else there is to know about it.

    @property
    def step(self) -> str:
        """The name of the dataset of the steps."""
        return _free("step", self)

    def room(self, options: dict[str, Any]) -> int:
        """How many bytes its datasets take at once, at most."""
        tail = BYTES_IN_CHUNK if options else 0
        sizes = [int(np.prod(s.shape)) * s.dtype.itemsize for _, s in self.columns]
        return sum(PAGE + (tail if self.timed else size) for size in sizes) + MORE * 8


class Table:
    """A group of the file: rows of several columns, or just one row if there is no time axis."""

    def __init__(self, file: Any, form: Form) -> None:
        self.name, self.timed = form.name, form.timed
        group = file[form.name]
        # What is empty has no dataset.
        self._which = [i for i, (_, stored) in enumerate(form.columns) if 0 not in stored.shape]
        names = [form.columns[i][0] for i in self._which]
        tails = file.get(f"{TAILS}/{form.name}", {})
        self._columns = [Column(group[leaf], tails.get(leaf)) for leaf in names]
        self._stored = [form.columns[i][1] for i in self._which]
        self._step = Column(group[form.step], tails.get(form.step))
        self._rows = file[f"{ROWS}/{form.name}"]
        self.rows = 0

    @staticmethod
    def create(file: Any, form: Form, expected: int | None, options: dict[str, Any]) -> None:
        """Make the datasets of a table. `expected` is how many rows there will be, perhaps."""
        group = file.create_group(form.name)
        types = {leaf: [s.real, list(s.shape), s.key] for leaf, s in form.columns}
        described = {
            "structure": form.structure,
            "types": types,
            "timed": form.timed,
            "step": form.step,
            "about": form.about,
        }
        put_text(group, "table", json.dumps(described))
        file.create_dataset(f"{ROWS}/{form.name}", data=np.int64(0))
        some, more = (ROWS_IN_CHUNK, STEPS_IN_CHUNK) if (expected or 0) < MANY else (MORE, MORE)
        if expected:  # So that all chunks are about full in the end.
            some, more = (-(-expected // -(-expected // rows)) for rows in (some, more))
        steps = _column(file, group, form.step, STEP, more if form.timed else 1, GZIP)
        steps.make_scale(form.step)
        for leaf, stored in form.columns:
            if 0 not in stored.shape:
                if form.timed:
                    data = _column(file, group, leaf, stored, some, options)
                    data.dims[0].attach_scale(steps)
                else:
                    data = group.create_dataset(leaf, stored.shape, stored.dtype)
                if stored.dtype.name != stored.real:
                    put_text(data, DTYPE, stored.real)
                if stored.key:
                    put_text(data, KEY, stored.key)
                _attach_sizes(group, form, data, stored.shape)

    def size_of(self, count: int) -> int:
        """How many bytes the file may grow by, if so many rows are appended."""
        total = 0
        for column in self._columns if self.timed else ():
            data, chunk = column.data, column.data.chunks[0]
            new = -(-(self.rows + count) // chunk) - -(-self.rows // chunk)
            total += new * int(np.prod(data.chunks)) * data.dtype.itemsize
        return total + RESERVE

    def raw(self, columns: Sequence[Any]) -> list[Any]:
        """The arrays or the rows of each column, as they are in a file; without what is empty."""
        blocks: list[Any] = []
        for i, stored in zip(self._which, self._stored, strict=True):
            column = columns[i]
            if isinstance(column, (tuple, list)):  # Of rows that are too large to be joined.
                blocks.append([to_file(row, stored) for row in column])
            else:
                blocks.append(to_file(column, stored))
        return blocks

    def append(self, steps: Any, blocks: Sequence[Any]) -> None:
        """Append rows, which count when it is written how many there are."""
        first = self.rows
        for column, block in zip(self._columns, blocks, strict=True):
            if self.timed:
                column.append(block, first)
            else:
                column.data[...] = np.asarray(block[0]).reshape(column.data.shape)
                column.data.id.flush()
        self._step.append(np.asarray(steps, np.int64), first)
        self.rows = first + len(steps)
        self._rows[()] = self.rows
        self._rows.id.flush()

    @property
    def row_bytes(self) -> int:
        """How large a row is."""
        return sum(int(np.prod(s.shape)) * s.dtype.itemsize for s in self._stored)

    def finish(self) -> None:
        """No more rows will come."""
        for column in self._columns if self.timed else ():
            column.finish(self.rows)
        self._step.finish(self.rows)


def _column(
    file: Any, group: Any, leaf: str, stored: Stored, rows: int, options: dict[str, Any]
) -> Any:
    size = int(np.prod(stored.shape)) * stored.dtype.itemsize
    rows = max(1, min(rows, BYTES_IN_CHUNK // size if size < LARGE or options else 1))
    if options and rows > 1:
        tail = np.zeros((rows, *stored.shape), stored.dtype)  # It must have its place at once.
        file.create_dataset(f"{TAILS}{group.name}/{leaf}", data=tail)
    return group.create_dataset(
        leaf,
        (0, *stored.shape),
        stored.dtype,
        maxshape=(None, *stored.shape),
        chunks=(rows, *_cut(stored.shape, size)),
        **options,
    )


def _cut(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of a chunk of one row: all of it, unless HDF5 could not hold it (4 GB)."""
    if not shape or size < 1 << 30:
        return shape
    return (max(1, shape[0] // -(-size // (1 << 30))), *shape[1:])


def _attach_sizes(group: Any, form: Form, data: Any, shape: tuple[int, ...]) -> None:
    """Name the axes of one row, as netCDF wants it: those of the same size are the same."""
    for axis, size in enumerate(shape):
        name = _free(f"_size_{size}", form)
        if name not in group:
            # By this, netCDF knows that nothing is in there; and nothing is.
            scale = group.create_dataset(name, (size,), "f4")
            scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{size:10}")
        data.dims[int(form.timed) + axis].attach_scale(group[name])


def _free(name: str, form: Form) -> str:
    """A name that no leaf of a table has."""
    while name in {leaf.split("/")[0] for leaf, _ in form.columns}:
        name = f"_{name}"
    return name
