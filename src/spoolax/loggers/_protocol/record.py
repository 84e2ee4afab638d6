"""What a logger is given, as names and values: an entry of a tap, or the state of a Python loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax.arrays import is_key
from ..._logdict.logdict import LogDict
from ..._logdict.text import as_line
from ...errors import LogTypeError, LogValueError

SCALARS = (bool, int, float, complex, str, np.generic)


@dataclasses.dataclass
class Record:
    """One entry, on the host.

    Examples:
        >>> import numpy as np
        >>> record = Record(3, {"loss": np.float32(0.5)})
        >>> record.step, record.values["loss"].item()
        (3, 0.5)
    """

    step: int
    values: dict[str, Any]  # Arrays, numbers and strings by name.
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)  # Those with a name.
    valid: dict[str, Any] = dataclasses.field(default_factory=dict)  # By name, lanes that logged.
    lanes: dict[str, int] = dataclasses.field(default_factory=dict)  # Axes that are lanes.
    tags: tuple[str, ...] = ()
    time: float = dataclasses.field(default_factory=time.time)

    def line(self) -> str:
        """The values on one line, as text."""
        logs = LogDict(self.values, valid=self.valid)
        return as_line(logs)


def make_record(state: Any, values: dict[str, Any], step: int) -> Record:
    """Make a record of values, with what is known besides about the entry that they come from."""
    record = Record(step, values)
    if isinstance(state, LogDict):
        record.steps = {name: next(iter(at.values())) for name, at in state.steps.items() if at}
        lanes = {key: axes for key, (axes, _) in state._axes.items() if axes}
        record.valid, record.lanes = _of_names(state._valid, values), _of_names(lanes, values)
        if state.origin is not None:
            record.tags, record.time = state.origin.tags, state.origin.time
    return record


def _of_names(of_keys: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What is known of keys, for the names of their leaves."""
    return {
        name: known
        for key, known in of_keys.items()
        for name in names
        if name == key or name.startswith(f"{key}/")
    }


def by_name(state: Any, traced: bool = False) -> dict[str, Any]:
    """The leaves of a tree by their path, dictionaries in their own order."""
    values: dict[str, Any] = {}
    for name, value in _named(state, "", traced):
        if name in values:
            raise LogValueError(
                f"Two values of the state are called {name!r}. Rename one of them, or give the "
                "logger a `view` that does."
            )
        values[name] = value
    return values


def _named(value: Any, name: str, traced: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _named(child, _joined(name, str(key)), traced)
    elif isinstance(value, jax.core.Tracer) and not traced:
        raise LogTypeError(
            f"`log(state, step)` was called inside of a function that is being traced: {name!r} is "
            f"{value}. In there, use `spoolax.log`, and call the function through `logger.tap`."
        )
    elif isinstance(value, (jax.Array, np.ndarray, *SCALARS)):
        yield name or "value", value
    elif value is not None:
        children = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
        if len(children) == 1 and children[0][1] is value:
            what = f"The state has {name!r}, which" if name else "The state"
            raise LogTypeError(
                f"{what} is of type {type(value).__name__}: neither an array nor a number, and no "
                "pytree of them. Register its type with `jax.tree_util.register_dataclass`, or "
                "give the logger a `view` that takes numbers out of it."
            )
        for path, child in children:
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            yield from _named(child, _joined(name, key), traced)


def _joined(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key


def read(values: dict[str, Any]) -> dict[str, Any]:
    """Wait for arrays, and bring them to the host."""
    return {name: _read(name, value) for name, value in values.items()}


def is_gone(value: Any) -> bool:
    """Say whether something is an array that was donated."""
    concrete = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    return concrete and bool(value.is_deleted())


def _read(name: str, value: Any) -> Any:
    if not isinstance(value, jax.Array):
        return value
    if is_gone(value):
        raise LogValueError(f"{name!r} has been donated to another computation: its value is gone.")
    if is_key(value):
        value = jax.random.key_data(value)
    return np.asarray(value)


def scalar(value: Any, valid: Any = None) -> float | None:
    """One number that stands for a value: itself, or the mean of an array; None if there is none.

    Lanes that did not log do not count.
    """
    if isinstance(value, (float, int, np.floating, np.integer)) and valid is None:
        return float(value)
    if isinstance(value, str):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "c":
        array = np.abs(array)
    if not (array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, np.floating)):
        return None
    array = array.astype(np.float64)
    if valid is not None and np.shape(valid) == array.shape[: np.ndim(valid)]:
        array = array[np.asarray(valid)]
    return float(array.mean()) if array.size else None
