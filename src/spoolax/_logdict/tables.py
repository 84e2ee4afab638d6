"""Convert `LogDict`s to tables of other libraries, which are imported only when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._extras import load
from ..errors import LogValueError

if TYPE_CHECKING:
    import pandas
    import xarray

    from .logdict import LogDict


def to_pandas(logs: LogDict) -> pandas.DataFrame:
    """Return a DataFrame: one row per entry, matched by steps; one column per number."""
    pandas = load("pandas", "`LogDict.to_pandas`", "pandas")
    in_time = [key for key in logs if key in logs.stacked]
    once = {} if not in_time else {key: logs[key] for key in logs if key not in logs.stacked}
    groups = _groups(logs, in_time or list(logs))
    frames = []
    for keys in groups:
        columns: dict[str, Any] = {}
        for key in keys:
            one = logs.series(key).time_first()
            mask = np.asarray(one.mask)
            for name, at in one.steps.items():
                columns.update(_step_columns(name, plain(at), mask))
            for path, leaf in jax.tree_util.tree_leaves_with_path(one.value):
                columns.update(_columns(key + jax.tree_util.keystr(path), plain(leaf), mask))
        frames.append(pandas.DataFrame(columns))
    frame = frames[0] if frames else pandas.DataFrame()
    for keys, more in zip(groups[1:], frames[1:], strict=True):
        shared = [name for name in frame.columns if name in more.columns]
        if not shared:
            raise LogValueError(
                f"The keys {groups[0]} and {keys} cannot be put into one table: they have no named "
                "step in common by which to match their rows. Log them with the same step, "
                "or make a table of some keys: `logs.filter(...).to_pandas()`."
            )
        frame = frame.merge(more, on=shared, how="outer")
    frame.index.name = "entry"
    frame.attrs.update(once)
    return frame  # type: ignore[no-any-return]


def to_xarray(logs: LogDict) -> xarray.Dataset:
    """Return a Dataset with one variable per array, and the steps as coordinates."""
    xarray = load("xarray", "`LogDict.to_xarray`", "xarray")
    in_time = [key for key in logs if key in logs.stacked]
    groups = _groups(logs, in_time)
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    for keys in [*groups, *([key] for key in logs if key not in logs.stacked)]:
        suffix = "" if len(groups) == 1 else f"_{keys[0]}"
        for key in keys:
            one = logs.series(key)
            if one.stacked:
                one = one.time_first()
            lead = [*(f"entry{suffix}",) * one.stacked]
            lead += [f"lane_{i}" for i in range(np.ndim(one.mask) - one.stacked)]

            def array(x: Any, name: str, lead: list[str] = lead) -> tuple[list[str], Any]:
                numbers = plain(x)
                extra = range(numbers.ndim - len(lead))
                return [*lead[: numbers.ndim], *(f"{name}_dim_{i}" for i in extra)], numbers

            for path, leaf in jax.tree_util.tree_leaves_with_path(one.value):
                name = key + jax.tree_util.keystr(path)
                variables[name] = array(leaf, name)
            if not np.all(one.mask):
                variables[f"{key}.valid"] = array(one.mask, key)
            for step, at in one.steps.items():
                coords[step + suffix if one.stacked else f"{step}_{key}"] = array(at, key)
    return xarray.Dataset(variables, coords)


def _groups(logs: LogDict, keys: list[str]) -> list[list[str]]:
    """Group keys that share a time axis: equal steps, and equally many entries.

    Keys without steps are grouped by the number of entries alone.
    """
    groups: list[list[str]] = []
    for key in keys:
        for group in groups:
            if _belong_together(logs, group[0], key):
                group.append(key)
                break
        else:
            groups.append([key])
    if len({len(_time_first(logs, group[0])[0]) for group in groups}) == 1 and any(
        not logs.series(group[0]).steps for group in groups
    ):
        groups = [[key for group in groups for key in group]]
    return groups


def _belong_together(logs: LogDict, a: str, b: str) -> bool:
    (mask, steps), (other_mask, other_steps) = _time_first(logs, a), _time_first(logs, b)
    return (
        len(mask) == len(other_mask)
        and set(steps) == set(other_steps)
        and all(np.array_equal(steps[name], other_steps[name]) for name in steps)
    )


def _time_first(logs: LogDict, key: str) -> tuple[Any, dict[str, Any]]:
    one = logs.series(key).time_first()
    return np.asarray(one.mask), {name: plain(at) for name, at in one.steps.items()}


def plain(leaf: Any) -> Any:
    """Return a NumPy array of a dtype that other libraries know."""
    if hasattr(leaf, "dtype"):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        elif jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype not in _FLOATS:
            leaf = leaf.astype(np.float32)  # bfloat16 and the 8-bit floats.
    return np.asarray(leaf)


_FLOATS = (np.float16, np.float32, np.float64)


def _step_columns(name: str, at: Any, mask: Any) -> dict[str, Any]:
    """Make one column if all lanes that logged were at the same step, else one per lane."""
    if not len(at):
        return _columns(name, at, mask)
    rows, real = at.reshape(len(at), -1), mask.reshape(len(mask), -1)
    first = np.take_along_axis(rows, real.argmax(1)[:, None], 1)
    if np.all((rows == first) | ~real):
        return _columns(name, first[:, 0], real.any(1))
    return _columns(name, at, mask)


def _columns(label: str, table: Any, mask: Any) -> dict[str, Any]:
    if not np.all(mask):
        mask = mask.reshape(mask.shape + (1,) * (table.ndim - mask.ndim))
        table = np.where(mask, table.astype(np.result_type(table.dtype, np.float16)), np.nan)
    if table.ndim == 1:
        return {label: table}
    return {
        f"{label}[{', '.join(map(str, index))}]": table[(slice(None), *index)]
        for index in np.ndindex(table.shape[1:])
    }
