"""`spoolax export`: a run as a table or as arrays, for other programs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._extras import load
from ..errors import LogFileError, LogValueError
from ._common import click, guarded, in_directory, jsonable, opened

if TYPE_CHECKING:
    from .._runs.curve import Curve


@click.command()
@click.argument("run")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--output", "-o", required=True, help="A .csv, .json, .npz or .parquet file.")
@in_directory
@guarded
def export(run: str, keys: tuple[str, ...], output: str, directory: str) -> None:
    """Write a run as a table with a row for each step (.csv, .json, .parquet), or as arrays (.npz).

    Values that are large arrays are only in .npz files, where `KEY@step` are the steps of KEY.
    """
    path = Path(output)
    if path.suffix not in WRITERS:
        known = ", ".join(WRITERS)
        raise LogValueError(f"Cannot write {output!r}: the name must end with one of {known}.")
    with opened(run, directory) as one:
        curves = one.filter(*keys) if keys else one.curves()
        try:
            draft = path.with_name(f".{path.stem}.draft{path.suffix}")
            rows = WRITERS[path.suffix](draft, curves)
            os.replace(draft, path)
        except OSError as error:
            raise LogFileError(f"Cannot write {output!r}: {error.strerror}.") from error
    print(f"{output}: {rows}")


def _table(curves: Mapping[str, Curve]) -> dict[str, Any]:
    from .._runs.table import table_of

    return table_of(curves)


def _csv(path: Path, curves: Mapping[str, Curve]) -> str:
    table = _table(curves)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(_cells(column) for column in table.values()), strict=True))
    return _said(table)


def _json(path: Path, curves: Mapping[str, Curve]) -> str:
    table = _table(curves)
    columns = [jsonable(column) for column in table.values()]
    rows = [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]
    path.write_text(json.dumps(rows))
    return _said(table)


def _parquet(path: Path, curves: Mapping[str, Curve]) -> str:
    polars = load("polars", "Writing .parquet files", "polars")
    table = _table(curves)
    polars.DataFrame(table).write_parquet(path)
    return _said(table)


def _npz(path: Path, curves: Mapping[str, Curve]) -> str:
    import numpy as np

    arrays: dict[str, Any] = {}
    for key, live in curves.items():
        curve = live.still()
        values = np.asarray(curve[:])
        # NumPy cannot read types back that it does not know.
        arrays[key] = values.astype(np.float32) if values.dtype.kind == "V" else values
        arrays[f"{key}@step"] = curve.steps
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)
    return f"{len(curves)} keys"


def _cells(column: Any) -> list[Any]:
    """NaN stands for a missing value in a table, and for NaN."""
    return ["" if x != x else x for x in column.tolist()]


def _said(table: Mapping[str, Any]) -> str:
    return f"{len(table['step'])} rows, {len(table)} columns"


WRITERS: dict[str, Callable[[Path, Mapping[str, Curve]], str]] = {
    ".csv": _csv,
    ".json": _json,
    ".npz": _npz,
    ".parquet": _parquet,
}
