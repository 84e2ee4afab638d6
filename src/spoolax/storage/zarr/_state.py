"""What changes in a store: its rows, its status, and how many steps have run.

All of it is in the attributes of the root group, which is one small object. Replacing that is the
commit: whoever reads it sees what was there before, or what is there now, and nothing in between.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from ...errors import LogFileError, StorageError
from .._store.structures import Json
from ._nodes import group_document
from ._place import ROOT, Place
from ._tensorstore import finish, kvstore, reading, writing

FORMAT = 1


class State:
    """The state of a store that is being written.

    Args:
        place: Where the store is.
        path: What to call it in errors.
        contents: What a reader finds.
    """

    def __init__(self, place: Place, path: Path, contents: Json) -> None:
        self._path, self._store = path, kvstore(place.spec, writing())
        self.contents = contents
        self._generation: bytes | None = None  # Of the object, as we wrote it.

    def commit(self, **changes: Any) -> None:
        """Change something, in one step."""
        finish([self.committing(**changes)], self._path)
        self.committed(**changes)

    def committing(self, **changes: Any) -> Any:
        """Begin to change something; call `committed` when that is done."""
        attributes = {**self.contents, **changes, "written": time.time()}
        # Another writer, or somebody who removed the store, must not be overruled.
        condition = {} if self._generation is None else {"if_equal": self._generation}
        self._pending = self._store.write(ROOT, group_document(attributes), **condition)
        return self._pending

    def committed(self, **changes: Any) -> None:
        """Take note that a change has been written."""
        generation = self._pending.result().generation
        if not generation:
            raise LogFileError(_replaced(self._path))
        self._generation, self.contents = generation, {**self.contents, **changes}

    def check(self) -> None:
        """Raise an error if somebody has removed or replaced the store."""
        found = self._store.read(ROOT, if_not_equal=self._generation).result()
        if found.state != "unspecified":
            raise LogFileError(_replaced(self._path))


def _replaced(path: Path) -> str:
    return f"{str(path)!r} has been removed or replaced while it was being written."


def new_state(meta: Json, steps_run: int, rows: dict[str, int]) -> Json:
    """The state of a store that is about to be written."""
    return {
        "spoolax_format": FORMAT,
        **described(meta),
        "status": "running",
        "reason": "",
        "end": None,
        "steps_run": steps_run,
        "rows": rows,
    }


def described(meta: Json) -> Json:
    """The metadata of a store, and what tells it from one that takes its place.

    Readers open the store again when that changes, as when tables are added. The metadata is text,
    because JSON has no NaN, which settings may have.
    """
    return {"meta": json.dumps(meta), "edition": uuid.uuid4().hex}


class StateReader:
    """The state of a store, as it is now. What has not changed is not read again."""

    def __init__(self, place: Place, path: Path) -> None:
        self._path, self._store = path, kvstore(place.spec, reading())
        self._generation: bytes | None = None
        self._contents: Json | None = None

    def read(self) -> Json:
        """Read it."""
        contents = self.find()
        if contents is None:
            raise StorageError(f"There is no Zarr store at {str(self._path)!r}.")
        return contents

    def find(self) -> Json | None:
        """Read it, if it is there."""
        condition = {} if self._generation is None else {"if_not_equal": self._generation}
        found = self._store.read(ROOT, **condition).result()
        if found.state == "missing":
            return None
        if found.state == "value":
            self._contents = _checked(found.value, self._path)
            self._generation = found.stamp.generation
        return self._contents


def _checked(document: bytes, path: Path) -> Json:
    try:
        attributes = json.loads(document)["attributes"]
        version = attributes["spoolax_format"]
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(f"{str(path)!r} was not written by spoolax.") from error
    if version != FORMAT:
        raise StorageError(
            f"{str(path)!r} has format {version}, and this version of spoolax reads format "
            f"{FORMAT}. Install one that knows it."
        )
    return attributes  # type: ignore[no-any-return]
