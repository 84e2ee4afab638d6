"""Take apart what a tap delivers: into single entries, or into the entries of each run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..._jax.arrays import is_key
from ..._logdict.logdict import LogDict, from_series
from ..._logdict.origin import Origin
from ..._logdict.series import Series
from .runs import RUN_STEP


def entries_of(batch: LogDict) -> Iterator[LogDict]:
    """Yield the entries of a batch, one by one."""
    keys = tuple(batch)
    if not keys:
        return
    axes = {key: (one.lanes, one.own) for key, one in ((k, batch.series(k)) for k in keys)}
    for row in range(len(jax.tree.leaves(batch[keys[0]])[0])):

        def cut(x: Any, row: int = row) -> Any:
            return x[row]

        entry = LogDict(
            {key: jax.tree.map(cut, value) for key, value in batch.items()},
            steps={name: jax.tree.map(cut, at) for name, at in batch.steps.items()},
            valid={key: cut(mask) for key, mask in batch._valid.items()},
            backward={key: cut(marks) for key, marks in batch._backward.items()},
        )
        entry._axes = axes
        entry._origin = functools.partial(_origin_of_row, batch, row)
        yield entry


def _origin_of_row(batch: LogDict, row: int) -> Origin | None:
    origin = batch.origin
    if origin is None:
        return None
    return dataclasses.replace(origin, iteration=tuple(np.asarray(origin.iteration)[row].tolist()))


def split_by_run(
    logs: LogDict, run_step: str, vmaps_around: Callable[[int], int]
) -> Iterator[tuple[int, LogDict]]:
    """Yield the number of each run that has entries in `logs`, and its entries.

    `run_step` is the step that holds these numbers. `vmaps_around` says inside how many vmaps a run
    was opened.
    """
    series = {key: logs.series(key) for key in logs}
    first = next(iter(series.values()))
    numbers = np.asarray(first.steps[run_step])
    mask = np.broadcast_to(first.mask, numbers.shape)
    for rows in _rows_of_same_runs(numbers) if first.stacked else (None,):
        lanes = numbers if rows is None else numbers[rows[0]]
        logged = mask if rows is None else mask[rows].any(0)
        if not logged.any():
            continue
        axes = _run_axes(lanes, vmaps_around(int(lanes[logged][0])))
        for lane in np.ndindex(*(lanes.shape[axis] for axis in axes)):
            index: list[Any] = [slice(None)] * lanes.ndim
            for axis, i in zip(axes, lane, strict=True):
                index[axis] = i
            place = tuple(index)
            if not logged[place].any():
                continue
            own_rows = rows
            if rows is not None:
                own_rows = rows[mask[(rows, *place)].reshape(len(rows), -1).any(1)]
            part = from_series(
                {key: _select(one, place, own_rows, len(axes)) for key, one in series.items()}
            )
            part._origin = functools.partial(_origin_of_rows, logs, own_rows)
            yield int(lanes[place][logged[place]][0]), part


def logged_together(logs: LogDict) -> Iterator[LogDict]:
    """Split what was spooled into entries, or batches of them, with keys of the same steps."""
    groups: list[dict[str, Series]] = []
    for key in logs:
        one = _what_happened(logs.series(key))
        if one is None:
            continue
        group = next((g for g in groups if _at_same_steps(next(iter(g.values())), one)), None)
        if group is None:
            groups.append({key: one})
        else:
            group[key] = one
    yield from map(from_series, groups)


def _what_happened(one: Series) -> Series | None:
    """The entries that are real, on the host, if there are any. Axes of `vmap` become lanes."""
    if one.stacked:
        one = one.time_first()
    lanes, own = one.axes
    one = dataclasses.replace(one, lanes=lanes + one.axis, own=own)
    one = one.map(lambda x: x if isinstance(x, jax.Array) and is_key(x) else np.asarray(x))
    mask = np.asarray(one.mask)
    if one.stacked:
        rows = mask.any(tuple(range(1, mask.ndim)))
        one, mask = one.map(lambda x: x[rows]), mask[rows]
    if not mask.any():
        return None
    return dataclasses.replace(one, valid=None if mask.all() else mask)


def _at_same_steps(a: Series, b: Series) -> bool:
    return (
        (a.stacked, a.lanes, set(a.steps)) == (b.stacked, b.lanes, set(b.steps))
        and np.array_equal(a.mask, b.mask)
        and all(np.array_equal(at, b.steps[name]) for name, at in a.steps.items())
    )


def forget_runs(logs: LogDict) -> None:
    """Remove the steps that say which run entries belong to."""
    for name in [name for name in logs.steps if name.startswith(RUN_STEP)]:
        del logs.steps[name]


def _rows_of_same_runs(numbers: Any) -> list[Any]:
    """Group the rows of a batch: those whose lanes belong to the same runs."""
    flat = numbers.reshape(len(numbers), -1)
    if (flat == flat[:1]).all():
        return [np.arange(len(flat))]
    _, group = np.unique(flat, axis=0, return_inverse=True)
    return [np.flatnonzero(group == i) for i in range(group.max() + 1)]


def _run_axes(numbers: Any, vmaps: int) -> list[int]:
    """The lane axes that belong to runs: those along which the number of the run changes.

    Nothing changes along an axis of length one, so the outermost of those are taken as well, until
    there are as many axes as there were vmaps around `init`.
    """
    lanes = range(numbers.ndim)
    changing = [a for a in lanes if (numbers != np.take(numbers, [0], a)).any()]
    single = [a for a in lanes if numbers.shape[a] == 1]
    return sorted([*changing, *single[: max(0, vmaps - len(changing))]])


def _select(one: Series, place: tuple[Any, ...], rows: Any, removed: int) -> Series:
    """The entries of one run, which has lost `removed` lane axes, out of those of a key."""
    where = place if rows is None else (rows, *place)

    def cut(x: Any) -> Any:
        return x[where] if np.ndim(x) >= len(where) else x

    steps = {name: at for name, at in one.steps.items() if not name.startswith(RUN_STEP)}
    part = dataclasses.replace(one, steps=steps).map(cut, lanes=one.lanes - removed)
    if part.valid is not None and np.all(part.valid):
        part = dataclasses.replace(part, valid=None)
    return part


def _origin_of_rows(logs: LogDict, rows: Any) -> Origin | None:
    origin = logs.origin
    if origin is None or rows is None:
        return origin
    return dataclasses.replace(origin, iteration=origin.iteration[rows])
