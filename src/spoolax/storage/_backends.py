"""What users call for each of the backends. Everything else knows them as `Backend`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._processes import Processes
from ..loggers._protocol.paths import StrPath
from ._reader import StorageReader
from ._trajectory import TrajectoryWriter
from .hdf5 import HDF5Backend
from .zarr import DEFAULT, ZarrBackend


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
        processes: Of several processes, whether the "first" writes, or "each" a file of its own.

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
        processes: Processes = "first",
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
            processes=processes,
        )


class ZarrStorageReader(StorageReader):
    """Reads a Zarr hierarchy that spoolax wrote, or is still writing.

    Args:
        path: The directory, or the URL of a bucket: see `ZarrStorageWriter`.
        classes: Classes of the pytrees that views returned, by name: see `HDF5StorageReader`.
        endpoint: The address of an S3 service other than Amazon's. By default, that in the
            environment variable `AWS_ENDPOINT_URL`.

    Examples:
        >>> import jax.numpy as jnp, tempfile
        >>> from spoolax.storage import WriterGroupConfig, ZarrStorageReader, ZarrStorageWriter
        >>> path = tempfile.mkdtemp() + "/trajectory.zarr"
        >>> schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
        >>> with ZarrStorageWriter(path, schema, jnp.zeros(2)) as writer:
        ...     for i in range(3):
        ...         writer.log(jnp.ones(2) * i, i)
        >>> with ZarrStorageReader(path) as reader:
        ...     frames = reader.focus_group("frames")
        ...     len(frames), frames[-1:]["x"].tolist(), reader.status
        (3, [[2.0, 2.0]], 'finished')
    """

    def __init__(
        self,
        path: StrPath,
        classes: Mapping[str, Any] | None = None,
        *,
        endpoint: str | None = None,
    ) -> None:
        super().__init__(path, classes, backend=ZarrBackend(endpoint=endpoint))


class ZarrStorageWriter(TrajectoryWriter):
    """Writes the states of a run into a Zarr hierarchy (format 3), as a schema says.

    It keeps what `HDF5StorageWriter` promises, and can also write into buckets. Many chunks are
    written at once. Any program that reads Zarr reads the result: `zarr.open_group(path)`. Needs
    the extra `zarr`.

    Args:
        path: A directory whose name ends in ".zarr", or "s3://bucket/name.zarr", or
            "gs://bucket/name.zarr". Credentials come from the environment, or from where the tools
            of these services keep them. "memory://name.zarr" is in the memory of this process.
        schema: A pytree (dictionary, dataclass, ...) of `WriterGroupConfig`s.
        state: A state like those that will be logged, for the shapes of the arrays.
        total_steps: How many steps there will be, if that is known. It is only a hint.
        mode: "x" refuses a path that exists, "w" replaces what is there.
        resume: Continue a store that exists: True, or the last step to keep; rows after it are
            dropped.
        attributes: Anything else to store with the run, by name.
        config: The settings of the run: a dictionary or dataclass.
        compression: "blosc", "zstd", "gzip", or None.
        units: The units of leaves, by name.
        endpoint: The address of an S3 service other than Amazon's. By default, that in the
            environment variable `AWS_ENDPOINT_URL`.
        processes: Of several processes, whether the "first" writes, or "each" a store of its own.

    Examples:
        >>> import jax.numpy as jnp, tempfile, zarr
        >>> from spoolax.loggers import EveryNStep
        >>> from spoolax.storage import WriterGroupConfig, ZarrStorageWriter
        >>> path = tempfile.mkdtemp() + "/trajectory.zarr"
        >>> schema = {"frames": WriterGroupConfig(lambda s: {"x": s}, EveryNStep(2))}
        >>> with ZarrStorageWriter(path, schema, jnp.float32(0), units={"x": "nm"}) as writer:
        ...     for i in range(5):
        ...         writer.log(jnp.float32(i), i)
        >>> frames = zarr.open_group(path, mode="r")["frames"]
        >>> frames["x"][:].tolist(), frames["step"][:].tolist(), frames["x"].attrs["units"]
        ([0.0, 2.0, 4.0], [0, 2, 4], 'nm')
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
        compression: str | None = DEFAULT,
        units: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(
            ZarrBackend(compression, units, endpoint),
            path,
            schema,
            state,
            total_steps,
            mode=mode,
            resume=resume,
            attributes=attributes,
            config=config,
            processes=processes,
        )
