"""The curves of a run side by side: one row per step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .curve import Array, Curve


def table_of(curves: Mapping[str, Curve], most: int = 64) -> dict[str, Array]:
    """Columns of numbers, with a row for every step at which any of the curves has a value.

    Values that are small arrays have a column for each of their numbers, "x[0]", "x[1]", ... Where
    a curve has no value, there is NaN. A step that was logged several times has several rows.

    Args:
        curves: The curves, by name.
        most: How many numbers a value may have. Larger ones are left out.
    """
    chosen = {
        name: curve.still() for name, curve in curves.items() if math.prod(curve.shape) <= most
    }
    places = [places_of(curve.steps) for curve in chosen.values()]
    if not places:
        return {"step": np.zeros(0, np.int64)}
    rows, found = np.unique(np.concatenate(places), axis=0, return_inverse=True)
    ends = np.cumsum([len(one) for one in places])[:-1]
    columns: dict[str, Array] = {"step": rows[:, 0]}
    for (name, curve), at in zip(chosen.items(), np.split(found.reshape(-1), ends), strict=True):
        values = np.asarray(curve[:])
        if values.dtype.kind == "V":  # Such as bfloat16, which tables do not know.
            values = values.astype(np.float64)
        cells = values.reshape(len(values), math.prod(curve.shape))
        for number, suffix in enumerate(_suffixes(curve.shape)):
            free = name + suffix
            while free in columns:  # As that of a key called "step" is not.
                free += "#"
            columns[free] = _spread_out(cells[:, number], at, len(rows))
    return columns


def places_of(steps: Array) -> Array:
    """The step of each value, and how many values there were at that step before."""
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(steps) else ordered
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, len(steps)))
    repeated = np.empty(len(steps), steps.dtype)
    repeated[order] = np.arange(len(steps)) - np.repeat(starts, lengths)
    return np.stack([steps, repeated], axis=1)


def _suffixes(shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [""]
    return [f"[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _spread_out(values: Array, at: Array, count: int) -> Array:
    if len(values) == count:  # There is one for every row.
        column: Array = np.empty(count, values.dtype)
    else:
        missing: Any = np.nan
        kind = values.dtype if values.dtype.kind in "fc" else np.dtype(np.float64)
        column = np.full(count, missing, kind)
    column[at] = values
    return column
