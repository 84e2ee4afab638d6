"""Stores without a schema: tables are added as new kinds of entries appear.

Entries of one kind, those of one `log` call, are the rows of one table: their values, their named
steps, and when and in which iteration they were logged. `spoolax.load` makes a `LogDict` of them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from .._jax.arrays import is_key
from .._logdict.logdict import LogDict
from .._processes import Processes, checked_processes
from .._rows import InLoop, Rows, never, overrides, row_view
from .._tap.host import host
from ..errors import StorageError
from ..loggers._protocol.frequency import Frequency, Schedule, entry_keys, is_beside_states
from ..loggers._protocol.paths import StrPath, as_path, run_path
from ..loggers._protocol.runs import RunInfo
from ..loggers._protocol.steps import steps_of
from ..loggers._protocol.view import Copies, View
from ._buffered import BufferedLogger
from ._formats import backend_of
from ._reader import StorageReader
from ._schema import is_array
from ._store.contract import Begun
from ._store.dtypes import ColumnType, column_type_of
from ._store.metadata import run_metadata
from ._store.structures import Json, leaf_names
from ._store.tables import TableSpec
from ._store.trees import leaves, structure_of
from ._writable import Position, Resume, WritableStore, check_resume


class SaveLogger(BufferedLogger):
    """Saves everything it gets in an HDF5 file or a Zarr hierarchy, which `spoolax.load` reads.

    There is no schema: keys may appear at any time, and be logged any number of times. Everything
    is written within a second, and survives a crash. Needs h5py (the extra `hdf5`), or tensorstore
    (the extra `zarr`).

    Args:
        path: The file. One that ends in ".zarr" is a Zarr hierarchy, as are places in buckets: see
            `ZarrStorageWriter`.
        mode: "x" refuses a file that exists, "w" replaces it.
        resume: Continue a file that exists: True, or the last step to keep; what was saved after it
            is dropped.
        view: A function of the state that returns what to save.
        every: A number of steps, or a frequency.
        attributes: Anything else to store with the run, by name.
        config: The settings of the run: a dictionary or dataclass.
        processes: Of several processes, whether the "first" writes, or "each" a file of its own.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     for i in range(3):
        ...         logger.log({"loss": 1 / (1 + i)}, i)
        >>> spoolax.load(path)
        LogDict(
          loss: float64[3] = 1 0.5 0.3333  (step 0 1 2)
        )
    """

    def __init__(
        self,
        path: StrPath,
        mode: str = "x",
        *,
        resume: Resume = False,
        view: Any = None,
        every: Frequency | int | None = None,
        attributes: Mapping[str, Any] | None = None,
        config: Any = None,
        processes: Processes = "first",
    ) -> None:
        self.processes = checked_processes(processes)
        self.path, self._mode, self._resume = as_path(path), mode, check_resume(mode, resume)
        self._view, self._schedule = View(view), Schedule(every)
        self.takes_entries = view is None
        self._settings = (attributes, config)
        self._order = 0  # How many entries there have been.
        self._tables: dict[Any, str] = {}  # The name of the table of each kind of entries.
        self._new_tables: dict[str, TableSpec] = {}
        self._rows: dict[Any, list[Any]] = {}  # That were logged one by one, by type.
        self._last_kind: Any = None  # Of the row that came last, and the rows of that kind.
        self._last_rows: list[Any] = []
        self._came_in_rows = False  # As those that were taken in a loop do.
        self._blocks: dict[str, list[tuple[Any, list[Any]]]] = {}  # By table.
        self._forked = False

    def __enter__(self) -> Self:
        backend = backend_of(self.path)
        self.prepare(backend)
        self._store = WritableStore(
            backend,
            self.path,
            self._tables_to_resume,
            {**run_metadata(*self._settings, backend.packages), "kind": "logs"},
            writer="SaveLogger",
            mode=self._mode,
            resume=self._resume,
        )
        self.path, self._steps_run = self._store.path, self._store.steps_run
        return self

    def _tables_to_resume(self, old: StorageReader | None) -> Sequence[TableSpec]:
        if old is None:
            return []
        if old.meta.get("kind") != "logs":
            raise StorageError(
                f"Cannot resume {str(self.path)!r}: it was not written by a SaveLogger. Write to "
                "another file."
            )
        groups = [old.focus_group(name) for name in old.groups]
        last = [int(group[-1]["order"]) for group in groups if len(group)]
        self._order = max(last, default=-1) + 1
        if isinstance(self._resume, Position):
            self._order = min(self._order, self._resume.entries)
        self._tables = {_kind(group.spec): group.name for group in groups}
        return [group.spec for group in groups]

    def log(self, state: Any, step: int) -> None:
        """Save a state, or an entry of a program."""
        self.check()
        self._steps_run += not is_beside_states(state)
        if not self._schedule.take(step, entry_keys(state)):
            return
        if isinstance(state, LogDict) and host.delivers_to(self._sink) and not self._view.is_chosen:
            self._buffer_block(_entry(state, False), np.asarray([step]), _about(state))
        else:
            copies = self._view.copies(state, self._schedule.is_alike)
            for name, x in copies.rest.items():
                column_type_of(np.asarray(x), name)
            self.send((copies, step, time.time()), copies.nbytes, copies.waits)

    def accompany(self, state: Any, step: int) -> None:
        """Take part in reading arrays that span processes."""
        if self._schedule.take(step, entry_keys(state)):
            self._view.accompany(state, self._schedule.is_alike)

    def log_many(self, logs: LogDict) -> None:
        """Save many entries at once."""
        steps = steps_of(logs, self._counts)
        self.check()
        self._steps_run += len(steps)
        if host.delivers_to(self._sink):
            self._buffer_block(_entry(logs, True), steps, _about(logs))
        else:
            entry = jax.tree.map(lambda x: x if is_key(x) else np.array(x), _entry(logs, True))
            size = sum(x.nbytes for x in jax.tree.leaves(entry))
            self.send(functools.partial(self._buffer_block, entry, steps, _about(logs)), size)

    @property
    def takes_many(self) -> bool:
        """Whether it takes entries in batches: only if it saves all of them as they are."""
        return self._schedule.is_always and not self._view.is_chosen

    def wants(self, step: int) -> bool:
        """Whether `every` includes the step."""
        return self._schedule.wanted(step)

    def in_loop(self, state: Any) -> InLoop:
        """Say that the view can run in a loop, if it can."""
        view = None
        if self._schedule.is_by_step and not overrides(self, SaveLogger):
            view = row_view(self._view.take, state, self._schedule.frequency.due, self._send_rows)
        return super().in_loop(state) if view is None else InLoop([view], never)

    def _send_rows(self, rows: Rows) -> None:
        self.check_open()
        if not self.is_silent:
            self.check()
            self.send(rows, rows.nbytes, rows.arrays)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._forked and not self._store.tables:
            backend_of(self.path).remove(self.path)  # Everything went to runs of `init`.

    def fork(self, run: RunInfo) -> SaveLogger:
        """Each run has a file of its own."""
        self._forked = True
        return self.remade(path=run_path(self.path, run))

    def buffer(self, item: Any) -> None:
        """Buffer a row, or a block of rows."""
        if isinstance(item, functools.partial):
            item()
            return
        if isinstance(item, Rows) is not self._came_in_rows:
            self._stack_rows()  # What follows may belong below it, in the same table.
            self._came_in_rows = not self._came_in_rows
        if isinstance(item, Rows):
            copies = Copies(item.kind, item.arrays, {}, item.kind.names)
            rows, when, size = item.each(), item.time, item.nbytes
        else:
            copies, step, when = item
            rows, size = [(step, copies.fetch())], copies.nbytes
        types = tuple((name, *_type(x)) for name, x in copies.rest.items())
        kind = (copies.contents, types, copies.order)
        if kind != self._last_kind:  # Comparing it takes far less time than hashing it.
            self._last_kind, self._last_rows = kind, self._rows.setdefault(kind, [])
        rest = tuple(copies.rest.values())
        added = [(step, when, n, row, rest) for n, (step, row) in enumerate(rows, self._order)]
        self._last_rows += added
        self._order += len(added)
        self.count_buffered(size)

    def _buffer_block(self, entry: Json, steps: Any, about: Json) -> None:
        """Buffer a block of rows."""
        order = np.arange(self._order, self._order + len(steps))
        self._order += len(steps)
        self.count_buffered(self._add_block({**entry, "order": order}, steps, about))

    def _stack_rows(self) -> None:
        """Stack the rows that were logged one by one into blocks."""
        for (contents, types, order), rows in self._rows.items():
            steps, times, numbers, arrays, rest = zip(*rows, strict=True)
            words, *large = zip(*arrays, strict=True) if arrays[0] else ([],)
            values = contents.rows(contents.packing.stack(words), list(map(np.stack, large)))
            for name, impl in zip(contents.names, contents.packing.keys, strict=True):
                if impl:
                    values[name] = jax.random.wrap_key_data(values[name], impl=impl)
            values |= {
                name: np.asarray(column)
                for (name, *_), column in zip(types, zip(*rest, strict=True), strict=True)
            }
            entry = {
                "values": {name: values[name] for name in order},
                "steps": {"step": np.asarray(steps)},
                "time": np.asarray(times),
                "order": np.asarray(numbers),
            }
            self._add_block(entry, np.asarray(steps), {"lanes": 0})
        self._rows.clear()
        self._last_kind = None

    def _add_block(self, entry: Json, steps: Any, about: Json) -> int:
        """Find the table of a block of rows, or plan a new one; return the size of the block."""
        columns = leaves(entry, is_array)
        types = [_row_type(x) for x in columns]
        columns = [np.asarray(jax.random.key_data(x)) if is_key(x) else x for x in columns]
        structure = structure_of(entry, is_array)
        named = list(zip(leaf_names(structure), types, strict=True))
        spec = TableSpec(f"entries/{len(self._tables)}", structure, named, True, about)
        kind = _kind(spec)
        if kind not in self._tables:
            self._tables[kind] = spec.name
            self._new_tables[spec.name] = spec
        self._blocks.setdefault(self._tables[kind], []).append((steps, columns))
        return sum(x.nbytes for x in columns)

    def position(self) -> Position:
        """How far it has come, to go on from there. Everything before is committed."""
        self.commit()
        return Position(self._order, self._steps_run)

    def write(self) -> Sequence[Begun | None]:
        """Begin to write everything that is buffered. Returns what does not count yet."""
        self._stack_rows()
        if self._new_tables:
            self._store.add_tables(list(self._new_tables.values()))
            self._new_tables.clear()
        begun = []
        for name, blocks in self._blocks.items():
            steps = np.concatenate([steps for steps, _ in blocks]).astype(np.int64)
            columns = [
                np.concatenate(parts) if len(parts) > 1 else parts[0]
                for parts in zip(*(each for _, each in blocks), strict=True)
            ]
            begun.append(self._store.begin(name, steps, columns))
        self._blocks.clear()
        return begun


def _kind(spec: TableSpec) -> str:
    """What entries of one kind have in common, and others do not."""
    types = [(column.dtype, column.shape, column.key) for _, column in spec.columns]
    return json.dumps([spec.structure, spec.about, types])


def _type(x: Any) -> tuple[str, tuple[int, ...]]:
    array = np.asarray(x)
    return array.dtype.name, array.shape


def _row_type(block: Any) -> ColumnType:
    """The type of the rows of an array."""
    column = column_type_of(block)
    return column._replace(shape=column.shape[1:])


def _entry(logs: LogDict, is_batch: bool) -> Json:
    """The values, steps and masks of entries, as arrays with a leading axis of entries."""

    def rows(x: Any) -> Any:
        array = x if is_key(x) else np.asarray(x)
        return array if is_batch else array[None]

    first, origin = logs.series(next(iter(logs))), logs.origin
    count = len(jax.tree.leaves(first.value)[0]) if is_batch else 1
    entry: Json = {
        "values": {key: jax.tree.map(rows, value) for key, value in logs.items()},
        "steps": {name: rows(at) for name, at in first.steps.items()},
        "time": np.full(count, time.time() if origin is None else origin.time),
    }
    if first.lanes:
        entry["valid"] = rows(first.mask)
    if origin is not None and origin.path:
        entry["iteration"] = np.asarray(origin.iteration, np.int64).reshape(count, -1)
    return entry


def _about(logs: LogDict) -> Json:
    """What all entries of a `log` call have in common."""
    origin, lanes = logs.origin, logs.series(next(iter(logs))).lanes
    if origin is None:
        return {"lanes": lanes}
    about = {"lanes": lanes, "path": origin.path, "tags": list(origin.tags), "site": origin.site}
    return {**about, "backward": True} if origin.backward else about
