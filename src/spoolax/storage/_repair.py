"""Closing a store whose writer died."""

from __future__ import annotations

from pathlib import Path

from ._formats import backend_of
from ._reader import StorageReader
from ._writable import WritableStore


def close_after_crash(path: Path) -> int:
    """Write a store anew, with all rows that were committed, and close it. Return how many."""
    backend = backend_of(path)
    with StorageReader(path, backend=backend) as reader:
        meta, last_written = reader.meta, backend.last_written(path)
    store = WritableStore(
        backend_of(path, meta.get("storage")),
        path,
        lambda old: [old.focus_group(name).spec for name in old.groups] if old else [],
        meta,
        writer="repair",
        resume=True,
    )
    count = sum(store.row_count(name) for name in store.tables)
    store.close("crashed", "Its writer died; the file was repaired.", last_written)
    return count
