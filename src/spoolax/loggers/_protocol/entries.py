"""Take what a tap delivers apart: entries of a batch, and the step of an entry."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from ..._logdict.logdict import LogDict, Origin
from ...errors import StopRun


def each(act: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Do something with each of several things, though some fail; then raise the first error.

    Somebody who wants the run to stop goes first.
    """
    errors: list[Exception] = []
    for item in items:
        try:
            act(item)
        except Exception as error:
            errors.append(error)
    if errors:
        raise next((e for e in errors if isinstance(e, StopRun)), errors[0])


def rows(logs: LogDict) -> Iterator[LogDict]:
    """Yield the entries of a batch, one by one."""
    keys = tuple(logs)
    if not keys:
        return
    axes = {key: (one.lanes, one.own) for key, one in ((k, logs.series(k)) for k in keys)}
    for row in range(len(jax.tree.leaves(logs[keys[0]])[0])):

        def cut(x: Any, row: int = row) -> Any:
            return x[row]

        entry = LogDict(
            {key: jax.tree.map(cut, value) for key, value in logs.items()},
            steps={name: jax.tree.map(cut, at) for name, at in logs.steps.items()},
            valid={key: cut(mask) for key, mask in logs._valid.items()},
        )
        entry._axes = axes
        entry._origin = functools.partial(_origin_of_row, logs, row)
        yield entry


def _origin_of_row(logs: LogDict, row: int) -> Origin | None:
    origin = logs.origin
    if origin is None:
        return None
    return dataclasses.replace(origin, iteration=tuple(np.asarray(origin.iteration)[row].tolist()))


def steps_of(logs: LogDict, counts: dict[Any, int]) -> Any:
    """The steps of the entries of a batch, as `step_of` has them."""
    found = _named_step(logs)
    if found is not None:
        key, at = found[0], np.asarray(found[1])
        if at.ndim > 1:  # Of several lanes, the one that is ahead.
            least = at.min() if at.size else 0
            at = np.where(np.asarray(logs.series(key).mask), at, least)
            at = at.max(tuple(range(1, at.ndim)))
        return at
    origin = logs.origin
    if origin is not None and np.ndim(origin.iteration) == 2 and origin.iteration.shape[1] == 1:
        return np.array(origin.iteration)[:, 0]
    count = len(jax.tree.leaves(logs[next(iter(logs))])[0])
    first = _counted(logs, counts, count)
    return np.arange(first, first + count)


def step_of(logs: LogDict, counts: dict[Any, int]) -> int | float:
    """The step of an entry: a named one, or the iteration of its loop, or a count of its kind."""
    found = _named_step(logs)
    if found is not None:
        key, at = found
        if np.ndim(at):  # Of several lanes, the one that is ahead.
            at = np.asarray(at)[np.asarray(logs.series(key).mask)].max()
        number = np.asarray(at).item()
        return int(number) if number == number // 1 else float(number)
    origin = logs.origin  # Not made before it is needed.
    if origin is not None and len(origin.iteration) == 1:
        return int(origin.iteration[0])
    return _counted(logs, counts, 1)


def _named_step(logs: LogDict) -> tuple[str, Any] | None:
    """The step called `step`, or else the first that has a name; and a key that has it."""
    name = "step" if "step" in logs.steps else next(iter(logs.steps), None)
    return None if name is None else next(iter(logs.steps[name].items()))


def _counted(logs: LogDict, counts: dict[Any, int], count: int) -> int:
    """Count entries of a kind; return the number of the first of them."""
    origin = logs.origin
    kind = (origin and origin.site, tuple(logs))
    first = counts.get(kind, 0)
    counts[kind] = first + count
    return first
