"""`LogDict`s as tables of other libraries, which are imported only here and only when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import MissingExtraError

if TYPE_CHECKING:
    import pandas
    import xarray

    from ._logdict import LogDict


def to_pandas(logs: LogDict) -> pandas.DataFrame:
    """One row per entry, one column per number in an entry."""
    pandas = _import("pandas")
    columns: dict[str, Any] = {}
    for name, by_key in logs.steps.items():
        tables = {key: _rows(logs, key, at) for key, at in by_key.items()}
        first = next(iter(tables.values()))
        if all(np.array_equal(first, table) for table in tables.values()):
            tables = {"": first}
        for key, table in tables.items():
            columns.update(_columns(f"{name}[{key}]" if key else name, table))
    for key, value in logs.items():
        mask = _rows(logs, key, logs.valid[key])
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            label = key + jax.tree_util.keystr(path)
            columns.update(_columns(label, _rows(logs, key, leaf), mask))
    frame = pandas.DataFrame({name: pandas.Series(column) for name, column in columns.items()})
    frame.index.name = "entry"
    return frame  # type: ignore[no-any-return]


def to_xarray(logs: LogDict) -> xarray.Dataset:
    """One variable per array, and the steps as coordinates."""
    xarray = _import("xarray")
    lengths = {np.shape(logs.valid[key])[0] for key in logs.stacked}
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    for key, value in logs.items():
        time = "entry" if len(lengths) == 1 else f"entry_{key}"
        lead = [time] if key in logs.stacked else []

        def array(x: Any, name: str, lead: list[str] = lead) -> tuple[list[str], Any]:
            numbers = plain(x)
            extra = range(numbers.ndim - len(lead))
            return [*lead, *(f"{name}_dim_{i}" for i in extra)], numbers

        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            name = key + jax.tree_util.keystr(path)
            variables[name] = array(leaf, name)
        mask = logs.valid[key]
        if not np.all(mask):
            variables[f"{key}.valid"] = array(mask, key)
        for step, by_key in logs.steps.items():
            if key in by_key:
                coords[f"{step}[{key}]"] = array(by_key[key], key)
    return xarray.Dataset(variables, coords)


def plain(leaf: Any) -> Any:
    """Return a NumPy array of a type that every library knows."""
    if hasattr(leaf, "dtype"):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        elif jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype not in _FLOATS:
            leaf = leaf.astype(np.float32)  # bfloat16 and the 8-bit floats.
    return np.asarray(leaf)


_FLOATS = (np.float16, np.float32, np.float64)


def _rows(logs: LogDict, key: str, value: Any) -> Any:
    return plain(value) if key in logs.stacked else plain(value)[None]


def _columns(label: str, table: Any, mask: Any = None) -> dict[str, Any]:
    if mask is not None and not np.all(mask):
        mask = mask.reshape(mask.shape + (1,) * (table.ndim - mask.ndim))
        table = np.where(mask, table.astype(np.result_type(table.dtype, np.float16)), np.nan)
    if table.ndim == 1:
        return {label: table}
    return {
        f"{label}[{', '.join(map(str, index))}]": table[(slice(None), *index)]
        for index in np.ndindex(table.shape[1:])
    }


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"`LogDict.to_{name}` needs {name}, which is not installed. "
            f"Install it with `pip install 'chiplog[{name}]'`."
        ) from error
