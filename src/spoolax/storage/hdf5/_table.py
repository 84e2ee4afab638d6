"""A table of a file: a group with a dataset for each column.

To append rows, its datasets grow one after the other, and the number of rows is written last: that
commits them. Whatever happens, committed rows are complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._store.dtypes import ColumnType, column_type
from .._store.tables import TableSpec
from ._column import Column
from ._file import PAGE, RESERVE, ROWS, TAILS
from ._h5py import commit_count, put_text

ROWS_IN_CHUNK = 1024  # Of scalars: a page, so that little of the last one is wasted.
STEPS_IN_CHUNK = 1024  # They are compressed, because they are mostly regular.
MANY_ROWS = 100_000  # From here on, larger chunks are faster to read.
MANY_ROWS_IN_CHUNK = 8192
BYTES_IN_CHUNK = 1 << 20
LARGE_ROW = 1 << 16  # Bytes of a row that is a chunk by itself, and so is written without a copy.
STEP = column_type("int64", (), "")
# Attributes of datasets: the name of the dtype if the numbers are only its bits, and the
# implementation of keys.
DTYPE, KEY = "spoolax_dtype", "spoolax_key"
GZIP = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def initial_size(spec: TableSpec, is_compressed: bool) -> int:
    """How many bytes the datasets of a new table take, at most."""
    tail = BYTES_IN_CHUNK if is_compressed else 0
    sizes = [tail if spec.timed else column.nbytes for _, column in spec.columns]
    return sum(PAGE + size for size in sizes) + MANY_ROWS_IN_CHUNK * 8


class Table:
    """A table that is being written."""

    def __init__(self, file: Any, spec: TableSpec) -> None:
        self.spec, self._timed, group = spec, spec.timed, file[spec.name]
        tails = file.get(f"{TAILS}/{spec.name}", {})
        self._columns = [Column(group[name], tails.get(name)) for name, _ in spec.stored_columns]
        self._step = Column(group[spec.step_name], tails.get(spec.step_name))
        self._rows = file[f"{ROWS}/{spec.name}"]
        self.rows = 0

    @staticmethod
    def create(
        file: Any, spec: TableSpec, expected_rows: int | None, filters: dict[str, Any]
    ) -> None:
        """Create the datasets of a table."""
        group = file.create_group(spec.name)
        put_text(group, "table", json.dumps(spec.as_json()))
        file.create_dataset(f"{ROWS}/{spec.name}", data=np.int64(0))
        rows, steps_rows = _chunk_rows(expected_rows)
        steps_rows = steps_rows if spec.timed else 1
        steps = _create_dataset(file, group, spec.step_name, STEP, steps_rows, GZIP)
        steps.make_scale(spec.step_name)
        for name, column in spec.stored_columns:
            if spec.timed:
                data = _create_dataset(file, group, name, column, rows, filters)
                data.dims[0].attach_scale(steps)
            else:
                data = group.create_dataset(name, column.shape, column.stored)
            if column.stored.name != column.dtype:
                put_text(data, DTYPE, column.dtype)
            if column.key:
                put_text(data, KEY, column.key)
            _attach_sizes(group, spec, data, column.shape)

    def growth(self, count: int) -> int:
        """How many bytes the file grows by if this many rows are appended, at most."""
        total = 0
        for column in self._columns if self._timed else ():
            data, chunk = column.data, column.data.chunks[0]
            new = -(-(self.rows + count) // chunk) - -(-self.rows // chunk)
            total += new * int(np.prod(data.chunks)) * data.dtype.itemsize
        return total + RESERVE

    def append(self, steps: Any, blocks: Sequence[Any]) -> None:
        """Append rows, and commit them."""
        first = self.rows
        for column, block in zip(self._columns, blocks, strict=True):
            if self._timed:
                column.append(block, first)
            else:
                column.data[...] = np.asarray(block[0]).reshape(column.data.shape)
                column.data.id.flush()
        self._step.append(steps, first)
        self.rows = first + len(steps)
        commit_count(self._rows, self.rows)

    def finish(self) -> None:
        """Write what is still in tails, as no more rows will follow."""
        for column in self._columns if self._timed else ():
            column.finish(self.rows)
        self._step.finish(self.rows)


def _chunk_rows(expected_rows: int | None) -> tuple[int, int]:
    """How many rows a chunk has, and how many steps."""
    if (expected_rows or 0) < MANY_ROWS:
        rows, steps = ROWS_IN_CHUNK, STEPS_IN_CHUNK
    else:
        rows = steps = MANY_ROWS_IN_CHUNK
    if expected_rows:  # So that the last chunk is about full in the end.
        rows, steps = (-(-expected_rows // -(-expected_rows // n)) for n in (rows, steps))
    return rows, steps


def _create_dataset(
    file: Any, group: Any, name: str, column: ColumnType, rows: int, filters: dict[str, Any]
) -> Any:
    """Create a dataset that grows by rows, with a tail if it is compressed."""
    size = column.nbytes
    rows = max(1, min(rows, BYTES_IN_CHUNK // size if size < LARGE_ROW or filters else 1))
    if filters and rows > 1:
        tail = np.zeros((rows, *column.shape), column.stored)  # Allocates all of it now.
        file.create_dataset(f"{TAILS}{group.name}/{name}", data=tail)
    return group.create_dataset(
        name,
        (0, *column.shape),
        column.stored,
        maxshape=(None, *column.shape),
        chunks=(rows, *_row_chunk(column.shape, size)),
        **filters,
    )


def _row_chunk(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The part of a row that is in one chunk: all of it, unless HDF5 cannot hold that (4 GB)."""
    if not shape or size < 1 << 30:
        return shape
    return (max(1, shape[0] // -(-size // (1 << 30))), *shape[1:])


def _attach_sizes(group: Any, spec: TableSpec, data: Any, shape: tuple[int, ...]) -> None:
    """Name the axes of a row, as netCDF needs it: axes of the same size are the same dimension."""
    for axis, size in enumerate(shape):
        name = spec.free_name(f"_size_{size}")
        if name not in group:
            # This text tells netCDF that there are no values, and there are none.
            scale = group.create_dataset(name, (size,), "f4")
            scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{size:10}")
        data.dims[int(spec.timed) + axis].attach_scale(group[name])
