"""`LogDict`s as text that a person can read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._jax import processes
from .._jax.arrays import is_key, type_text
from .._show import html
from .._show.curves import svg_curve
from .tables import plain

if TYPE_CHECKING:
    from .logdict import LogDict

SHOWN = 4


def as_text(logs: LogDict) -> str:
    """One line for each key: type, first and last values, steps."""
    if not logs:
        return "LogDict()"
    return "\n".join(["LogDict(", *(f"  {key}: {_describe(logs, key)}" for key in logs), ")"])


def as_html(logs: LogDict) -> str:
    """The same as a table, with small curves of what was logged in time."""
    return html.table([key, _describe(logs, key), html.Markup(_curve(logs, key))] for key in logs)


def _curve(logs: LogDict, key: str) -> str:
    """A curve of the mean of each entry, if there are several with numbers in them."""
    one = logs.series(key)
    leaves = jax.tree.leaves(one.value)
    if not one.stacked or len(leaves) != 1 or not _has_values(leaves[0]) or is_key(leaves[0]):
        return ""
    if processes.divided(leaves):
        return ""
    first = one.time_first()
    numbers = plain(processes.local(jax.tree.leaves(first.value)[0]))
    if numbers.dtype.kind not in "biuf" or len(numbers) < 2 or not numbers.size:
        return ""
    flat = numbers.reshape(len(numbers), -1).astype(np.float64)
    mask = np.asarray(first.mask).reshape(len(numbers), -1)
    if mask.shape[1] and not mask.all():
        flat = np.where(np.repeat(mask, flat.shape[1] // mask.shape[1], axis=1), flat, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Where no lane has logged.
        return svg_curve(np.nanmean(flat, axis=1).tolist())


def as_line(logs: LogDict) -> str:
    """One entry on one line: its steps, then its values."""
    words = []
    for name, by_key in logs.steps.items():
        first = next(iter(by_key))
        words.append(f"{name}={_values(by_key[first], logs.series(first).mask)}")
    for key, value in logs.items():
        mask = logs.series(key).mask
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            words.append(f"{key}{jax.tree_util.keystr(path)}={_values(leaf, mask)}")
    return "  ".join(words)


def _values(leaf: Any, mask: Any) -> str:
    numbers = plain(leaf)
    if numbers.ndim == 0:
        return _number(numbers[()], 7)
    if numbers.size <= 2 * SHOWN:
        real = np.reshape(mask, np.shape(mask) + (1,) * (numbers.ndim - np.ndim(mask)))
        shown = np.where(real, np.vectorize(_number, otypes=[object])(numbers), "-")
        return np.array2string(
            shown, separator=" ", formatter={"all": str}, max_line_width=10**6
        ).replace("\n", "")
    return f"{type_text(numbers)}({_ends(leaf, mask)})"


def _describe(logs: LogDict, key: str) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(logs[key])
    one = logs.series(key)
    cells = [
        f"{jax.tree_util.keystr(path)} {_array(leaf, one.mask)}".lstrip()
        for path, leaf in leaves[:SHOWN]
    ]
    if len(leaves) > SHOWN:
        cells.append(f"and {len(leaves) - SHOWN} more arrays")
    notes = [f"{name} {_ends(at, one.mask)}".rstrip() for name, at in one.steps.items()]
    for count, what in (
        (_total(logs.dropped[key]), "dropped"),
        (_invalid(one.mask), "invalid"),
        (0 if one.backward is None else _total(one.marks & one.mask), "backward"),
    ):
        if count:
            notes.append(f"{count} {what}")
    return (", ".join(cells) or repr(logs[key])) + (f"  ({', '.join(notes)})" if notes else "")


def _array(leaf: Any, mask: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return repr(leaf)
    return f"{type_text(leaf)} = {_ends(leaf, mask)}".removesuffix(" = ")


def _ends(leaf: Any, mask: Any) -> str:
    """The first and last numbers among those that are real; nothing if it has no values."""
    if isinstance(leaf, jax.core.Tracer) or isinstance(mask, jax.core.Tracer):
        return "(traced)"
    if not _has_values(leaf):
        return ""
    if processes.divided([leaf]):
        return "(spread over processes)"
    numbers = plain(processes.local(leaf))
    if np.shape(mask) == np.shape(numbers)[: np.ndim(mask)] and not np.all(mask):
        numbers = numbers[np.asarray(mask)]
    flat = numbers.reshape(-1)
    if flat.size <= SHOWN:
        return " ".join(map(_number, flat)) or "(empty)"
    return f"{_number(flat[0])} ... {_number(flat[-1])}"


def _has_values(x: Any) -> bool:
    """Say whether it is an array or a number, and not only its type, or a tangent of integers."""
    if isinstance(x, (jax.ShapeDtypeStruct, jax.core.Tracer)):
        return False
    return bool(getattr(x, "dtype", None) != jax.dtypes.float0)


def _number(x: Any, digits: int = 4) -> str:
    return f"{x:.{digits}g}" if np.issubdtype(np.asarray(x).dtype, np.inexact) else str(x)


def _invalid(mask: Any) -> int:
    return int(np.size(mask) - np.sum(mask)) if _has_values(mask) else 0


def _total(count: Any) -> int:
    return int(np.sum(count)) if _has_values(count) else 0
