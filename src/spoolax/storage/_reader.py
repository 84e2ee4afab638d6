"""The reader of trajectories: lazily, also while they are written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..errors import LogTypeError, StorageError
from ..loggers._protocol.paths import StrPath
from ._careful import guarded, number_of
from ._file import FORMAT, STATUS
from ._group import GroupReader
from ._h5py import get, h5py
from ._lock import Lock
from ._superblock import Mended, says_it_is_written
from ._tree import Json, Namespace, encoded, leaf_names, rebuilt


class HDF5StorageReader:
    """Reads what an `HDF5StorageWriter` wrote, or is just writing.

    Args:
        path: The file.
        classes: Classes of the trees that views returned, by name, to make them again. Without
            them, what had a class is a `Namespace`, with the same names.

    `meta` has what is known about the run: "config", "attributes", "start", "host", "command",
    "versions", "commit", ...

    Examples:
        >>> import jax.numpy as jnp, tempfile
        >>> from spoolax.storage import HDF5StorageWriter, WriterGroupConfig
        >>> path = tempfile.mkdtemp() + "/trajectory.h5"
        >>> schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
        >>> with HDF5StorageWriter(path, schema, jnp.zeros(2)) as writer:
        ...     for i in range(3):
        ...         writer.log(jnp.ones(2) * i, i)
        >>> with HDF5StorageReader(path) as reader:
        ...     frames = reader.focus_group(lambda s: s["frames"])
        ...     len(frames), frames[-1:]["x"].tolist(), reader.status
        (3, [[2.0, 2.0]], 'finished')
    """

    def __init__(self, path: StrPath, classes: Mapping[str, Any] | None = None) -> None:
        self.path, self._classes = Path(path).expanduser().resolve(), classes or {}
        if not isinstance(self._classes, Mapping):
            raise LogTypeError(
                f"`classes` are classes by name, such as {{'State': State}}, not {classes!r}."
            )
        self._open()

    def __repr__(self) -> str:
        return f"<{str(self.path)!r}: {self.status}, {self.steps_run} steps; {self._known()}>"

    @guarded
    def _open(self) -> None:
        if not self.path.is_file():
            raise StorageError(f"There is no file {str(self.path)!r}.")
        if not h5py().is_hdf5(self.path):
            raise StorageError(f"{str(self.path)!r} is no HDF5 file.")
        written = says_it_is_written(self.path)
        crashed = written and not Lock(self.path).is_held()
        with contextlib.ExitStack() as opened:
            # Where nobody writes, HDF5 must not wait for somebody to mend what is amiss.
            file = opened.enter_context(Mended(self.path)) if crashed else self.path
            swmr = written and not crashed
            self._file = opened.enter_context(
                h5py().File(file, "r", swmr=swmr, libver="latest", rdcc_nbytes=1 << 23)
            )
            self._read_meta()
            self._opened = opened.pop_all()

    def _read_meta(self) -> None:
        if "spoolax_format" not in self._file.attrs:
            raise StorageError(f"{str(self.path)!r} was not written by spoolax.")
        version = get(self._file, "spoolax_format")
        if version != FORMAT:
            raise StorageError(
                f"{str(self.path)!r} has format {version}, and this version of spoolax reads "
                f"format {FORMAT}. Install one that knows it."
            )
        self.meta: Json = json.loads(get(self._file, "meta"))
        self._schema: Json = self.meta["schema"]
        self._groups = tuple(leaf_names(self._schema))
        self._identity = os.stat(self.path)

    @guarded
    def _renew(self) -> None:
        """Open the file again if another has taken its place, as when groups were added to it."""
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(os.stat(self.path), self._identity):
                self.close()
                self._open()

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups. A `SaveLogger` may add some."""
        self._renew()
        return self._groups

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    @property
    @guarded
    def status(self) -> str:
        """How the run ended: "finished", "failed", or "running"; "crashed" if nobody writes."""
        self._renew()
        status = STATUS[int(number_of(self._file, "_status"))]
        if status == "running" and not Lock(self.path).is_held():
            return "crashed"
        return status

    @property
    @guarded
    def steps_run(self) -> int:
        """How many steps the run had when it was last written."""
        return int(number_of(self._file, "_ran"))

    def focus_group(self, which: str | Callable[[Any], Any]) -> GroupReader:
        """A group, by name or by a function of the schema: `lambda s: s["frames"]`, `s.frames`."""
        if isinstance(which, str):
            name = which if which in self.groups else encoded(which)
        else:
            schema = _attributes(rebuilt(self._schema, str, {}))
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


def open_(path: StrPath, classes: Mapping[str, Any] | None = None) -> HDF5StorageReader:
    """Open a file that spoolax has written, for reading.

    Examples:
        >>> import spoolax, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with spoolax.storage.SaveLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 10)
        >>> with spoolax.open(path) as reader:
        ...     reader.status, reader.steps(reader.groups[0]).tolist()
        ('finished', [10])
    """
    return HDF5StorageReader(path, classes)


def _attributes(tree: Any) -> Any:
    """Let groups of a dictionary be found by attribute as well."""
    if isinstance(tree, dict):
        return Namespace({name: _attributes(child) for name, child in tree.items()})
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_attributes, tree))
    return tree
