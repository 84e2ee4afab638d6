"""What may be logged: the arguments of `log` and `log_grad`, checked where they are given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._logdict.logdict import LogDict
from ..errors import LogTypeError, LogValueError


def checked_data(data: Any, prefix: Any) -> dict[str, Any]:
    """What there is to log. A pytree without arrays is nothing."""
    if not isinstance(data, Mapping):
        raise LogTypeError(
            f"`spoolax.log` takes a dictionary of what to log, but got {_describe(data)}. "
            'Give it a name: `spoolax.log({"name": value})`.'
        )
    if not isinstance(prefix, str):
        raise LogTypeError(f"The `prefix` of a log must be a string, but got {_describe(prefix)}.")
    named = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise LogTypeError(
                f"The keys of a log must be strings, but one of them is {_describe(key)}. "
                f'Write `spoolax.log({{"{key}": ...}})`.'
            )
        leaves = jax.tree_util.tree_leaves_with_path(value)
        # Inside a pytree, None stands for nothing. By itself, it is a slip.
        for path, leaf in leaves if value is not None else [((), None)]:
            if not _is_loggable(leaf):
                where = repr(key) + jax.tree_util.keystr(path)
                raise LogTypeError(
                    f"Cannot log {where}: it is {_describe(leaf)}, and only arrays, numbers and "
                    "pytrees of them can leave a JAX program. Leave it out, or log a number that "
                    "stands for it."
                )
        if leaves:
            named[prefix + key] = value
    return named


def checked_tags(tags: Any) -> tuple[str, ...]:
    if not isinstance(tags, (str, Iterable)):
        raise LogTypeError(f"The `tags` of a log must be strings, not {_describe(tags)}.")
    given: tuple[Any, ...] = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in given:
        if not isinstance(tag, str):
            raise LogTypeError(f"The `tags` of a log must be strings, but one is {_describe(tag)}.")
    return given


def check_step(name: str, value: Any) -> None:
    if name in _RESERVED:
        raise LogValueError(
            f"`{name}` cannot be the name of a step, because `logs.{name}` means something else. "
            f"Choose another name, such as `{name}_step=`."
        )
    meant = difflib.get_close_matches(name, ("tags", "prefix", "explicit"), n=1, cutoff=0.8)
    if meant:
        raise LogValueError(
            f"`{name}=` would be a named step of the log. Did you mean `{meant[0]}=`? If not, "
            "choose another name for the step."
        )
    if not _is_loggable(value) or np.ndim(value) != 0:
        raise LogTypeError(
            f"The step `{name}` must be a number, but it is {_describe(value)}. "
            f'To log a value, put it into the dictionary: `spoolax.log({{"{name}": ...}})`.'
        )


_RESERVED = frozenset(dir(LogDict))


def _is_loggable(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, bool, int, float, complex)):
        return True
    if isinstance(leaf, (np.ndarray, np.generic)):
        # Also the extended floats of ml_dtypes, whose kind is "V" like that of a structured array.
        return leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, np.number)
    return False


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) < 40 else text[:37] + '...'} (of type {type(value).__name__})"
