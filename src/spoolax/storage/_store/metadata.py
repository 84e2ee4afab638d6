"""Metadata of a run: when, where, by which program, with which settings."""

from __future__ import annotations

import dataclasses
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from ...errors import LogTypeError
from .structures import Json
from .tables import TableSpec


def run_metadata(
    attributes: Mapping[str, Any] | None, config: Any, packages: Sequence[str]
) -> Json:
    """The metadata of a run that starts now, with the versions of these packages."""
    names = ("spoolax", "jax", *packages, "numpy")
    return {
        "attributes": as_json(dict(attributes or {}), "attributes"),
        "config": as_json(config, "config"),
        "start": time.time(),
        "host": socket.gethostname(),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "commit": _commit(),
    }


def resumed_metadata(before: Json, now: Json) -> Json:
    """The metadata of a run that is resumed. It keeps the settings that are not given anew."""
    if now["start"] == before.get("start"):  # The same run is written anew.
        return now
    settings = {key: now.get(key) or before.get(key) for key in ("attributes", "config")}
    resumed = [*before.get("resumed", []), now["start"]]
    return {**now, **settings, "start": before.get("start", now["start"]), "resumed": resumed}


def with_schema(meta: Json, tables: Sequence[TableSpec]) -> Json:
    """The metadata of a store with these tables: if there is no schema, it is a flat dictionary."""
    children = [[table.name, {"leaf": table.name}] for table in tables]
    return {"schema": {"kind": "dict", "children": children}, **meta}


def as_json(value: Any, name: str) -> Any:
    """A setting as JSON: numbers, strings, lists and dictionaries."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_json(child, f"{name}.{key}") for key, child in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(child, name) for child in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: as_json(getattr(value, f.name), f"{name}.{f.name}") for f in fields}
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return as_json(np.asarray(value).tolist(), name)
    if callable(value) or hasattr(value, "__fspath__"):
        return getattr(value, "__qualname__", str(value))
    raise LogTypeError(
        f"`{name}` is {value!r}, of type {type(value).__name__}, which cannot be stored. Use "
        "numbers, strings, lists, dictionaries and dataclasses of them."
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working directory, if it is in a git repository."""
    try:
        ran = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
