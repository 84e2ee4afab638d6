"""Writing a store: chunks first, many at once, then the state, which commits their rows."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._store.contract import Agree, Block, Status
from .._store.metadata import with_schema
from .._store.structures import Json
from .._store.tables import TableSpec
from ._array import Column
from ._place import Place
from ._state import State, described, new_state
from ._table import Table, documents, group_documents
from ._tensorstore import Writes, finish, kvstore, writing

REASON_CHARACTERS = 500


class ZarrWriter:
    """A store that is being written, and its tables."""

    def __init__(
        self,
        place: Place,
        path: Path,
        meta: Json,
        new_table: tuple[int | None, str | None, Mapping[str, str]],
        agree: Agree,
    ) -> None:
        self._place, self._path, self._meta = place, path, meta
        self._new_table, self._agree = new_table, agree
        self._tables: dict[str, Table] = {}
        self._begun: list[tuple[str, Writes]] = []  # Of which tables, and not committed.

    def create(self, tables: Sequence[TableSpec]) -> None:
        """Make a store, and put it in place when it is complete."""
        draft = self._place.draft()
        # What a process that dies now leaves behind in a bucket is an empty store.
        State(draft, self._path, new_state(with_schema(self._meta, []), 0, {})).commit()
        self._put(draft, self._documents(tables))
        contents = new_state(with_schema(self._meta, tables), 0, {spec.name: 0 for spec in tables})
        State(draft, self._path, contents).commit()
        self._place.replace(draft)
        self._begin(contents, tables, {})

    def resume(self, tables: Sequence[TableSpec], rows: Mapping[str, int], steps_run: int) -> None:
        """Go on with a store that is there, after so many rows of each table."""
        contents = new_state(with_schema(self._meta, tables), steps_run, dict(rows))
        self._place.clean()
        # Rows that are dropped must not count any more before others take their place.
        self._begin(contents, tables, rows)
        # Columns may be in another order now.
        self._put(self._place, (one for spec in tables for one in group_documents(spec)))
        self._put_documents(column_rows(self._tables.values()))

    def add_tables(self, tables: Sequence[TableSpec]) -> None:
        """Add empty tables."""
        self._put(self._place, self._documents(tables))
        specs = [*(table.spec for table in self._tables.values()), *tables]
        rows = self._state.contents["rows"] | {spec.name: 0 for spec in tables}
        self._state.commit(**described(with_schema(self._meta, specs)), rows=rows)
        self._tables |= {spec.name: Table(self._place, spec, 0) for spec in tables}

    def row_count(self, table: str) -> int:
        """How many rows of a table are committed."""
        return int(self._state.contents["rows"][table])

    def begin(
        self,
        table: str,
        steps: Any,
        columns: Sequence[Block],
        written: Callable[[], None],
    ) -> Writes:
        """Begin to append rows to a table."""
        self._state.check()
        begun = Writes(self._tables[table].append(steps, columns), self._path, written)
        self._begun.append((table, begun))
        return begun

    def commit(self, steps_run: int) -> None:
        """Wait until all rows are written, and commit them together."""
        counts, steps = dict[str, int](), self._state.contents["steps_run"]
        try:
            for _, begun in self._begun:
                begun.wait()
            grown = {table: self._tables[table] for table, _ in self._begun}
            finish([x for one in grown.values() for x in one.write_ends()], self._path)
            for name, one in grown.items():
                self._agree(name, one.rows, functools.partial(counts.__setitem__, name))
            self._begun, steps = [], steps_run
        finally:
            self._commit(counts, steps)

    def _commit(self, counts: Mapping[str, int], steps_run: int) -> None:
        """From now on, so many rows of some tables count."""
        old = self._state.contents
        rows = old["rows"] | {table: max(n, old["rows"][table]) for table, n in counts.items()}
        if (rows, steps_run) == (old["rows"], old["steps_run"]):
            return
        grown = self._documents_of(
            (column, count)
            for table, count in rows.items()
            if count > old["rows"][table]
            for column in self._tables[table].columns
        )
        finish([*grown, self._state.committing(rows=rows, steps_run=steps_run)], self._path)
        self._state.committed(rows=rows, steps_run=steps_run)

    def close(self, status: Status, reason: str = "", end: float | None = None) -> None:
        """Record how the run ended."""
        for _, begun in self._begun:  # Whoever opens it next has it alone.
            begun.settle()
        text = reason.encode(errors="replace").decode()[:REASON_CHARACTERS]
        ended = time.time() if end is None else end
        self._state.commit(status=status, reason=text, end=ended)
        self._tables.clear()

    def _begin(self, contents: Json, tables: Sequence[TableSpec], rows: Mapping[str, int]) -> None:
        # First, as it fails if what is there is damaged.
        self._tables = {
            spec.name: Table(self._place, spec, rows.get(spec.name, 0)) for spec in tables
        }
        self._state = State(self._place, self._path, contents)
        self._state.commit()

    def _documents(self, tables: Sequence[TableSpec]) -> Iterable[tuple[str, bytes]]:
        return (one for spec in tables for one in documents(spec, *self._new_table))

    def _put(self, place: Place, documents: Iterable[tuple[str, bytes]]) -> None:
        store = kvstore(place.spec, writing())
        finish([store.write(key, text) for key, text in dict(documents).items()], self._path)

    def _put_documents(self, columns: Iterable[tuple[Column, int]]) -> None:
        finish(self._documents_of(columns), self._path)

    def _documents_of(self, columns: Iterable[tuple[Column, int]]) -> list[Any]:
        """Begin to write how many rows arrays have, for other programs."""
        store = kvstore(self._place.spec, writing())
        return [
            store.write(f"{column.key}/zarr.json", column.document(rows))
            for column, rows in columns
        ]


def column_rows(tables: Iterable[Table]) -> list[tuple[Column, int]]:
    """The columns of tables, and how many rows they have."""
    return [(column, table.rows) for table in tables for column in table.columns]
