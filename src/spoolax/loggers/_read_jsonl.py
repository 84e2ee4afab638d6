"""Reading lines of JSON that `as_json` wrote, and numbers that JSON does not have.

Nothing here needs JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ._protocol.paths import StrPath

NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_jsonl(path: StrPath) -> Iterator[dict[str, Any]]:
    """Yield the entries that a `JsonlLogger` wrote, without lines cut off by a crash.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/log.jsonl"
        >>> with open(path, "w") as file:
        ...     _ = file.write('{"_step": 0, "loss": "NaN"}' + chr(10) + '{"_step": 1, "lo')
        >>> list(read_jsonl(path))
        [{'_step': 0, 'loss': nan}]
    """
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                yield from_json(line)
            except json.JSONDecodeError:
                continue


def from_json(line: str) -> dict[str, Any]:
    """Read a line that `as_json` wrote."""
    return {name: number_of(value) for name, value in json.loads(line).items()}


def number_of(value: Any) -> Any:
    """Undo `finite_or_name`, also inside lists."""
    if isinstance(value, list):
        return [number_of(x) for x in value]
    return NUMBERS.get(value, value) if isinstance(value, str) else value


def finite_or_name(number: float) -> float | str:
    """A number as JSON can hold it: NaN and infinities as strings."""
    if isinstance(number, int) or math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
