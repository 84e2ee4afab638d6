"""What a table looks like: the structure of a row, and the types of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .dtypes import ColumnType, column_type, to_stored
from .pieces import Pieces
from .structures import Json, leaf_names


class TableSpec(NamedTuple):
    """What a table looks like."""

    name: str
    structure: Json  # Of a row; its leaves are the names of the columns.
    columns: Sequence[tuple[str, ColumnType]]
    timed: bool  # Whether it has a time axis; if not, it has at most one row.
    # Whatever else there is to know about it. Backends that take pieces of rows look for "grid":
    # the shapes of chunks, by column, that fit the pieces.
    about: Json = {}

    @property
    def stored_columns(self) -> list[tuple[str, ColumnType]]:
        """The columns that have elements. Nothing is stored for the others."""
        return [(name, column) for name, column in self.columns if 0 not in column.shape]

    @property
    def row_bytes(self) -> int:
        """How many bytes a row has."""
        return sum(column.nbytes for _, column in self.columns)

    @property
    def step_name(self) -> str:
        """What to call the column of the steps."""
        return self.free_name("step")

    def free_name(self, name: str) -> str:
        """A name that no column has: this one, with underscores in front if necessary."""
        while name in {column.split("/")[0] for column, _ in self.columns}:
            name = f"_{name}"
        return name

    def encode(self, columns: Sequence[Any], takes_pieces: bool = False) -> list[Any]:
        """The blocks of the stored columns, given arrays, or sequences of rows, of all columns.

        Rows that are in pieces stay so if the backend takes them.
        """

        def stored(row: Any, column: ColumnType) -> Any:
            if takes_pieces and isinstance(row, Pieces):
                return row.map(lambda piece: to_stored(piece, column))
            return to_stored(row, column)

        blocks: list[Any] = []
        for (_, column), block in zip(self.columns, columns, strict=True):
            if 0 in column.shape:
                continue
            if isinstance(block, (tuple, list)):
                blocks.append([stored(row, column) for row in block])
            else:
                blocks.append(to_stored(block, column))
        return blocks

    def as_json(self) -> Json:
        """The spec, to be kept with the table."""
        return {
            "structure": self.structure,
            "types": {name: [c.dtype, list(c.shape), c.key] for name, c in self.columns},
            "timed": self.timed,
            "step": self.step_name,
            "about": self.about,
        }

    @classmethod
    def from_json(cls, name: str, spec: Json) -> TableSpec:
        """The spec of a table, as it was kept."""
        types, columns = spec["types"], []
        for leaf in leaf_names(spec["structure"]):
            dtype, shape, key = types[leaf]
            columns.append((leaf, column_type(str(dtype), tuple(map(int, shape)), str(key))))
        return cls(name, spec["structure"], columns, bool(spec["timed"]), spec["about"])
