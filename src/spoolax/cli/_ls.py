"""`spoolax ls`: list runs."""

from __future__ import annotations

import dataclasses

from .._show import words
from ._common import STATUS_STYLES, as_json_option, click, guarded, print_json, print_table


@click.command()
@click.argument("directory", metavar="[DIR]", default="runs")
@click.option("--most", "-n", default=50, show_default=True, help="How many; 0 for all.")
@as_json_option
@guarded
def ls(directory: str, most: int, as_json: bool) -> None:
    """List runs: when they began, how long they took, how they ended, and their last values."""
    from .._runs.listing import last_values, runs

    found = runs(directory)
    shown = found[-most:] if most else found[:]
    if as_json:
        print_json([{**dataclasses.asdict(one), "path": str(one.path)} for one in shown])
        return
    if not found:
        print(f"There are no runs in {directory!r} yet. `spoolax demo` makes one.")
    else:
        rows = [
            [
                one.name + (f" ({one.sub_runs} inside)" if one.sub_runs else ""),
                one.status or "-",
                words.moment(one.start),
                "" if one.duration is None else words.duration(one.duration),
                "" if one.step is None else str(one.step),
                words.size(one.size),
                last_values(one),
            ]
            for one in shown
        ]
        header = ["run", "status", "began", "took", "step", "size", "last values"]
        less = ["size", "took", "began", "step"]
        print_table(header, rows, right=(3, 4, 5), styles=STATUS_STYLES, less=less)
    if len(shown) < len(found):
        print(f"The latest {len(shown)} of {len(found)} runs. `spoolax ls {directory} -n 0`: all.")
    for path, reason in found.skipped.items():
        print(f"Not a run: {path.name} ({reason})")
