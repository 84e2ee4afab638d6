"""Logs without a schema: tables appear as entries of new kinds do.

Entries of one kind, those of one `log` call, are rows of one table: their values, their named
steps, and when and in which iteration they were logged. `spoolax.load` makes a `LogDict` of them.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from .._jax.arrays import is_key
from .._logdict.logdict import LogDict
from .._tap.host import host
from ..errors import StorageError
from ..loggers._protocol.frequency import Frequency, Schedule, entry_keys
from ..loggers._protocol.paths import StrPath, run_path
from ..loggers._protocol.runs import RunInfo
from ..loggers._protocol.steps import steps_of
from ..loggers._protocol.view import View
from ._book import Book, check_mode, claimed
from ._dtypes import Stored, stored_as
from ._meta import gathered
from ._reader import HDF5StorageReader
from ._schema import is_array
from ._store import Store
from ._table import Form
from ._tree import Json, describe, leaf_names, leaves


class SaveLogger(Store):
    """Saves everything that it gets into an HDF5 file, which `spoolax.load` reads.

    There is no schema: keys may appear at any time, and be logged as often as they like. What was
    written up to the last second is there after a crash. Needs the extra `spoolax[hdf5]`.

    Args:
        path: The file.
        mode: "x" refuses a file that is there, "w" replaces it.
        resume: Go on with a file that is there: True, or the step after which to go on; what was
            saved after it is dropped.
        view: Takes what to save out of the state.
        every: A number of steps, or a frequency.
        attributes: Anything to be stored with it, by name.
        config: The settings of the run: a dictionary or dataclass.

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
        resume: bool | int = False,
        view: Any = None,
        every: Frequency | int | None = None,
        attributes: Mapping[str, Any] | None = None,
        config: Any = None,
    ) -> None:
        self.path, self._mode, self._resume = Path(path), mode, check_mode(mode, resume)
        self._view, self._schedule = View(view), Schedule(every)
        self._about = (attributes, config)
        self._order = itertools.count()
        self._kinds: dict[Any, str] = {}
        self._new: dict[str, Form] = {}
        self._rows: dict[Any, list[Any]] = {}  # That came one by one.
        self._pending: dict[str, list[tuple[Any, list[Any]]]] = {}
        self._forked = False

    def __enter__(self) -> Self:
        self.prepare()
        resume = self._resume is not False
        with claimed(self.path, self._mode, resume, "SaveLogger") as (self.path, lock):
            self._book = Book(self.path, lock, {**gathered(*self._about), "kind": "logs"})
            if resume and self.path.exists():
                self._go_on()
            else:
                self._book.open([])
        return self

    def _go_on(self) -> None:
        """Take up the kinds of entries that are in the file."""
        with HDF5StorageReader(self.path) as old:
            if old.meta.get("kind") != "logs":
                raise StorageError(
                    f"Cannot go on with {str(self.path)!r}: it was not written by a SaveLogger. "
                    "Write to another file."
                )
            groups = [old.focus_group(name) for name in old.groups]
            forms = [group.form for group in groups]
            last = [int(group[-1]["order"]) for group in groups if len(group)]
        self._book.resume(forms, self._resume)
        self._kinds = {_kind(form): form.name for form in forms}
        self._order = itertools.count(max(last, default=-1) + 1)
        self._ran = self._book.ran

    def log(self, state: Any, step: int) -> None:
        """Save a state, or an entry of a program."""
        self.check()
        self._ran += 1
        if not self._schedule.take(step, entry_keys(state)):
            return
        if isinstance(state, LogDict) and host.is_worker() and not self._view.is_chosen:
            self._keep_block(_entry(state, False), np.asarray([step]), _about(state))
        else:
            copies = self._view.copies(state)
            self.hand_over((copies, step, time.time()), copies.nbytes)

    def log_many(self, logs: LogDict) -> None:
        """Save many entries at once."""
        steps = steps_of(logs, self._counts)
        self.check()
        self._ran += len(steps)
        if host.is_worker():
            self._keep_block(_entry(logs, True), steps, _about(logs))
        else:
            entry = jax.tree.map(lambda x: x if is_key(x) else np.array(x), _entry(logs, True))
            size = sum(x.nbytes for x in jax.tree.leaves(entry))
            self.hand_over(functools.partial(self._keep_block, entry, steps, _about(logs)), size)

    @property
    def takes_many(self) -> bool:
        """Whether entries come in batches: if all of them are wanted as they are."""
        return self._schedule.is_always and not self._view.is_chosen

    def wants(self, step: int) -> bool:
        """Say whether `every` includes the step."""
        return self._schedule.due(step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._forked and not self._book.tables:
            self.path.unlink()  # Only runs of `init` were logged.

    def fork(self, run: RunInfo) -> SaveLogger:
        """Each run has a file of its own."""
        self._forked = True
        return self.remade(path=run_path(self.path, run))

    def keep(self, item: Any) -> None:
        """Keep a row that came by itself, or a block of them."""
        if isinstance(item, functools.partial):
            item()
            return
        copies, step, when = item
        types = tuple((name, *_type(x)) for name, x in copies.rest.items())
        rows = self._rows.setdefault((copies.layout, types, copies.order), [])
        rows.append((step, when, next(self._order), copies.fetch(), tuple(copies.rest.values())))
        self.kept(copies.nbytes)

    def _keep_block(self, entry: Json, steps: Any, about: Json) -> None:
        """Keep a block of rows."""
        order = np.fromiter(itertools.islice(self._order, len(steps)), np.int64, len(steps))
        self.kept(self._add({**entry, "order": order}, steps, about))

    def _gather(self) -> None:
        """Make blocks of the rows that have come one by one."""
        for (layout, types, order), rows in self._rows.items():
            steps, times, numbers, arrays, rest = zip(*rows, strict=True)
            blocks = [np.stack(parts) for parts in zip(*arrays, strict=True)]
            values = layout.unpack(blocks, (len(rows),))
            for name, key in ((place.name, place.key) for place in layout.places if place.key):
                values[name] = jax.random.wrap_key_data(values[name], impl=key)
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
            self._add(entry, np.asarray(steps), {"lanes": 0})
        self._rows.clear()

    def _add(self, entry: Json, steps: Any, about: Json) -> int:
        """Find the table for a block of rows, or plan one; return how many bytes they are."""
        columns = leaves(entry, is_array)
        types = [_stored_row(x) for x in columns]
        columns = [np.asarray(jax.random.key_data(x)) if is_key(x) else x for x in columns]
        structure = describe(entry, is_array)
        named = list(zip(leaf_names(structure), types, strict=True))
        form = Form(f"entries/{len(self._kinds)}", structure, named, True, about)
        kind = _kind(form)
        if kind not in self._kinds:
            self._kinds[kind] = form.name
            self._new[form.name] = form
        self._pending.setdefault(self._kinds[kind], []).append((steps, columns))
        return sum(x.nbytes for x in columns)

    def write(self) -> None:
        """Write everything that waits."""
        self._gather()
        if self._new:
            self._book.add(list(self._new.values()))
            self._new.clear()
        for name, blocks in self._pending.items():
            steps = np.concatenate([steps for steps, _ in blocks]).astype(np.int64)
            columns = [
                np.concatenate(parts) for parts in zip(*(each for _, each in blocks), strict=True)
            ]
            self._book.append(name, steps, columns)
        self._pending.clear()


def _kind(form: Form) -> str:
    """What tells entries of one kind from others, however they are called."""
    return json.dumps([form.structure, form.about, [tuple(s[1:]) for _, s in form.columns]])


def _type(x: Any) -> tuple[str, tuple[int, ...]]:
    array = np.asarray(x)
    return array.dtype.name, array.shape


def _stored_row(x: Any) -> Stored:
    """How one row of an array is stored."""
    whole = stored_as(x)
    return whole._replace(shape=whole.shape[1:])


def _entry(logs: LogDict, is_batch: bool) -> Json:
    """The values, steps and masks of entries, as arrays with an axis of entries in front."""

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
    """What is the same for all entries of a kind."""
    origin, lanes = logs.origin, logs.series(next(iter(logs))).lanes
    if origin is None:
        return {"lanes": lanes}
    return {"lanes": lanes, "path": origin.path, "tags": list(origin.tags), "site": origin.site}
