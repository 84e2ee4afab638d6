"""Fits of files: a table, a model as text, and a picture of how well it fits."""

from __future__ import annotations

import csv
import functools
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._extras import load
from ..errors import LogValueError
from ._curve_fit import curve_fit
from ._expression import Expression
from ._result import Fit


def fit_file(
    path: str | os.PathLike[str],
    model: str,
    x: str | Sequence[str] = "x",
    y: str = "y",
    *,
    sigma: str | None = None,
    p0: Mapping[str, float] | Sequence[float] | None = None,
    plot: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Fit:
    """Fit a model, written as text, to columns of a table in a file.

    Args:
        path: A file with a line of names and then numbers, separated by commas, semicolons, tabs
            or blanks. Lines without a number in one of the columns are left out.
        model: Such as "a*exp(-b*x)+c". In it, x stands for the column, and all names that are not
            known are parameters.
        x: The name of the independent column; or several, which the model calls by their names.
        y: The name of the dependent column.
        sigma: The name of the column of errors.
        p0: Where to begin, by the names of the parameters, or in their order.
        plot: A picture of data, curve and residuals is written there.
        options: All that `curve_fit` knows.

    Examples:
        >>> import spoolax, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.csv"
        >>> _ = path.write_text("t,signal\\n0,3\\n1,2\\n2,1.5\\n3,1.25\\n")
        >>> spoolax.fit.fit_file(path, "a*exp(-b*x)+c", x="t", y="signal").x.round(3).tolist()
        [2.0, 0.693, 1.0]
    """
    variables = (x,) if isinstance(x, str) else tuple(x)
    table = _table(pathlib.Path(path), [*variables, y, *([sigma] if sigma else [])])
    function = _expression(model, variables)
    xs: Any = table[variables[0]] if len(variables) == 1 else {n: table[n] for n in variables}
    if isinstance(p0, Mapping):
        unknown = [*({*p0} ^ {*function.parameters})]
        if unknown:
            raise LogValueError(
                f"`p0` is about {', '.join(sorted(p0))}, but the parameters of the model are "
                f"{', '.join(function.parameters)}."
            )
        p0 = [p0[name] for name in function.parameters]
    fit = curve_fit(function, xs, table[y], p0, table[sigma] if sigma else None, **options)
    if plot is not None:
        if len(variables) > 1:
            raise LogValueError("`plot` is for one independent column.")
        _plot(pathlib.Path(plot), fit, function, table, variables[0], y, sigma)
    return fit


# The same object for the same text, so that it is compiled once.
_expression = functools.lru_cache(maxsize=64)(Expression)


def _table(path: pathlib.Path, names: list[str]) -> dict[str, Any]:
    """The columns of a file, without lines that have no number in one of them."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise LogValueError(f"There is nothing in {path}.")
    separator = next((one for one in (",", ";", "\t") if one in lines[0]), None)
    if separator is None:
        rows = [line.split() for line in lines]
    else:
        rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    head = [name.strip() for name in rows[0]]
    for name in names:
        if name not in head:
            raise LogValueError(
                f"There is no column {name!r} in {path}: there are {', '.join(head)}."
            )
    places = [head.index(name) for name in names]
    numbers = [[_number(row, place) for place in places] for row in rows[1:]]
    columns = np.array(numbers, float).reshape(-1, len(names))
    good = np.isfinite(columns).all(1)
    if not good.all():
        warnings.warn(
            f"{np.sum(~good)} of {len(good)} lines of {path} have no number in one of the columns "
            f"{', '.join(names)}, and are left out.",
            stacklevel=3,
        )
    columns = columns[good]
    if not len(columns):
        raise LogValueError(f"There are no numbers in the columns {', '.join(names)} of {path}.")
    return {name: columns[:, i] for i, name in enumerate(names)}


def _number(row: list[str], place: int) -> float:
    try:
        return float(row[place].replace("_", "?"))  # Python would take 1_0 for a number.
    except (ValueError, IndexError):
        return float("nan")


def _plot(
    path: pathlib.Path,
    fit: Fit,
    model: Expression,
    table: dict[str, Any],
    x: str,
    y: str,
    sigma: str | None,
) -> None:
    figure = load("matplotlib.figure", "A picture of a fit", "plot").Figure(
        figsize=(7, 5.5), layout="constrained"
    )
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    errors = table[sigma] if sigma else None
    along = np.linspace(table[x].min(), table[x].max(), 400)
    found = np.asarray(model(along, *fit.x))
    left = table[y] - np.asarray(model(table[x], *fit.x))
    style = {"fmt": "o", "ms": 3.5, "lw": 1, "color": "#4477aa", "alpha": 0.8}
    above.errorbar(table[x], table[y], errors, label="data", **style)
    above.plot(along, np.broadcast_to(found, along.shape), color="#cc3311", label=model.text)
    lines = [f"{n} = {v:.5g} ± {e:.2g}" for n, v, e in zip(fit.names, fit.x, fit.perr, strict=True)]
    above.plot([], [], " ", label="\n".join(lines))
    above.legend(frameon=False)
    above.set_ylabel(y)
    below.axhline(0, color="#cc3311", lw=1)
    below.errorbar(table[x], left, errors, **style)
    below.set_ylabel("data - fit")
    below.set_xlabel(x)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
