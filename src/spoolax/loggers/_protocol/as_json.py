"""Records as JSON: one object on one line, which any JSON parser can read.

JSON has no NaN and no infinities, so they become the strings "NaN", "Infinity" and "-Infinity". A
lane that did not log is null, and a complex number is `[real, imaginary]`. A name that is already
taken gets an underscore in front.
"""

from __future__ import annotations

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from .record import Record

# Making an encoder takes as long as using it.
encode = json.JSONEncoder(allow_nan=False, default=str).encode
PLAIN = (np.float32, np.float64, np.float16, np.integer, np.bool_)  # Python has these numbers.


def as_json(record: Record) -> str:
    """Write a record as one line of JSON."""
    about: dict[str, Any] = {"_step": record.step, "_time": record.time}
    if record.tags:
        about["_tags"] = record.tags
    return encode(_with_contents(about, record))


def as_json_lines(batch: Record, steps: list[int]) -> list[str]:
    """Write a record of entries with these steps, the leading axis of its arrays, line by line."""
    about: dict[str, Any] = {"_step": steps, "_time": [batch.time] * len(steps)}
    if batch.tags:
        about["_tags"] = [batch.tags] * len(steps)
    columns = _with_contents(about, batch)
    names = tuple(columns)
    rows = zip(*columns.values(), strict=True)
    return [encode(dict(zip(names, row, strict=True))) for row in rows]


def _with_contents(line: dict[str, Any], record: Record) -> dict[str, Any]:
    """Add the values and the steps of a record, as JSON can hold them."""
    for values, valid in ((record.values, record.valid), (record.steps, {})):
        for name, value in values.items():
            mask = valid.get(name) if valid else None
            while name in line:  # Nothing is overwritten.
                name = f"_{name}"
            line[name] = _plain(value, mask)
    return line


def numpy_numbers(array: Any) -> Any:
    """Convert numbers that Python does not have (bfloat16, int4, long double, ...) to 64 bits."""
    if not jnp.issubdtype(array.dtype, np.number):
        return array
    if array.dtype.kind not in "iufc" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        is_integer = jnp.issubdtype(array.dtype, np.integer)
        return array.astype(np.int64 if is_integer else np.float64)
    return array


def _plain(value: Any, valid: Any) -> Any:
    if valid is None and isinstance(value, PLAIN):
        value = value.item()
    if isinstance(value, float) and math.isfinite(value):
        return value  # By far the most common case.
    if isinstance(value, (str, int)):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    array = numpy_numbers(array)
    cells = array.astype(object)
    if array.dtype.kind == "f":
        cells[np.isnan(array)] = "NaN"
        cells[np.isposinf(array)] = "Infinity"
        cells[np.isneginf(array)] = "-Infinity"
    if valid is not None:
        cells[~np.asarray(valid)] = None
    return cells.tolist()
