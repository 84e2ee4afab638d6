"""Go on with a file, however its run ended: what was complete is copied into a new one.

A file that was being written when its process died cannot be opened for writing any more, but it
can be read. The new file takes the place of the old one in one step, so that there is always one of
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StorageError
from ._reader import HDF5StorageReader
from ._table import Form, Table

BLOCK = 1 << 24  # Bytes that are copied at a time.


def copy_rows(
    reader: HDF5StorageReader,
    tables: Sequence[Table],
    last: int | None,
    append: Callable[[Table, Any, Sequence[Any]], None],
) -> None:
    """Copy all complete rows up to a step into tables of the same kind."""
    for table in tables:
        group = reader.focus_group(table.name)
        steps = group.steps
        count = len(steps) if last is None else _up_to(steps, last)
        block = max(1, BLOCK // max(1, table.row_bytes))
        for start in range(0, count, block):
            stop = min(start + block, count)
            append(table, steps[start:stop], group.raw(start, stop))


def _up_to(steps: Any, last: int) -> int:
    """How many rows to keep: those before the first one that lies after the step."""
    after = np.flatnonzero(steps > last)
    return int(after[0]) if after.size else len(steps)


def check_same(path: Path, forms: Sequence[Form]) -> None:
    """Refuse to go on with a file that holds something else."""
    with HDF5StorageReader(path) as reader:
        if sorted(reader.groups) != sorted(form.name for form in forms):
            raise StorageError(
                f"Cannot go on with {str(path)!r}: it has the groups "
                f"{', '.join(map(repr, reader.groups))}, which are not those of the schema."
            )
        for form in forms:
            group = reader.focus_group(form.name)
            mine = {leaf: (stored.real, stored.shape, stored.key) for leaf, stored in form.columns}
            there = group.types
            different = [k for k in sorted({*there, *mine}) if there.get(k) != mine.get(k)]
            if different or group.is_timed != form.timed:
                raise StorageError(
                    f"Cannot go on with the group {form.name!r}: the file has other arrays than "
                    f"the schema ({', '.join(different) or 'with or without time'}). Write to "
                    "another file."
                )


def replace(draft: Path, path: Path) -> None:
    """Put a file in the place of another, for good."""
    if path.exists():
        descriptor = os.open(draft, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    os.replace(draft, path)
