"""One row, and the line of JSON that it is while it waits in a file.

In such a line, scalars are under their names. Everything else is under a name with an underscore in
front; a scalar whose own name begins with one gets another.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

import numpy as np

from ..._protocol.as_json import encode
from ..._read_jsonl import finite_or_name, number_of
from .histogram import Histogram

Number = int | float
STEP = "step"  # What the step is called if it has no name.


class TrackerRow(NamedTuple):
    """An entry as a tracker gets it."""

    step: Number
    axis: str  # Which of the steps that is.
    time: float  # In seconds since 1970.
    steps: dict[str, Number]
    scalars: dict[str, Number]
    histograms: dict[str, Histogram]
    images: dict[str, np.ndarray]  # Height, width, and channels, as bytes.
    texts: dict[str, str]


def steps_to_log(row: TrackerRow) -> dict[str, Number]:
    """The steps to log as values, for trackers that have a single, integer step.

    These are all but the axis; and the axis too if it is not an integer.
    """
    return {name: at for name, at in row.steps.items() if name != row.axis or isinstance(at, float)}


def row_to_json(row: TrackerRow) -> str:
    """Write a row as one line of JSON, without the newline."""
    line: dict[str, Any] = {
        "_step": finite_or_name(row.step),
        "_time": row.time,
        "_axis": row.axis,
        "_steps": {name: finite_or_name(at) for name, at in row.steps.items()},
    }
    for name, number in row.scalars.items():
        line[scalar_key(name)] = finite_or_name(number)
    for name, text in row.texts.items():
        line.setdefault("_texts", {})[name] = text
    for name, counted in row.histograms.items():
        sums = {"total": finite_or_name(counted.total), "squares": finite_or_name(counted.squares)}
        line.setdefault("_histograms", {})[name] = {**counted._asdict(), **sums}
    for name, image in row.images.items():
        data = base64.b64encode(image.tobytes()).decode()
        line.setdefault("_images", {})[name] = {"shape": image.shape, "data": data}
    return encode(line)


def row_from_json(line: str) -> TrackerRow:
    """Read a line that `row_to_json` wrote."""
    found = json.loads(line)
    step, time = number_of(found.pop("_step")), found.pop("_time", 0.0)
    axis = found.pop("_axis", STEP)
    steps = {name: number_of(at) for name, at in found.pop("_steps", {axis: step}).items()}
    row = TrackerRow(step, axis, time, steps, {}, {}, {}, found.pop("_texts", {}))
    for name, counted in found.pop("_histograms", {}).items():
        sums = {name: number_of(counted[name]) for name in ("total", "squares")}
        row.histograms[name] = Histogram(**{**counted, **sums})
    for name, image in found.pop("_images", {}).items():
        data = np.frombuffer(base64.b64decode(image["data"]), np.uint8)
        row.images[name] = data.reshape(image["shape"])
    for key, number in found.items():
        row.scalars[key[1:] if key.startswith("__") else key] = number_of(number)
    return row


def scalar_key(name: str) -> str:
    """The key of a scalar in a line of JSON."""
    return f"_{name}" if name.startswith("_") else name
