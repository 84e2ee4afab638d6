"""What a logger gets, as values by name: an entry of a tap, or the state of a Python loop."""

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
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)  # The named steps.
    valid: dict[str, Any] = dataclasses.field(default_factory=dict)  # By name, which lanes logged.
    lanes: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # By name, how many axes are lanes.
    tags: tuple[str, ...] = ()
    time: float = dataclasses.field(default_factory=time.time)

    def line(self) -> str:
        """The values as one line of text."""
        logs = LogDict(self.values, valid=self.valid)
        return as_line(logs)


def make_record(state: Any, values: dict[str, Any], step: int) -> Record:
    """Make a record of values, and add what is known about the entry that they come from."""
    record = Record(step, values)
    if isinstance(state, LogDict):
        record.steps = {name: next(iter(at.values())) for name, at in state.steps.items() if at}
        lanes = {key: axes for key, (axes, _) in state._axes.items() if axes}
        record.valid, record.lanes = _by_leaf(state._valid, values), _by_leaf(lanes, values)
        origin = state.origin
        if origin is not None:
            record.tags, record.time = origin.tags, origin.time
    return record


def _by_leaf(of_keys: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Give every leaf of a key what is known about the key."""
    return {
        name: known
        for key, known in of_keys.items()
        for name in names
        if name == key or name.startswith(f"{key}/")
    }


def by_name(state: Any, traced: bool = False) -> dict[str, Any]:
    """The leaves of a tree by path, with dictionaries in their own order."""
    values: dict[str, Any] = {}
    for name, value in _named(state, "", traced):
        if name in values:
            raise LogValueError(
                f"Two values in the state are called {name!r}. Rename one of them, or give the "
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
            f"`log(state, step)` was called inside a function that is being traced: {name!r} is "
            f"{value}. In there, use `spoolax.log`, and call the function through `logger.tap`."
        )
    elif isinstance(value, (jax.Array, np.ndarray, *SCALARS)):
        yield name or "value", value
    elif value is not None:
        children = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)[0]
        if len(children) == 1 and children[0][1] is value:
            what = f"{name!r} in the state" if name else "The state"
            raise LogTypeError(
                f"{what} is of type {type(value).__name__}, which is neither an array nor a number "
                "nor a pytree of them. Register the type with `jax.tree_util.register_dataclass`, "
                "or give the logger a `view` that takes numbers out of it."
            )
        for path, child in children:
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            yield from _named(child, _joined(name, key), traced)


def _joined(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key


def read(values: dict[str, Any]) -> dict[str, Any]:
    """Wait for arrays, and copy them to the host."""
    return {name: _read(name, value) for name, value in values.items()}


def is_donated(value: Any) -> bool:
    """Say whether something is an array whose buffer was donated."""
    concrete = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    return concrete and bool(value.is_deleted())


def _read(name: str, value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) or not isinstance(value, jax.Array):
        return value
    if is_donated(value):
        raise LogValueError(f"{name!r} has been donated to another computation: its value is gone.")
    if is_key(value):
        value = jax.random.key_data(value)
    return np.asarray(value)


def scalar(value: Any, valid: Any = None) -> float | None:
    """A value as one number: itself, or the mean of an array; None if that is not possible.

    Lanes that did not log are left out.
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
