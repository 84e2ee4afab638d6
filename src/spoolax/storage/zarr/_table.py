"""A table of a store: a group with an array for each column, and one for the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._store.contract import Block
from .._store.structures import Json
from .._store.tables import TableSpec
from ._array import Column
from ._nodes import ROWS_IN_CHUNK, STEP, array_document, array_metadata, group_document, key_of
from ._place import Place
from ._tensorstore import writing


def documents(
    spec: TableSpec, expected_rows: int | None, compression: str | None, units: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    """The keys and documents of a new table, with those of all groups that it is in."""
    rows = min(ROWS_IN_CHUNK, expected_rows or ROWS_IN_CHUNK) if spec.timed else None
    yield from group_documents(spec)
    # Also the steps of a table without a time axis have one, as they do in every store.
    steps = array_metadata(spec, STEP, rows or 1, compression, {})
    yield f"{key_of(spec.name, spec.step_name)}/zarr.json", array_document(steps, 0)
    for name, column in spec.stored_columns:
        attributes: Json = {"units": units[name]} if name in units else {}
        if column.stored.name != column.dtype:
            attributes["spoolax_dtype"] = column.dtype
        if column.key:
            attributes["spoolax_key"] = column.key
        grid = spec.about.get("grid", {}).get(name)
        metadata = array_metadata(spec, column, rows, compression, attributes, grid)
        at = 0 if spec.timed else None
        yield f"{key_of(spec.name, name)}/zarr.json", array_document(metadata, at)


def group_documents(spec: TableSpec) -> Iterator[tuple[str, bytes]]:
    """The keys and documents of the group of a table, and of groups above and below it."""
    names = [key_of(spec.name), *(key_of(spec.name, name) for name, _ in spec.stored_columns)]
    parents = {key.rpartition("/")[0] for key in names}
    for parent in sorted(parents):
        parts = parent.split("/") if parent else []
        for depth in range(1, len(parts) + 1):
            key = "/".join(parts[:depth])
            if key != names[0]:
                yield f"{key}/zarr.json", group_document({})
    yield f"{names[0]}/zarr.json", group_document({"table": spec.as_json()})


class Table:
    """A table that is being written."""

    def __init__(self, place: Place, spec: TableSpec, rows: int) -> None:
        self.spec, self.rows = spec, rows
        self._columns = [
            Column(place, key_of(spec.name, name), column, spec.timed, writing())
            for name, column in spec.stored_columns
        ]
        self._step = Column(place, key_of(spec.name, spec.step_name), STEP, True, writing())
        for column in self.columns:
            column.resume(rows)

    @property
    def columns(self) -> list[Column]:
        """Its columns, and that of the steps."""
        return [*self._columns, self._step]

    def append(self, steps: Any, blocks: Sequence[Block]) -> list[Any]:
        """Begin to write rows, after those that have begun before."""
        pairs = list(zip(self.columns, [*blocks, steps], strict=True))
        for column, block in pairs:
            column.check(block, len(steps))
        first, self.rows = self.rows, self.rows + len(steps)
        return [write for column, block in pairs for write in column.append(block, first)]

    def write_ends(self) -> list[Any]:
        """Begin to write what appending has left."""
        return [write for column in self.columns for write in column.write_end()]
