"""`spoolax fit`: fit a formula to columns of a file."""

from __future__ import annotations

from ..errors import LogValueError
from ._common import as_json_option, click, guarded, print_json


@click.command()
@click.argument("data", metavar="DATA.csv")
@click.option("--model", "-m", required=True, help="Such as 'a*exp(-b*x)+c'.")
@click.option("--x", default="x", show_default=True, help="The column that `x` is.")
@click.option("--y", default="y", show_default=True, help="The column to fit.")
@click.option("--sigma", default=None, help="The column of the errors of y.")
@click.option("--p0", default="", help="Where to start: 'a=2, b=0.1'. By default, 1.")
@click.option("--plot", default=None, help="Draw data, fit and residuals into this file.")
@as_json_option
@guarded
def fit(
    data: str,
    model: str,
    x: str,
    y: str,
    sigma: str | None,
    p0: str,
    plot: str | None,
    as_json: bool,
) -> None:
    """Fit a formula in x to a column of a table. All other names in it are parameters.

    It may have + - * / **, numbers, pi, and functions such as exp, log, sqrt, sin, cos, tanh.
    """
    from ..fit import fit_file  # Which needs JAX.

    found = fit_file(data, model, x, y, sigma=sigma, p0=_start(p0), plot=plot)
    if as_json:
        values = zip(found.names, found.x, found.perr, strict=True)
        parameters = {name: {"value": v, "error": e} for name, v, e in values}
        about = {"success": bool(found.success), "message": found.message}
        print_json({"parameters": parameters, **about, "cost": found.cost})
    else:
        print(found)
    if plot is not None and not as_json:
        print(plot)


def _start(text: str) -> dict[str, float] | None:
    start = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, number = part.partition("=")
        try:
            start[name.strip()] = float(number)
        except ValueError as error:
            raise LogValueError(f"`--p0` is written 'a=2, b=0.1', not {text!r}.") from error
    return start or None
