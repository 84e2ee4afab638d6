"""`fit_file`: a table in a file, a model as text, and a plot of how well they agree."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._extras import load
from ..errors import LogFileError, LogValueError
from ._curve_fit import curve_fit
from ._data.table import read_columns
from ._model.expression import Expression
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
    """Fit a model, written as text, to columns of a table in a file. This needs pandas.

    Args:
        path: A file with a line of names and then numbers, separated by commas, semicolons, tabs
            or blanks. Lines that lack a number in one of the columns are left out with a warning.
        model: Such as "a*exp(-b*x)+c". In it, x is the independent column, and all unknown names
            are parameters.
        x: The name of the independent column; or several, which the model uses by name.
        y: The name of the dependent column.
        sigma: The name of the column of errors.
        p0: Where to start, by the names of the parameters, or in their order.
        plot: Where to write a plot of data, curve and residuals.
        options: Anything that `curve_fit` takes.

    Examples:
        >>> import spoolax, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.csv"
        >>> _ = path.write_text("t,signal\\n0,3\\n1,2\\n2,1.5\\n3,1.25\\n")
        >>> spoolax.fit.fit_file(path, "a*exp(-b*x)+c", x="t", y="signal").x.round(3).tolist()
        [2.0, 0.693, 1.0]
    """
    variables = (x,) if isinstance(x, str) else tuple(x)
    table = read_columns(pathlib.Path(path), [*variables, y, *([sigma] if sigma else [])])
    function = _expression(model, variables)
    xs: Any = table[variables[0]] if len(variables) == 1 else {n: table[n] for n in variables}
    if isinstance(p0, Mapping):
        if {*p0} != {*function.parameters}:
            raise LogValueError(
                f"`p0` has values for {', '.join(sorted(p0))}, but the parameters of the model are "
                f"{', '.join(function.parameters)}."
            )
        p0 = [p0[name] for name in function.parameters]
    fit = curve_fit(function, xs, table[y], p0, table[sigma] if sigma else None, **options)
    if plot is not None:
        if len(variables) > 1:
            raise LogValueError("`plot` needs a single independent column.")
        _plot(pathlib.Path(plot), fit, function, table, variables[0], y, sigma)
    return fit


# The same object for the same text, so that it is compiled once.
_expression = functools.lru_cache(maxsize=64)(Expression)


def _plot(
    path: pathlib.Path,
    fit: Fit,
    model: Expression,
    table: dict[str, Any],
    x: str,
    y: str,
    sigma: str | None,
) -> None:
    figure = load("matplotlib.figure", "A plot of a fit", "plot").Figure(
        figsize=(7, 5.5), layout="constrained"
    )
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    errors = table[sigma] if sigma else None
    along = np.linspace(table[x].min(), table[x].max(), 400)
    curve = np.asarray(model(along, *fit.x))
    residuals = table[y] - np.asarray(model(table[x], *fit.x))
    style = {"fmt": "o", "ms": 3.5, "lw": 1, "color": "#4477aa", "alpha": 0.8}
    above.errorbar(table[x], table[y], errors, label="data", **style)
    above.plot(along, np.broadcast_to(curve, along.shape), color="#cc3311", label=model.text)
    lines = [f"{n} = {v:.5g} ± {e:.2g}" for n, v, e in zip(fit.names, fit.x, fit.perr, strict=True)]
    above.plot([], [], " ", label="\n".join(lines))
    above.legend(frameon=False)
    above.set_ylabel(y)
    below.axhline(0, color="#cc3311", lw=1)
    below.errorbar(table[x], residuals, errors, **style)
    below.set_ylabel("data - fit")
    below.set_xlabel(x)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise LogFileError(f"Cannot write {str(path)!r}: {error.strerror}.") from error
