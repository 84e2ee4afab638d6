"""The writer of trajectories: a logger whose states go into a file that survives a crash."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from .._logdict.logdict import LogDict
from ..errors import LogValueError
from ..loggers._protocol.paths import StrPath, run_path
from ..loggers._protocol.runs import RunInfo
from ._book import Book, check_mode, claimed
from ._h5md import add_h5md, check_h5md
from ._h5py import filters
from ._heal import check_same
from ._lock import Lock
from ._meta import gathered
from ._schema import Group, checked_schema
from ._store import Store
from ._table import Form


class HDF5StorageWriter(Store):
    """Writes the states of a run into an HDF5 file, as a schema says.

    `log` copies what is due on the device and returns; another thread writes. What was written up
    to the last second is there after a crash, and can be read while the run goes on. An error of
    the writing is raised by the next `log`, and at the end. Needs the extra `spoolax[hdf5]`.

    Args:
        path: The file.
        schema: A pytree (dictionary, dataclass, ...) of `WriterGroupConfig`s.
        state: A state like those that will be logged, for the shapes of the arrays.
        total_steps: How many steps there will be, if it is known. Just a hint.
        mode: "x" refuses a file that is there, "w" replaces it.
        resume: Go on with a file that is there: True, or the step after which to go on; rows after
            it are dropped.
        attributes: Anything to be stored with it, by name.
        config: The settings of the run: a dictionary or dataclass.
        compression: "gzip", "lzf", "zstd" (with the extra `spoolax[zstd]`), or None.
        layout: "h5md" to let programs for molecular dynamics, such as MDAnalysis, find the leaves
            that are called position, velocity, force, box and time.
        units: The units of leaves, by name.

    Examples:
        >>> import jax.numpy as jnp, tempfile
        >>> from spoolax.loggers import EveryNStep, Once
        >>> from spoolax.storage import HDF5StorageReader, HDF5StorageWriter, WriterGroupConfig
        >>> path = tempfile.mkdtemp() + "/trajectory.h5"
        >>> schema = {
        ...     "start": WriterGroupConfig(lambda s: {"x": s["x"]}, Once()),
        ...     "frames": WriterGroupConfig(lambda s: {"x": s["x"]}, EveryNStep(2)),
        ... }
        >>> with HDF5StorageWriter(path, schema, {"x": jnp.float32(0)}) as writer:
        ...     for i in range(5):
        ...         writer.log({"x": jnp.float32(i)}, i)
        >>> with HDF5StorageReader(path) as reader:
        ...     reader.focus_group("frames")[:]["x"].tolist(), reader.steps("frames").tolist()
        ([0.0, 2.0, 4.0], [0, 2, 4])
    """

    def __init__(
        self,
        path: StrPath,
        schema: Any,
        state: Any,
        total_steps: int | None = None,
        *,
        mode: str = "x",
        resume: bool | int = False,
        attributes: Mapping[str, Any] | None = None,
        config: Any = None,
        compression: str | None = None,
        layout: str | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 0):
            raise LogValueError(f"`total_steps` is a number of steps, not {total_steps!r}.")
        self.path, self._mode, self._resume = Path(path), mode, check_mode(mode, resume)
        self._structure, configs = checked_schema(schema)
        self._groups = [Group(name, one, state) for name, one in configs]
        self._total, self._about = total_steps, (attributes, config)
        self._options = filters(compression)
        self._taking = threading.Lock()
        self._forms = [Form(g.name, g.structure, g.columns, not g.once) for g in self._groups]
        self._layout, self._units = layout, dict(units or {})
        if layout == "h5md":
            check_h5md(self._forms)
        elif layout is not None:
            raise LogValueError(f"`layout={layout!r}` is not known: there is 'h5md', or None.")
        unknown = self._units.keys() - {leaf for form in self._forms for leaf, _ in form.columns}
        if unknown:
            raise LogValueError(f"`units` has {min(unknown)!r}, but no view returns that.")

    def __enter__(self) -> Self:
        self.prepare()
        resume = self._resume is not False
        with claimed(self.path, self._mode, resume, "HDF5StorageWriter") as (self.path, lock):
            self._open(lock)
        return self

    def _open(self, lock: Lock) -> None:
        meta = {**gathered(*self._about), "schema": self._structure, "total_steps": self._total}
        self._book = Book(self.path, lock, meta, self._total, self._options, self._for_others)
        if self._resume is not False and self.path.exists():
            check_same(self.path, self._forms)
            self._book.resume(self._forms, self._resume)
            self._ran = self._book.ran
        else:
            self._book.open(self._forms)
        for group in self._groups:
            if self._book.tables[group.name].rows:
                group.schedule.taken()
        self._pending: dict[str, list[tuple[int, list[Any]]]] = {g.name: [] for g in self._groups}

    def _for_others(self, file: Any, forms: Sequence[Form]) -> None:
        """Add what other programs look for."""
        for form in forms:
            for leaf in self._units.keys() & set(file[form.name]):
                # H5MD has the one, netCDF and xarray the other.
                file[form.name][leaf].attrs.update(
                    {"unit": self._units[leaf], "units": self._units[leaf]}
                )
        if self._layout == "h5md":
            add_h5md(file, forms)

    def log(self, state: Any, step: int) -> None:
        """Store what is due at a step."""
        self.check()
        if type(step) is not int or not -(2**63) <= step < 2**63:
            raise LogValueError(
                f"Steps are stored as integers of 64 bits, so {step!r} cannot be one."
            )
        self._ran += 1
        for group in self._groups:
            with self._taking:  # Or two threads might both be the first.
                if not group.schedule.due(step):
                    continue
                try:
                    arrays = group.take(state, step)
                except KeyError:
                    if isinstance(state, LogDict):
                        continue  # An entry of another `log` call, with other keys.
                    raise
                group.schedule.taken()
                self.hand_over((group, step, arrays), group.nbytes)

    def wants(self, step: int) -> bool:
        """Say whether any group stores the step."""
        return any(group.schedule.due(step) for group in self._groups)

    def fork(self, run: RunInfo) -> HDF5StorageWriter:
        """Each run has a file of its own."""
        return self.remade(path=run_path(self.path, run))

    def keep(self, item: tuple[Group, int, list[Any]]) -> None:
        """Keep a row."""
        group, step, arrays = item
        self._pending[group.name].append((step, [np.asarray(x) for x in arrays]))
        self.kept(group.nbytes)

    def write(self) -> None:
        """Write all rows that wait."""
        for group in self._groups:
            rows = self._pending[group.name]
            if rows:
                steps, arrays = zip(*rows, strict=True)
                self._book.append(group.name, steps, group.columns_of(arrays))
                rows.clear()
