"""A `LogDict` as a file, and back; also of what a `SaveLogger` saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._logdict.logdict import LogDict, from_series
from .._logdict.series import Series
from ..errors import LogTypeError, MixedKeyError, StorageError
from ..loggers._protocol.paths import MAIN, StrPath, as_path, check_mode
from ._formats import backend_of
from ._once import write_once
from ._reader import StorageReader
from ._store.damage import raises_storage_errors
from ._store.structures import Json


def save(path: StrPath, logs: LogDict, mode: str = "x") -> None:
    """Save a `LogDict` in a file; `spoolax.load` returns it as it was.

    The file is HDF5, or a Zarr hierarchy if its name ends in ".zarr" or it is in a bucket.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/logs.h5"
        >>> y, logs = spoolax.spool(lambda x: spoolax.log({"x": x}, step=3))(1.0)
        >>> spoolax.save(path, logs)
        >>> spoolax.load(path)
        LogDict(
          x: float32[] = 1  (step 3)
        )
    """
    if not isinstance(logs, LogDict):
        raise LogTypeError(
            f"`save(path, logs)` takes a LogDict, not {type(logs).__name__}. Write "
            "`spoolax.LogDict(values)` to make one of a dictionary."
        )
    check_mode(mode)
    tree = {
        "values": dict(logs),
        "steps": logs.steps,
        "valid": logs._valid,
        "dropped": logs._dropped,
        "backward": logs._backward,
    }
    about = {"stacked": sorted(logs.stacked), "axes": {k: list(v) for k, v in logs._axes.items()}}
    _check_concrete(tree)
    write_once(
        as_path(path), "logs", tree, kind="log", writer="spoolax.save", mode=mode, about=about
    )


def _check_concrete(tree: Any) -> None:
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree)):
        raise LogTypeError(
            "`save` was called inside a function that JAX traces (jit, scan, ...), where the logs "
            "have no values yet. Return them from it, and save what it returns."
        )


def load(path: StrPath) -> LogDict:
    """Read what `spoolax.save`, a `SaveLogger` or `spoolax.run` wrote.

    Every key that a `SaveLogger` saved has a time axis. If the entries of a key changed their shape
    or type, there are several: "x", "x#1", ... `logs.meta` has the "config" and all else that is
    known about the run.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/logs.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 10)
        >>> spoolax.load(path)["loss"].tolist()
        [0.5]
    """
    path = as_path(path).expanduser()
    return _load(path / MAIN if (path / MAIN).is_file() else path)


@raises_storage_errors
def _load(path: Path) -> LogDict:
    with StorageReader(path, backend=backend_of(path)) as reader:
        kind = reader.meta.get("kind")
        meta = {name: value for name, value in reader.meta.items() if name != "schema"}
        if kind == "log":
            logs = _whole(reader)
            logs._meta = meta
            return logs
        if kind != "logs":
            raise StorageError(
                f"{str(path)!r} holds the trajectory of an HDF5StorageWriter. Read it with "
                "`spoolax.open`."
            )
        parts: dict[str, list[tuple[Any, Series]]] = {}
        for name in reader.groups:
            group = reader.focus_group(name)
            rows = group[:]
            for key, value in rows["values"].items():
                one = _series(rows, value, group.about)
                parts.setdefault(key, []).append((rows["order"], one))
    series: dict[str, Series] = {}
    for key, some in parts.items():
        for number, one in enumerate(_joined(key, some)):
            name = f"{key}#{number}" if number else key
            while number and (name in parts or name in series):  # Another key has that name.
                name += "#"
            series[name] = one
    logs = from_series(series)
    logs._meta = meta
    return logs


def _whole(reader: StorageReader) -> LogDict:
    group = reader.focus_group("logs")
    tree, about = group[...], group.about
    logs = LogDict(
        tree["values"],
        steps=tree["steps"],
        valid=tree["valid"],
        dropped=tree["dropped"],
        backward=tree.get("backward"),  # Old files have none.
        stacked=about["stacked"],
    )
    logs._axes = {key: (axes[0], axes[1]) for key, axes in about["axes"].items()}
    return logs.copy()  # With axes that were not known when it was saved.


def _series(rows: Json, value: Any, about: Json) -> Series:
    valid, lanes = rows.get("valid"), int(about["lanes"])
    own = np.ndim(jax.tree.leaves(value)[0]) - 1 - lanes
    mask = None if valid is None or np.all(valid) else valid
    one = Series(value, rows["steps"], mask, None, True, lanes, own)
    return dataclasses.replace(one, backward=~one.marks) if about.get("backward") else one


def _joined(key: str, parts: list[tuple[Any, Series]]) -> list[Series]:
    """The entries of several tables in order, joined as far as their types agree."""
    joined: list[tuple[Any, Series]] = []
    for order, one in parts:
        for number, (before, other) in enumerate(joined):
            if _types(one) != _types(other):
                continue
            try:
                joined[number] = np.concatenate([before, order]), other.join([one], key)
                break
            except MixedKeyError:
                continue
        else:
            joined.append((order, one))
    return [_sorted(one, np.argsort(order, kind="stable")) for order, one in joined]


def _types(one: Series) -> list[Any]:
    return [leaf.dtype for leaf in jax.tree.leaves(one.value)]


def _sorted(one: Series, sort: Any) -> Series:
    return one.map(lambda x: x[sort])
