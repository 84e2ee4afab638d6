"""The reader of trajectories: lazily, also while they are written, and never running what it reads.

A file may be damaged, or made to do harm. So nothing in it is believed: links to other places are
not followed, sizes are compared with what the file really holds, and whatever HDF5 says is wrong
becomes an error of ours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from .._extras import load
from .._logdict import LogDict
from ..errors import LogTypeError, StorageError
from ..loggers._paths import StrPath
from ._dtypes import dtype_of, from_file, stored_of
from ._file import FORMAT, STATUS, Form, get, h5py
from ._lock import Lock
from ._superblock import Mended, says_it_is_written
from ._tree import DEEPEST, Json, Namespace, leaf_names, rebuilt

P = ParamSpec("P")
T = TypeVar("T")
DENSEST = 4096  # How many times smaller than its numbers compressed data can be.
SLACK = 1 << 24


def guarded(f: Callable[P, T]) -> Callable[P, T]:
    """Turn what goes wrong in a damaged file into an error that says so."""

    @functools.wraps(f)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return f(*args, **kwargs)
        except StorageError:
            raise
        except (
            OSError,
            RuntimeError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            MemoryError,
            OverflowError,
            RecursionError,
        ) as error:
            raise StorageError(f"The file is damaged, or none of ours: {error}") from error

    return wrapped


class HDF5StorageReader:
    """Reads what an `HDF5StorageWriter` wrote, or is just writing.

    Args:
        path: The file.
        classes: Classes of the trees that views returned, by name, to make them again. Without
            them, what had a class is a `Namespace`, with the same names.

    Examples:
        >>> import jax.numpy as jnp, tempfile
        >>> from chiplog.storage import HDF5StorageWriter, WriterGroupConfig
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
        self.path, self._classes = Path(path).expanduser(), classes or {}
        self._open()

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
            swmr, locking = written and not crashed, {} if crashed else {"locking": False}
            self._file = opened.enter_context(
                h5py().File(file, "r", swmr=swmr, libver="latest", rdcc_nbytes=1 << 23, **locking)
            )
            self._read_meta()
            self._opened = opened.pop_all()

    def _read_meta(self) -> None:
        if "chiplog_format" not in self._file.attrs:
            raise StorageError(f"{str(self.path)!r} was not written by chiplog.")
        version = get(self._file, "chiplog_format")
        if version != FORMAT:
            raise StorageError(
                f"{str(self.path)!r} has format {version}, and this version of chiplog reads "
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
        status = STATUS[int(self._fresh("_status")[()])]
        if status == "running" and not Lock(self.path).is_held():
            return "crashed"
        return status

    @property
    @guarded
    def steps_run(self) -> int:
        """How many steps the run had when it was last written."""
        return int(self._fresh("_ran")[()])

    def focus_group(self, which: str | Callable[[Any], Any]) -> GroupReader:
        """A group, by name or by a function of the schema: `lambda s: s["frames"]`, `s.frames`."""
        if isinstance(which, str):
            name = which
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

    def _fresh(self, name: str) -> Any:
        """A dataset as it is now, if it is where it should be."""
        data = _found(self._file, name)
        data.refresh()
        return data


def open_(path: StrPath, classes: Mapping[str, Any] | None = None) -> HDF5StorageReader:
    """Open a file that chiplog has written, for reading.

    Examples:
        >>> import chiplog, tempfile
        >>> path = tempfile.mkdtemp() + "/log.h5"
        >>> with chiplog.storage.SaveLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 10)
        >>> with chiplog.open(path) as reader:
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


def _found(group: Any, name: str) -> Any:
    """Find something in a file, step by step, but never outside of it."""
    parts = name.split("/")
    if len(parts) > DEEPEST:
        raise StorageError(f"The file is nested too deeply at {name[:40]!r}.")
    for part in parts:
        link = group.get(part, getlink=True)
        if not isinstance(link, h5py().HardLink):
            raise StorageError(f"{name!r} is missing from the file, or is a link to elsewhere.")
        group = group[part]
    if getattr(getattr(group, "dtype", None), "hasobject", False):
        raise StorageError(f"{name!r} is not of a type that chiplog writes.")
    return group


class GroupReader:
    """The rows of a group. Slices read just what they need."""

    def __init__(self, reader: HDF5StorageReader, name: str) -> None:
        self._reader, self.name = reader, name
        self._load()

    @guarded
    def _load(self) -> None:
        self._file = self._reader._file
        group = _found(self._file, self.name)
        self._structure: Json = json.loads(get(group, "structure"))
        self.is_timed = bool(get(group, "timed"))
        self._steps = _found(group, str(get(group, "step")))
        self._columns: dict[str, tuple[Any, str, tuple[int, ...], str]] = {}
        self.about: Json = json.loads(get(group, "about"))
        types = json.loads(get(group, "types"))
        for leaf in leaf_names(self._structure):
            real, shape, key = types[leaf]
            shape = tuple(int(n) for n in shape)
            data = None if 0 in shape else _found(group, leaf)
            self._columns[leaf] = (data, str(real), shape, str(key))

    @guarded
    def __len__(self) -> int:
        if self._file is not self._reader._file:  # It was opened again.
            self._load()
        self._steps.refresh()
        return int(self._steps.shape[0])

    @property
    @guarded
    def steps(self) -> np.ndarray[Any, Any]:
        """The steps of the rows."""
        return self._rows(self._steps, 0, len(self))

    def __getitem__(self, index: Any) -> Any:
        count = len(self)
        if not self.is_timed:
            if not count:
                raise StorageError(f"The group {self.name!r} was never written.")
            return self._tree(lambda data: data[()])
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            start, stop, stride = index.indices(count)
            if stride > 0:
                return self._tree(
                    lambda data: self._rows(data, start, max(start, stop))[::stride],
                    len(range(start, stop, stride)),
                )
            rows = list(range(start, stop, stride))
            low, high = (min(rows), max(rows) + 1) if rows else (0, 0)
            return self._tree(
                lambda data: self._rows(data, low, high)[[r - low for r in rows]], len(rows)
            )
        if not isinstance(index, (int, np.integer)):
            raise LogTypeError(f"Rows are taken by slices or numbers, not by {index!r}.")
        row = int(index) + (count if index < 0 else 0)
        if not 0 <= row < count:
            raise IndexError(
                f"The group {self.name!r} has {count} rows, so there is no row {index}."
            )
        return self._tree(lambda data: self._rows(data, row, row + 1)[0])

    @property
    def form(self) -> Form:
        """What the group looks like, to whoever writes it."""
        columns = [(leaf, stored_of(*types)) for leaf, types in self.types.items()]
        return Form(self.name, self._structure, columns, self.is_timed, self.about)

    @property
    def types(self) -> dict[str, tuple[str, tuple[int, ...], str]]:
        """The type, the shape and the kind of key of the leaves, by name."""
        return {leaf: (real, shape, key) for leaf, (_, real, shape, key) in self._columns.items()}

    @guarded
    def raw(self, start: int, stop: int) -> list[Any]:
        """Rows as they are in the file, column by column."""
        there = [data for data, *_ in self._columns.values() if data is not None]
        return [
            self._rows(data, start, stop) if self.is_timed else np.asarray(data[()])[None]
            for data in there
        ]

    def to_xarray(self) -> Any:
        """All rows as an `xarray.Dataset`, with the steps as a coordinate."""
        return self._logs().to_xarray()

    def to_pandas(self) -> Any:
        """All rows as a `pandas.DataFrame`: one column per number, and one for the steps."""
        return self._logs().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`."""
        polars = load("polars", "`to_polars`", "polars")
        frame = self.to_pandas()
        return polars.DataFrame({str(name): frame[name].to_numpy() for name in frame.columns})

    def _logs(self) -> LogDict:
        rows, steps = self[:], self.steps
        values = rows if isinstance(rows, dict) else {self.name.rpartition("/")[2]: rows}
        if not self.is_timed:
            return LogDict(values)
        named = {"step": dict.fromkeys(values, steps)}
        return LogDict(values, steps=named, stacked=tuple(values))

    def follow(self, poll: float = 0.2, timeout: float | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield `(steps, rows)` as they are written, until the run has ended."""
        done, waited = 0, time.monotonic()
        while True:
            status = self._reader.status  # Before looking, so that nothing comes in between.
            count = len(self)
            done = min(done, count)  # A run that goes on may have dropped some.
            if count > done:
                yield self.steps[done:count], self[done:count]
                done, waited = count, time.monotonic()
            elif status != "running" or (
                timeout is not None and time.monotonic() - waited > timeout
            ):
                return
            else:
                time.sleep(poll)

    @guarded
    def _tree(self, read: Callable[[Any], Any], rows: int | None = None) -> Any:
        def value(leaf: str) -> Any:
            data, real, shape, key = self._columns[leaf]
            if data is None:
                return np.zeros((*(() if rows is None else (rows,)), *shape), dtype_of(real))
            return from_file(read(data), real, key)

        return rebuilt(self._structure, value, self._reader._classes)

    def _rows(self, data: Any, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Read rows, if there can be that many."""
        data.refresh()
        if stop > data.shape[0]:
            raise StorageError(f"{data.name!r} ends before row {stop}, which is said to be there.")
        row = int(np.prod(data.shape[1:])) * data.dtype.itemsize
        if (stop - start) * row > DENSEST * data.id.get_storage_size() + SLACK:
            raise StorageError(f"{data.name!r} claims to hold more than there is in the file.")
        return np.asarray(data[start:stop])
