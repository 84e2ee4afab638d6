"""Reading a store, also while it is written, and after its writer has died."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ...errors import StorageError
from .._store.contract import Array, Status
from .._store.damage import raises_storage_errors
from .._store.structures import Json
from .._store.tables import TableSpec
from ._array import ArrayFile
from ._nodes import STEP, key_of
from ._place import Place
from ._state import StateReader
from ._tensorstore import kvstore, reading

STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted", "crashed")


class ZarrReader:
    """A store that is open for reading."""

    @raises_storage_errors
    def __init__(self, place: Place, path: Path) -> None:
        self._place, self._state = place, StateReader(place, path)
        state = self._state.read()
        self.meta: Json = json.loads(state["meta"])
        self._edition = state["edition"]
        self._tables: dict[str, ZarrTableReader] = {}

    @raises_storage_errors
    def status(self) -> Status:
        """What its writer recorded last."""
        return STATUSES[STATUSES.index(self._state.read()["status"])]

    @raises_storage_errors
    def reason(self) -> str:
        """Why the run ended, if that was recorded."""
        return str(self._state.read()["reason"])

    @raises_storage_errors
    def end(self) -> float:
        """When the run ended, in seconds since 1970. NaN if that was not recorded."""
        end = self._state.read()["end"]
        return math.nan if end is None else float(end)

    @raises_storage_errors
    def steps_run(self) -> int:
        """How many steps had run when that was last recorded."""
        return int(self._state.read()["steps_run"])

    def table(self, name: str) -> ZarrTableReader:
        """One of its tables."""
        if name not in self._tables:
            self._tables[name] = ZarrTableReader(self._place, self._state, name)
        return self._tables[name]

    @raises_storage_errors
    def is_current(self) -> bool:
        """Whether the path still leads to this store. If it is gone, nothing replaced it."""
        state = self._state.find()
        return state is None or state["edition"] == self._edition

    def close(self) -> None:
        """Nothing stays open."""
        self._tables.clear()


class ZarrTableReader:
    """A table of a store that is open for reading."""

    @raises_storage_errors
    def __init__(self, place: Place, state: StateReader, name: str) -> None:
        self._place, self._state = place, state
        found = kvstore(place.spec, reading()).read(f"{key_of(name)}/zarr.json").result()
        if found.state != "value":
            raise StorageError(f"The group {name!r} is missing from the store.")
        described: Json = json.loads(found.value)["attributes"]["table"]
        self.spec = TableSpec.from_json(name, described)
        self._step_name = str(described["step"])
        self._arrays: dict[str, ArrayFile] = {}

    @raises_storage_errors
    def row_count(self) -> int:
        """How many rows are committed by now."""
        return max(0, int(self._state.read()["rows"].get(self.spec.name, 0)))

    @raises_storage_errors
    def steps(self, start: int, stop: int) -> Array:
        """The steps of some rows."""
        return self._array(self._step_name, STEP, True).read(start, stop)

    @raises_storage_errors
    def read(self, column: str, start: int, stop: int) -> Array:
        """Some rows of a column."""
        kind = dict(self.spec.columns)[column]
        return self._array(column, kind, self.spec.timed).read(start, stop)

    def _array(self, name: str, kind: Any, timed: bool) -> ArrayFile:
        if name not in self._arrays:
            key = key_of(self.spec.name, name)
            self._arrays[name] = ArrayFile(self._place, key, kind, timed, reading())
        return self._arrays[name]
