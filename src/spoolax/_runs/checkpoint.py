"""The last state of a run, kept in a file of its own, to go on from there.

It is any pytree of arrays. What is kept is its arrays by their paths; its classes, and whatever
else belongs to its structure, are those of the state that the program begins with when it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.arrays import type_text
from ..errors import StorageError
from ..storage._formats import backend_of
from ..storage._once import write_once
from ..storage._reader import StorageReader
from ..storage._store.durable import sync
from ..storage._writable import Position

TABLE = "state"


class Progress(NamedTuple):
    """How far a run had come when a state was kept."""

    step: int  # After which the state was.
    positions: Mapping[str, Position]  # In its files, by name.
    # Files that are not among them keep what was logged up to this step, or nothing.
    last_step: int | None = None
    # Steps that are counted for the user, by `log` call: in blocks, and by loggers.
    numbering: Mapping[str, int] = {}
    counts: Mapping[str, int] = {}

    def position(self, file: str) -> Position:
        """Where to go on in a file."""
        return self.positions.get(file, Position(0, 0, self.last_step))


def write_checkpoint(path: Path, state: Any, progress: Progress) -> None:
    """Keep a state, in the place of the one before. A crash leaves one of the two."""
    step, about = progress.step, progress._asdict()
    draft = path.with_name(f".{path.stem}.draft{path.suffix}")
    arrays = _by_path(state)
    write_once(
        draft,
        TABLE,
        arrays,
        kind="checkpoint",
        writer="checkpoint",
        mode="w",
        step=step,
        about=about,
    )
    sync(draft)
    os.replace(draft, path)


def progress_at(path: Path) -> Progress:
    """How far a run had come when its state was kept."""
    with StorageReader(path, backend=backend_of(path)) as reader:
        about = reader.focus_group(TABLE).about
    positions = {file: Position(*at) for file, at in about["positions"].items()}
    return Progress(**{**about, "positions": positions})


def read_checkpoint(path: Path, like: Any) -> Any:
    """The state that was kept, given one with the same structure, types and shardings."""
    with StorageReader(path, backend=backend_of(path)) as reader:
        stored = reader.focus_group(TABLE)[...]
    old, tree = jax.tree.flatten(like)
    wanted = dict(zip(_by_path(like), old, strict=True))
    for name in {**wanted, **stored}:
        mine, theirs = (_type(where.get(name)) for where in (wanted, stored))
        if mine != theirs and not _became(wanted.get(name), stored.get(name)):
            raise StorageError(
                f"The checkpoint {str(path)!r} is of another state: {name!r} is {theirs} there, "
                f"and {mine} in the state that the program begins with. Start a new run, without "
                "`resume`."
            )
    return jax.tree.unflatten(tree, [_placed(stored[name], x) for name, x in wanted.items()])


def _by_path(state: Any) -> dict[str, Any]:
    """The leaves of a pytree, by their paths."""
    found = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path) or "value": _array(x) for path, x in found}


def _array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else np.asarray(x)


def _type(x: Any) -> str:
    return "missing" if x is None else type_text(_array(x))


def _became(begun: Any, stored: Any) -> bool:
    """Whether a number of Python, or an array of NumPy, may have become this in the first step."""
    on_host = begun is not None and not isinstance(begun, jax.Array)
    return on_host and stored is not None and np.shape(begun) == np.shape(stored)


def _placed(value: Any, like: Any) -> Any:
    """A value where another one is: on its devices, or on the host, if it was there."""
    if isinstance(like, jax.Array):
        return jax.device_put(value, like.sharding)
    if value.dtype != np.asarray(like).dtype:
        return jnp.asarray(value)
    return np.asarray(value) if isinstance(like, (np.ndarray, np.generic)) else value.item()
