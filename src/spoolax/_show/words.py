"""Numbers, durations, times and sizes in as few characters as they need."""

from __future__ import annotations

import math
import time
from typing import Any


def number(x: float, digits: int = 5) -> str:
    """A number: whole ones as they are, others with a few digits."""
    is_whole = math.isfinite(x) and abs(x) < 1e9 and x == int(x)
    return str(int(x)) if is_whole else f"{x:.{digits}g}"


def counted(count: int, what: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration: "42 s", "3:05 min", "2:03:05 h"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def moment(seconds: float | None) -> str:
    """A moment, in local time."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def size(count: int) -> str:
    """A number of bytes."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def value(x: Any) -> str:
    """A value of a run: a number, or the type of an array with its first and last number."""
    import numpy as np  # The rest is of use before it is imported.

    array = np.asarray(x)
    if array.ndim == 0:
        item = array[()]
        if array.dtype.kind == "c":
            return f"{item:.5g}"
        return number(float(item), 6) if array.dtype.kind not in "biu" else str(item)
    if array.size <= 4:
        return "[" + " ".join(value(one) for one in array.reshape(-1)) + "]"
    sizes = "x".join(map(str, array.shape))
    flat = array.reshape(-1)
    return f"{array.dtype.name}[{sizes}] {value(flat[0])} ... {value(flat[-1])}"
