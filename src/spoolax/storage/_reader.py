"""The reader of stores: lazily, also while they are written."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from ..errors import LogTypeError, StorageError
from ..loggers._protocol.paths import StrPath, as_path
from ._group import GroupReader
from ._store.contract import Backend
from ._store.damage import raises_storage_errors
from ._store.lock import status_of
from ._store.structures import Json, encode_name, leaf_names
from ._store.trees import Namespace, rebuild


class StorageReader:
    """Reads a store, also while it is written.

    Args:
        path: Where it is.
        classes: Classes of the pytrees that views returned, by name, to make instances of them.
        backend: What the store is kept in.
    """

    def __init__(
        self,
        path: StrPath,
        classes: Mapping[str, Any] | None = None,
        *,
        backend: Backend,
    ) -> None:
        self.path, self._classes = as_path(path).expanduser().resolve(), classes or {}
        if not isinstance(self._classes, Mapping):
            raise LogTypeError(
                f"`classes` are classes by name, such as {{'State': State}}, not {classes!r}."
            )
        self._backend, self._lock = backend, backend.lock(self.path)
        self._open()

    # `Reader[Schema](path)` says in code what the schema was; it makes no difference.
    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)

    def __repr__(self) -> str:
        return f"<{str(self.path)!r}: {self.status}, {self.steps_run} steps; {self._known()}>"

    @raises_storage_errors
    def _open(self) -> None:
        store = self._backend.open(self.path)
        try:
            self.meta: Json = store.meta
            self._schema: Json = self.meta["schema"]
            self._groups = tuple(leaf_names(self._schema))
        except BaseException:
            store.close()
            raise
        self._store, self._is_open = store, True

    def _reopen_if_replaced(self) -> None:
        """Open the store again if another has taken its place, as when groups were added to it."""
        if self._is_open and not self._store.is_current():
            self.close()
            self._open()

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups. A `SaveLogger` may add some during the run."""
        self._reopen_if_replaced()
        return self._groups

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        if self._is_open:
            self._is_open = False
            self._store.close()

    @property
    def status(self) -> str:
        """The status of the run.

        "running"; "finished"; "interrupted" (by Ctrl-C or `spoolax.StopRun`); "failed" (something
        else was raised); or "crashed" (its writer died).
        """
        self._reopen_if_replaced()
        return status_of(self._lock, self._store)

    @property
    def reason(self) -> str:
        """Why the run ended, if it did not just come to its end: the first 500 characters or so."""
        self._reopen_if_replaced()
        return self._store.reason()

    @property
    def steps_run(self) -> int:
        """How many steps had run when rows were last written."""
        return self._store.steps_run()

    def focus_group(self, which: str | Callable[[Any], Any]) -> GroupReader:
        """A group, by name or by a function of the schema: `lambda s: s["frames"]`, `s.frames`."""
        if isinstance(which, str):
            name = which if which in self.groups else encode_name(which)
        else:
            schema = _attributes(rebuild(self._schema, str, {}))
            try:
                name = which(schema)
            except (KeyError, AttributeError, IndexError, TypeError) as error:
                raise StorageError(f"There is no such group; there are {self._known()}.") from error
        if not isinstance(name, str) or name not in self.groups:
            raise StorageError(f"There is no group {name!r}; there are {self._known()}.")
        return GroupReader(self, name)

    def steps(self, which: str | Callable[[Any], Any]) -> np.ndarray[Any, Any]:
        """The steps at which the rows of a group were written."""
        return self.focus_group(which).steps

    def _known(self) -> str:
        return ", ".join(map(repr, self.groups))


def _attributes(tree: Any) -> Any:
    """Give the groups of dictionaries attributes as well."""
    if isinstance(tree, dict):
        return Namespace({name: _attributes(child) for name, child in tree.items()})
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_attributes, tree))
    return tree
