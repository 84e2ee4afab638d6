"""The configuration of a run as trackers want it: dictionaries, lists, numbers and strings."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..._jax.arrays import is_key, type_text
from ...errors import LogTypeError
from .._protocol.as_json import numpy_numbers
from ._rows.surrogates import escape_surrogates

MOST = 100  # Numbers of an array that are written out; of larger ones, only the type is.


def plain_config(config: Any) -> dict[str, Any]:
    """Turn a configuration (a dictionary, a dataclass, or a namespace) into a plain dictionary."""
    if config is None:
        return {}
    try:
        found = _plain(config)
    except RecursionError as error:
        raise LogTypeError("`config` contains itself, so it cannot be written down.") from error
    if not isinstance(found, dict):
        raise LogTypeError(
            f"`config` must be a dictionary or a dataclass, not {config!r} (of type "
            f"{type(config).__name__})."
        )
    return found


def flat_config(config: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A configuration without nesting: `{"optimizer": {"lr": 1}}` becomes `{"optimizer.lr": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(flat_config(value, f"{above}{name}."))
        else:
            flat[f"{above}{name}"] = value
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return escape_surrogates(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        value = vars(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {escape_surrogates(str(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return _plain_array(value)
    if isinstance(value, os.PathLike):
        return escape_surrogates(str(os.fspath(value)))
    if callable(value):  # Its repr may have an address in it, which changes from run to run.
        return getattr(value, "__qualname__", type(value).__qualname__)
    return escape_surrogates(str(value))


def _plain_array(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise LogTypeError(
            f"`config` contains {value}, which has no value yet: the logger was made inside a "
            "function that is being traced. Make it outside."
        )
    if isinstance(value, jax.Array) and is_key(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.size > MOST:
        return type_text(array)
    return _plain(numpy_numbers(array).astype(object).tolist())
