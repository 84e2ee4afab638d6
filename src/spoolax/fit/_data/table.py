"""Columns of a table in a text file, read by pandas."""

from __future__ import annotations

import io
import pathlib
import warnings
from typing import Any

import numpy as np

from ..._extras import load
from ...errors import LogValueError

SEPARATORS = (",", ";", "\t")  # Or else blanks. The first one in the line of names counts.


def read_columns(path: pathlib.Path, names: list[str]) -> dict[str, Any]:
    """Read columns of a file, without the lines that lack a number in one of them."""
    pandas = load("pandas", "`fit_file`", "pandas")
    lines = [line for line in _text(path).splitlines() if line.strip() and line[0] != "#"]
    if not lines:
        raise LogValueError(f"There is nothing in {path}.")
    separator = next((one for one in SEPARATORS if one in lines[0]), r"\s+")
    options = {"sep": separator, "skipinitialspace": True, "index_col": False}
    header = pandas.read_csv(
        io.StringIO(lines[0]), header=None, dtype=str, keep_default_na=False, **options
    )
    known = [name.strip() for name in header.iloc[0]]
    for name in names:
        if name not in known:
            raise LogValueError(
                f"There is no column {name!r} in {path}. Its columns are {', '.join(known)}."
            )
    places = [known.index(name) for name in names]
    table = pandas.read_csv(
        io.StringIO("\n".join(lines)),
        header=0,
        names=range(len(known)),
        usecols=places,
        converters=dict.fromkeys(places, _number),
        **options,
    )
    columns = table[places].to_numpy(float)
    good = np.isfinite(columns).all(1)
    if not good.all():
        warnings.warn(
            f"{np.sum(~good)} of {len(good)} lines of {path} lack a number in one of the columns "
            f"{', '.join(names)}, and are left out.",
            stacklevel=3,
        )
    if not good.any():
        raise LogValueError(f"There are no numbers in the columns {', '.join(names)} of {path}.")
    return {name: columns[good, i] for i, name in enumerate(names)}


def _text(path: pathlib.Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _number(text: str) -> float:
    try:
        return float(text.replace("_", "?"))  # Python would take 1_0 for a number.
    except ValueError:
        return float("nan")
