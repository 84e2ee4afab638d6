"""Programs over several processes: what one of them was handed, for all of them.

A program calls the host of one process, whatever devices it runs on. So when it has ended, that
process hands on what has come to it, and says whether it was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .._jax.processes import known_to_all
from .._listen.windows import KeyEntry

Spilled = dict[str, list[KeyEntry]]


def spilled_everywhere(
    spilled: Spilled, types: Mapping[str, KeyEntry], interrupted: bool, like: jax.Array
) -> tuple[Spilled, bool]:
    """Return what came to any of the processes, by key, and whether any was interrupted.

    `types` are those of what is handed over at a time, and `like` is an output of the program.
    """
    counts = [interrupted, *(len(spilled.get(key, ())) for key in types)]
    interrupted, *chunks = known_to_all(np.array(counts, np.int64), like).tolist()
    if interrupted:
        return {}, True
    shared: Spilled = {}
    for (key, kind), count in zip(types.items(), chunks, strict=True):
        if count:
            shared[key] = [_everywhere(spilled.get(key), kind, count, like)]
    return shared, False


def _everywhere(chunks: list[KeyEntry] | None, kind: KeyEntry, count: int, like: Any) -> KeyEntry:
    leaves, tree = jax.tree.flatten(kind)
    each: list[Any] = [None] * len(leaves)
    if chunks is not None:
        each = [np.concatenate(rows) for rows in zip(*map(jax.tree.leaves, chunks), strict=True)]
    whole = [_rows(rows, leaf, count, like) for rows, leaf in zip(each, leaves, strict=True)]
    return jax.tree.unflatten(tree, whole)  # type: ignore[no-any-return]


def _rows(rows: Any, leaf: Any, count: int, like: Any) -> np.ndarray:
    """The rows of one array. Who does not have them gives zeros, which no byte is smaller than."""
    shape = (count * leaf.shape[0], *leaf.shape[1:])
    if rows is None:
        bytes_of = np.zeros(math.prod(shape) * leaf.dtype.itemsize, np.uint8)
    else:
        bytes_of = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    return known_to_all(bytes_of, like).view(leaf.dtype).reshape(shape)  # type: ignore[no-any-return]
