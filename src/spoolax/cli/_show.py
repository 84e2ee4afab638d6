"""`spoolax show`: what a run is, and what it has logged."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from .._show import words
from .._show.curves import spans_decades, sparkline
from ._common import (
    as_json_option,
    click,
    guarded,
    in_directory,
    opened,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from .._runs.curve import Curve
    from .._runs.run import Run

ROWS = 12  # Values of a key that are shown.


@click.command()
@click.argument("run", default="last")
@click.argument("key", default="")
@in_directory
@as_json_option
@guarded
def show(run: str, key: str, directory: str, as_json: bool) -> None:
    """Show a run: its settings and status, and a small curve of every key."""
    with opened(run, directory) as one:
        if as_json:
            print_json(_described(one) if not key else _values(one[key].still()))
        elif key:
            _show_key(one[key].still())
        else:
            _show_run(one)


def _show_run(run: Run) -> None:
    about = [("run", str(run.path)), ("status", run.status or "-")]
    if run.reason:
        about.append(("because", run.reason))
    took = "" if run.duration is None else f", took {words.duration(run.duration)}"
    meta = run.meta
    about.append(("began", f"{words.moment(run.start)}{took}"))
    about.append(("size", words.size(run.size)))
    if "command" in meta:
        about.append(("command", shlex.join(meta["command"])))
    if meta.get("host"):
        about.append(("host", str(meta["host"])))
    if meta.get("commit"):
        about.append(("commit", str(meta["commit"])[:12]))
    config = meta.get("config")
    settings = config if isinstance(config, dict) else {} if config is None else {"": config}
    for name, setting in settings.items():
        about.append((f"config {name}".strip(), str(setting)))
    widest = max(len(name) for name, _ in about)
    for name, text in about:
        print(f"{name:{widest}}  {text}")
    print()
    rows = [_row(key, curve) for key, curve in run.curves().items()]
    if rows:
        header = ["key", "values", "type", "last", "lowest", "highest", "course"]
        print_table(header, rows, right=(1, 3, 4, 5), less=["type", "lowest", "highest"])
    else:
        print("Nothing was logged.")


def _row(name: str, curve: Curve) -> list[str]:
    sizes = f"[{'x'.join(map(str, curve.shape))}]" if curve.shape else ""
    count = len(curve)
    if not count:
        return [name, "0", curve.dtype.name + sizes, "", "", "", ""]
    mean, low, high = curve.spread()
    real_low, real_high = low[low == low], high[high == high]
    bounds = [_bound(real_low.min(initial=math.inf)), _bound(real_high.max(initial=-math.inf))]
    last = words.value(curve[-1]) if not curve.shape else words.number(float(mean[-1]), 5)
    return [name, str(count), curve.dtype.name + sizes, last, *bounds, _course(mean.tolist(), 32)]


def _course(values: list[float], most: int) -> str:
    """A small curve, and on which scale it is, if that is not what one expects."""
    return sparkline(values, most) + "  log" * spans_decades(values)


def _bound(x: float) -> str:
    return words.number(float(x), 4) if math.isfinite(x) else ""


def _show_key(curve: Curve) -> None:
    print(repr(curve)[1:-1])
    if not len(curve):
        return
    print(_course(curve.numbers().tolist(), 64))
    count = len(curve)
    steps, values = curve.steps, curve[-ROWS:] if count > ROWS else curve[:]
    print_table(
        ["step", "value"],
        [[str(s), words.value(v)] for s, v in zip(steps[-len(values) :], values, strict=True)],
        right=(0,),
    )
    if count > ROWS:
        print(f"The last {ROWS} of {count} values.")


def _described(run: Run) -> dict[str, Any]:
    keys = {
        key: {"values": len(curve), "dtype": curve.dtype.name, "shape": list(curve.shape)}
        for key, curve in run.curves().items()
    }
    return {
        "path": str(run.path),
        **run.about(),
        "meta": {name: value for name, value in run.meta.items() if name != "schema"},
        "keys": keys,
        "runs": list(run.runs),
    }


def _values(curve: Curve) -> dict[str, Any]:
    return {"key": curve.name, "steps": curve.steps, "values": curve[:]}
