"""The backends: what users call for each of them, and which of them a path gets.

This is the only file that imports backends. Everything else knows them as `Backend`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..loggers._protocol.paths import StrPath
from ._reader import StorageReader
from ._store.contract import Backend
from ._trajectory import TrajectoryWriter
from .hdf5 import HDF5Backend


def backend_of(path: Path) -> Backend:
    """The backend for a path, with its default options."""
    del path  # There is one backend so far.
    return HDF5Backend()


def open_(path: StrPath, classes: Mapping[str, Any] | None = None) -> StorageReader:
    """Open a file that spoolax wrote, for reading.

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


class HDF5StorageReader(StorageReader):
    """Reads a file that spoolax wrote, or is still writing.

    Args:
        path: The file.
        classes: Classes of the pytrees that views returned, by name, to make instances of them.
            Without its class, an instance is a `Namespace` with the same names.

    `meta` is the metadata of the run: "config", "attributes", "start", "host", "command",
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
        super().__init__(path, classes, backend=HDF5Backend())


class HDF5StorageWriter(TrajectoryWriter):
    """Writes the states of a run into an HDF5 file, as a schema says.

    `log` copies what is due and returns; another thread writes it within a second.
    What was written survives a crash, and can be read during the run. If writing fails, the next
    `log` raises the error, and so does the end of the `with` block. Needs the extra
    `hdf5`.

    Args:
        path: The file.
        schema: A pytree (dictionary, dataclass, ...) of `WriterGroupConfig`s.
        state: A state like those that will be logged, for the shapes of the arrays.
        total_steps: How many steps there will be, if that is known. It is only a hint.
        mode: "x" refuses a file that exists, "w" replaces it.
        resume: Continue a file that exists: True, or the last step to keep; rows after it are
            dropped.
        attributes: Anything else to store with the run, by name.
        config: The settings of the run: a dictionary or dataclass.
        compression: "gzip", "lzf", "zstd" (with the extra `zstd`), or None.
        layout: "h5md" lets programs for molecular dynamics, such as MDAnalysis, find leaves called
            position, velocity, force, box and time.
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
        super().__init__(
            HDF5Backend(compression, layout, units),
            path,
            schema,
            state,
            total_steps,
            mode=mode,
            resume=resume,
            attributes=attributes,
            config=config,
        )
