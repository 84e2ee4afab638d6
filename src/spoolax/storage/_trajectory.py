"""The logger that writes trajectories, by a schema, into a store of any backend."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from .._jax.processes import count
from .._logdict.logdict import LogDict
from .._processes import Processes, checked_processes
from .._rows import InLoop, Rows, any_of, overrides
from ..errors import LogValueError
from ..loggers._protocol.paths import StrPath, as_path, run_path
from ..loggers._protocol.runs import RunInfo
from ..loggers._protocol.view import to_wait_for
from ._buffered import BufferedLogger
from ._reader import StorageReader
from ._schema import GroupView, read_schema
from ._store.contract import Backend, Begun, WritesPieces
from ._store.metadata import run_metadata
from ._store.tables import TableSpec
from ._together import Together
from ._writable import WritableStore, check_resume, check_same_tables


class TrajectoryWriter(BufferedLogger):
    """Writes the states of a run into a store, as a schema says.

    Derive from it for each backend, with an `__init__` whose arguments are those of the backend
    besides these.
    """

    _unique = ""  # Tells the store from others, if several processes write it.
    # Why this process lacks its pieces of a row: those that follow would be in the wrong place.
    _gap: BaseException | None = None

    def __init__(
        self,
        backend: Backend,
        path: StrPath,
        schema: Any,
        state: Any,
        total_steps: int | None = None,
        *,
        mode: str = "x",
        resume: bool | int = False,
        attributes: Mapping[str, Any] | None = None,
        config: Any = None,
        processes: Processes = "first",
    ) -> None:
        self.processes = checked_processes(processes)
        if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 0):
            raise LogValueError(f"`total_steps` is a number of steps, not {total_steps!r}.")
        self.path, self._mode, self._resume = as_path(path), mode, check_resume(mode, resume)
        self._structure, configs = read_schema(schema)
        in_pieces = backend.in_pieces is not None and self.processes == "first"
        self._groups = [GroupView(name, one, state, in_pieces) for name, one in configs]
        self._total_steps, self._settings = total_steps, (attributes, config)
        self._backend = backend
        backend.check([group.spec for group in self._groups])
        self._taking = threading.Lock()

    def __enter__(self) -> Self:
        self.prepare(self._backend)
        in_pieces = [group.name for group in self._groups if group.grid]
        if self._backend.in_pieces is not None and count() > 1 and in_pieces:
            self._unique = uuid.uuid4().hex
            self._clock.waits_for_processes = True
            together = Together(self._unique, lambda: self.left_with is not None)

            def agree(table: str, rows: int, commit: Callable[[int], None]) -> None:
                if table in in_pieces:
                    together.wait_for(table, rows, commit)
                else:
                    commit(rows)

            self._backend.in_pieces.wait_with(agree)
        meta = run_metadata(*self._settings, self._backend.packages)
        self._store = WritableStore(
            self._backend,
            self.path,
            self._tables,
            {**meta, "schema": self._structure, "total_steps": self._total_steps},
            writer=type(self).__name__,
            mode=self._mode,
            resume=self._resume,
            expected_rows=self._total_steps,
        )
        self.path, self._steps_run = self._store.path, self._store.steps_run
        self._begin({group.name: self._store.row_count(group.name) for group in self._groups})
        return self

    def _begin(self, written: Mapping[str, int]) -> None:
        """Go on after some rows of each group."""
        self._written = dict(written)  # By this process, if it only writes pieces of them.
        for group in self._groups:
            if written[group.name]:
                group.schedule.taken()
        self._rows: dict[str, list[tuple[int, Sequence[Any]]]]  # Their steps, and their arrays.
        self._rows = {group.name: [] for group in self._groups}

    def tells(self) -> Any:
        """Tell where the store is, and how many rows it has."""
        return str(self.path), self._written, self._unique

    def hears(self, told: Any) -> None:
        """Get ready to write pieces of rows into the store of another process."""
        path, written, self._unique = told
        super().hears(path)
        self.prepare(self._backend)
        self._clock.waits_for_processes = bool(self._unique)
        self._together, self._piece_writers = Together(self._unique), dict[str, WritesPieces]()
        self._begin(written)

    def _tables(self, old: StorageReader | None) -> Sequence[TableSpec]:
        tables = [group.spec for group in self._groups]
        if old is not None:
            check_same_tables(old, tables)
        return tables

    def log(self, state: Any, step: int) -> None:
        """Store what is due at a step."""
        self.check()
        if type(step) is not int or not -(2**63) <= step < 2**63:
            raise LogValueError(f"Steps are stored as 64-bit integers, so {step!r} cannot be one.")
        self._steps_run += 1
        for group in self._groups:
            with self._taking:  # Or two threads might both be the first.
                if not group.schedule.due(step):
                    continue
                try:
                    arrays = group.take(state, step)
                except BaseException as error:
                    if isinstance(error, KeyError) and isinstance(state, LogDict):
                        continue  # An entry of another `log` call, with other keys.
                    self._lacks(group, error, self.commit)
                    raise
                group.schedule.taken()
                self.send((group, (step, arrays)), group.nbytes, to_wait_for(arrays))

    def accompany(self, state: Any, step: int) -> None:
        """Take part in reading arrays that span processes."""
        self.check()
        for group in self._groups:
            if group.schedule.due(step):
                try:
                    row = group.accompany(state, step)
                except BaseException as error:
                    self._lacks(group, error, self.commit)
                    raise
                group.schedule.taken()
                if row is not None:
                    self.send((group, (step, row)), group.nbytes, row)

    def check(self) -> None:
        """Raise the error of the writing, or that of a row that other processes have."""
        super().check()
        if self._gap is not None:
            raise self._gap

    def _lacks(self, group: GroupView, error: BaseException, write: Callable[[], None]) -> None:
        """End the rows that this process has pieces of with those before, after writing these."""
        if self._unique and group.grid:
            write()
            self._gap = self._lost = error
            if self.is_silent:
                self._together.failed(error)

    def dismissed(self) -> None:
        """Write the last pieces that this process has."""
        try:
            self.write_rest()
        finally:
            for writer in self._piece_writers.values():
                writer.close()
        if self._unique and self._failure is None:
            self._together.closed()

    def wants(self, step: int) -> bool:
        """Whether any group stores the step."""
        return any(group.schedule.wanted(step) for group in self._groups)

    def in_loop(self, state: Any) -> InLoop:
        """Say that the views of groups can run in a loop, where they can."""
        if overrides(self, TrajectoryWriter):
            return super().in_loop(state)
        views, rest = [], []
        for group in self._groups:
            view = group.in_loop(state, functools.partial(self._send_rows, group))
            if view is None:
                rest.append(group)
            else:
                views.append(view)
        return InLoop(views, any_of(group.schedule.wanted for group in rest))

    def _send_rows(self, group: GroupView, rows: Rows) -> None:
        self.check_open()
        if self.is_silent:
            return
        self.check()
        group.check_type(rows.kind, rows.steps[0])
        self.send((group, rows), rows.nbytes, rows.arrays)

    def fork(self, run: RunInfo) -> Self:
        """Each run has a store of its own."""
        return self.remade(path=run_path(self.path, run))

    def buffer(self, item: tuple[GroupView, Rows | tuple[int, list[Any]]]) -> None:
        """Buffer a row, or several."""
        group, what = item
        if isinstance(what, Rows):
            self._rows[group.name] += what.each()
            self.count_buffered(what.nbytes)
        else:
            step, arrays = what
            try:
                self._rows[group.name].append((step, group.fetched(arrays)))
            except BaseException as error:
                self._lacks(group, error, self._flush)
                raise
            self.count_buffered(group.nbytes)

    def write(self) -> Sequence[Begun | None]:
        """Begin to write all rows that are buffered. Returns what does not count yet."""
        buffered, self._rows = self._rows, {group.name: [] for group in self._groups}
        begun: list[Begun | None] = []
        for group in self._groups:
            if rows := buffered[group.name]:
                steps, arrays = zip(*rows, strict=True)
                if self.is_silent:
                    begun.append(self._begin_pieces(group, arrays))
                else:
                    reuse = functools.partial(group.reuse, arrays, 3 * self._backend.batch_bytes)
                    columns = group.columns_of(arrays)
                    begun.append(self._store.begin(group.name, steps, columns, reuse))
        return begun

    def _begin_pieces(self, group: GroupView, rows: Sequence[Sequence[Any]]) -> _BegunPieces:
        """Begin to write what this process has of rows whose store is that of another."""
        name, backend = group.name, self._backend.in_pieces
        assert backend is not None
        with self._together.telling():
            if name not in self._piece_writers:
                self._piece_writers[name] = backend.piece_writer(self.path, name)
            begun = self._piece_writers[name].begin(group.pieces(rows), self._written[name])
        self._written[name] += len(rows)
        return _BegunPieces(self._together, name, self._written[name], begun)

    def commit_rows(self) -> None:
        """Commit all that was written, or tell the process that does."""
        if not self.is_silent:
            super().commit_rows()


class _BegunPieces(NamedTuple):
    """Pieces of rows that are being written, into the store of another process."""

    together: Together
    table: str
    rows: int  # Of which this process has written its pieces then.
    begun: Begun

    def wait(self) -> None:
        """Wait for that, and tell the other process."""
        with self.together.telling():
            self.begun.wait()
        self.together.wrote(self.table, self.rows)
