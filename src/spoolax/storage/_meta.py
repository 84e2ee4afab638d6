"""What is worth knowing about a run: when, where, by which program, with which settings."""

from __future__ import annotations

import dataclasses
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from ..errors import LogTypeError
from ._tree import Json


def gathered(attributes: Mapping[str, Any] | None, config: Any) -> Json:
    """Gather it."""
    return {
        "attributes": plain(dict(attributes or {}), "attributes"),
        "config": plain(config, "config"),
        "start": time.time(),
        "host": socket.gethostname(),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("spoolax", "jax", "h5py", "numpy")},
        "commit": _commit(),
    }


def resumed(before: Json, now: Json) -> Json:
    """What is known about a run that goes on. It keeps the settings that it gets no new ones of."""
    kept = {key: now.get(key) or before.get(key) for key in ("attributes", "config")}
    again = [*before.get("resumed", []), now["start"]]
    return {**now, **kept, "start": before.get("start", now["start"]), "resumed": again}


def plain(value: Any, name: str) -> Any:
    """A setting as JSON can hold it: numbers, strings, lists and dictionaries."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(child, f"{name}.{key}") for key, child in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(child, name) for child in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: plain(getattr(value, f.name), f"{name}.{f.name}") for f in fields}
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return plain(np.asarray(value).tolist(), name)
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
    """The commit of the program, if it is in a repository."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()
