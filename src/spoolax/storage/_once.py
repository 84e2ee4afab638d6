"""Stores that are written once: one row of one table, and closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._jax.arrays import is_key
from ._formats import backend_of
from ._schema import is_array
from ._store.contract import Status
from ._store.dtypes import column_type_of
from ._store.metadata import run_metadata
from ._store.structures import Json, leaf_names
from ._store.tables import TableSpec
from ._store.trees import leaves, structure_of
from ._writable import WritableStore


def write_once(
    path: Path,
    table: str,
    tree: Any,
    *,
    kind: str,
    writer: str,
    mode: str,
    step: int = 0,
    about: Json | None = None,
) -> None:
    """Store a pytree of arrays as the only row of a table."""
    structure = structure_of(tree, is_array)
    arrays = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves(tree, is_array)]
    named = zip(leaf_names(structure), arrays, strict=True)
    columns = [(name, column_type_of(x, name)) for name, x in named]
    spec = TableSpec(table, structure, columns, False, about or {})
    rows = [np.asarray(jax.random.key_data(x) if is_key(x) else x)[None] for x in arrays]
    backend = backend_of(path)
    meta = {**run_metadata(None, None, backend.packages), "kind": kind}
    store = WritableStore(backend, path, lambda _: [spec], meta, writer=writer, mode=mode)
    status: Status = "failed"
    try:
        store.append(table, [step], rows)
        status = "finished"
    finally:
        store.close(status)
