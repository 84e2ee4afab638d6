"""Several processes that write one store, each of them its own pieces of rows.

One process, the first, makes the store and opens it as usual, with a grid of chunks that fits the
pieces: `TableSpec.about["grid"] = {column: pieces_of(row).grid()}`. It alone writes the metadata,
the steps, and columns that are not in pieces, and it alone commits rows. The others have a
`PieceWriter`. Two agreements between the processes are needed, which `storage` makes:

- The others wait until the first has opened the store.
- The others call `PieceWriter.begin(...)`, wait until their pieces are on the disk, and then tell
  the first. That waits for them in a function which `ZarrBackend.wait_with` was given,
  when its own chunks are written, and then says which rows count. If a process fails, those
  which it has not written never do, and the function raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._store.dtypes import to_stored
from .._store.pieces import Pieces
from ._array import Column
from ._nodes import key_of
from ._place import Place
from ._reader import ZarrReader
from ._tensorstore import Writes, nothing, writing


class PieceWriter:
    """Writes pieces of rows into the arrays of a store that another process has made.

    Args:
        place: Where the store is,
        path: and what to call it in errors.
        table: The name of a table.

    Examples:
        >>> import numpy as np, tempfile
        >>> from spoolax.storage._store.contract import Pieces
        >>> from spoolax.storage._store.dtypes import column_type
        >>> from spoolax.storage._store.tables import TableSpec
        >>> from spoolax.storage.zarr import ZarrBackend
        >>> path = Path(tempfile.mkdtemp()) / "run.zarr"
        >>> columns = [("x", column_type("float32", (4,), ""))]
        >>> spec = TableSpec("rows", {"leaf": "x"}, columns, True, {"grid": {"x": [2]}})

        The second process has the second half of each row, and the first has the rest.

        >>> half = np.ones(2, np.float32)
        >>> first, second = ZarrBackend(), ZarrBackend()
        >>> def agree(table, rows, commit):
        ...     mine = Pieces((4,), "float32", [((slice(2, 4),), 2 * half)])
        ...     second.piece_writer(path, table).begin({"x": [mine]}, rows - 1).wait()
        ...     commit(rows)
        >>> first.wait_with(agree)
        >>> writer = first.create(path, {}, [spec], None)
        >>> mine = Pieces((4,), "float32", [((slice(0, 2),), half)])
        >>> _ = writer.begin("rows", np.arange(1), [[mine]], lambda: None)
        >>> writer.commit(1)
        >>> ZarrBackend().open(path).table("rows").read("x", 0, 1).tolist()
        [[1.0, 1.0, 2.0, 2.0]]
    """

    def __init__(self, place: Place, path: Path, table: str) -> None:
        self._path, self._begun = path, list[Writes]()
        spec = ZarrReader(place, path).table(table).spec
        self._columns = {
            name: Column(place, key_of(table, name), column, spec.timed, writing())
            for name, column in spec.stored_columns
        }

    def begin(self, rows: Mapping[str, list[Pieces]], first: int) -> Writes:
        """Begin to write pieces of rows after the `first` ones."""
        writes: list[Any] = []
        for name, some in rows.items():
            column = self._columns[name]
            kind = column.column
            block = [row.map(lambda piece: to_stored(piece, kind)) for row in some]
            column.check(block, len(block))
            writes += column.append(block, first)
        begun = Writes(writes, self._path, nothing)
        self._begun = [one for one in self._begun if not one.is_done] + [begun]
        return begun

    def close(self) -> None:
        """Wait until nothing is being written any more."""
        for one in self._begun:
            one.settle()
