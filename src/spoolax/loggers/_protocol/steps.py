"""The step of an entry: a named one, the iteration of its loop, or a count."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..._logdict.logdict import LogDict

Counts = dict[str, int]  # By `log` call, how many entries without a step there have been.


def step_of(logs: LogDict, counts: Counts) -> int | float:
    """The step of an entry: a named one, or the iteration of its loop, or a count."""
    found = _named_step(logs)
    if found is not None:
        key, at = found
        if np.ndim(at):  # Of several lanes, the one that is furthest.
            at = np.asarray(at)[np.asarray(logs.series(key).mask)].max()
        number = at.item() if isinstance(at, np.generic) else np.asarray(at).item()
        return int(number) if number == number // 1 else float(number)
    origin = logs.origin  # Only made when it is needed.
    if origin is not None and len(origin.iteration) == 1:
        return int(origin.iteration[0])
    return _count(logs, counts, 1)


def steps_of(logs: LogDict, counts: Counts) -> Any:
    """The steps of all entries of a batch, as an array."""
    found = _named_step(logs)
    if found is not None:
        key, at = found[0], np.asarray(found[1])
        if at.ndim > 1:  # Of several lanes, the one that is furthest.
            least = at.min() if at.size else 0
            at = np.where(np.asarray(logs.series(key).mask), at, least)
            at = at.max(tuple(range(1, at.ndim)))
        return at
    origin = logs.origin
    if origin is not None and np.ndim(origin.iteration) == 2 and origin.iteration.shape[1] == 1:
        return np.array(origin.iteration)[:, 0]
    count = len(jax.tree.leaves(logs[next(iter(logs))])[0])
    first = _count(logs, counts, count)
    return np.arange(first, first + count)


def _named_step(logs: LogDict) -> tuple[str, Any] | None:
    """A key, and its step: the one called `step`, or else the first that has a name."""
    name = "step" if "step" in logs.steps else next(iter(logs.steps), None)
    return None if name is None else next(iter(logs.steps[name].items()))


def _count(logs: LogDict, counts: Counts, count: int) -> int:
    """Count more entries of one `log` call; return the number of the first of them."""
    origin = logs.origin
    call = f"{origin and origin.site} {tuple(logs)}"  # The same in every process.
    first = counts.get(call, 0)
    counts[call] = first + count
    return first
