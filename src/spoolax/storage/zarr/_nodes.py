"""The documents of Zarr's groups and arrays, their keys, and how arrays are cut into chunks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import LogValueError, StorageError
from .._store.dtypes import ColumnType, column_type
from .._store.structures import MAX_DEPTH, Json
from .._store.tables import TableSpec

ROWS_IN_CHUNK = 8192  # At most. Each chunk is a file.
BYTES_IN_CHUNK = 1 << 20  # Of several rows. The last chunk is written anew with each commit.
BYTES_OF_ROW_IN_CHUNK = 1 << 25  # Larger rows are cut, so that their parts are written at once.
STEP = column_type("int64", (), "")
COMPRESSIONS: dict[str | None, list[Json]] = {
    "blosc": [
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
        }
    ],
    "zstd": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    None: [],
}


def codecs(compression: str | None, itemsize: int) -> list[Json]:
    """How numbers of this size become the bytes of a chunk."""
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS if name)
        raise LogValueError(f"`compression={compression!r}` is not known: use {known} or None.")
    made: list[Json] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    for codec in COMPRESSIONS[compression]:
        settings = dict(codec["configuration"])
        if codec["name"] == "blosc":
            settings["typesize"] = itemsize
        made.append({"name": codec["name"], "configuration": settings})
    return made


def key_of(*names: str) -> str:
    """The key of a node, given names of tables and columns, which are paths themselves.

    A few names mean something to Zarr or to tensorstore. Such a name cannot come from another,
    because `encode_name` writes "%" as "%25".
    """
    parts = [part for name in names for part in name.split("/")]
    if len(parts) > 2 * MAX_DEPTH or any(part in ("", ".", "..") for part in parts):
        raise StorageError(f"{'/'.join(names)[:80]!r} is not a name that spoolax gives to arrays.")
    return "/".join(map(_part, parts))


def _part(name: str) -> str:
    if name.startswith("__"):
        name = f"%5F{name[1:]}"
    if name == "zarr.json" or name.endswith(".__lock"):
        name = name.replace(".", "%2E")
    return name


def group_document(attributes: Mapping[str, Any]) -> bytes:
    """The document of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(document, allow_nan=False).encode()


def array_document(metadata: Json, rows: int | None) -> bytes:
    """The document of an array with this many rows; None: it has no time axis."""
    shape = metadata["shape"] if rows is None else [rows, *metadata["shape"][1:]]
    return json.dumps({**metadata, "shape": shape}, allow_nan=False).encode()


def array_metadata(
    spec: TableSpec,
    column: ColumnType,
    rows: int | None,
    compression: str | None,
    attributes: Json,
    grid: Sequence[int] | None = None,
) -> Json:
    """The metadata of an array.

    Args:
        spec: The table it belongs to.
        column: What is in it.
        rows: How many rows a chunk has at most. None: there is no time axis.
        compression: How chunks are compressed.
        attributes: Its attributes.
        grid: The shape of chunks that fit the pieces of a row, if it is in pieces. Such a row has
            chunks of its own, which nobody else has to read or write again.
    """
    part = tuple(grid) if grid else _row_part(column)
    if rows is not None:
        rows = 1 if grid else max(1, min(rows, BYTES_IN_CHUNK // max(1, column.nbytes)))
    time = [] if rows is None else [0]
    kind = column.stored.kind
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*time, *column.shape],
        "data_type": column.stored.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [*([] if rows is None else [rows]), *part]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(kind, 0),
        "codecs": codecs(compression, column.stored.itemsize),
        "attributes": attributes,
        "dimension_names": [*([spec.step_name] if time else []), *_axis_names(column.shape)],
    }


def _row_part(column: ColumnType) -> tuple[int, ...]:
    """The part of a row that is in one chunk: all of it, unless it is large."""
    part = list(column.shape)
    for axis in range(len(part)):
        size = math.prod(part) * column.stored.itemsize
        pieces = min(part[axis], -(-size // BYTES_OF_ROW_IN_CHUNK))
        part[axis] = -(-part[axis] // pieces)
    return tuple(part)


def _axis_names(shape: tuple[int, ...]) -> list[str]:
    """Names of the axes of a row: those of the same size are the same, except in one array."""
    names: list[str] = []
    for size in shape:
        name, number = f"size_{size}", 2
        while name in names:
            name, number = f"size_{size}_{number}", number + 1
        names.append(name)
    return names
