"""`spoolax tail`: follow a run that is being written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .._show import words
from ._common import click, guarded, in_directory, jsonable, opened

if TYPE_CHECKING:
    from .._runs.entries import Logged


@click.command()
@click.argument("run", default="last")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--lines",
    "-n",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="How many old ones.",
)
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Go on with new entries. By default, as long as the run is written.",
)
@in_directory
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each.")
@guarded
def tail(
    run: str, keys: tuple[str, ...], lines: int, follow: bool | None, directory: str, as_json: bool
) -> None:
    """Print the last entries of a run, and new ones as they are written."""
    with opened(run, directory) as one:
        done: dict[object, int] = {}
        if len(one):
            one.filter(*keys)  # Which says if there are no such keys.
        old = _by_step(one.entries_after(done, keys, lines))
        for entry in old[max(0, len(old) - lines) :]:
            print(_line(entry, as_json), flush=True)
        # A file that does not say whether it is being written is followed until Ctrl-C.
        if one.status == "running" if follow is None else follow:
            for entries in one.follow_many(keys, done):
                for entry in _by_step(entries):
                    print(_line(entry, as_json), flush=True)
        if not as_json and one.status:
            print(f"-- {one.status}{f': {one.reason}' if one.reason else ''}")


def _by_step(entries: list[Logged]) -> list[Logged]:
    """Entries in the order of their steps, those of one step in one line if their keys differ."""
    made: list[Logged] = []
    for entry in sorted(entries, key=lambda entry: entry.step):
        if made and made[-1].step == entry.step and not made[-1].values.keys() & entry.values:
            made[-1] = made[-1]._replace(values={**made[-1].values, **entry.values})
        else:
            made.append(entry)
    return made


def _line(entry: Logged, as_json: bool) -> str:
    if as_json:
        line = {"_step": entry.step, "_time": entry.time, **entry.values}
        return json.dumps(jsonable(line))
    shown = "  ".join(f"{key}={words.value(value)}" for key, value in entry.values.items())
    return f"step {entry.step}  {shown}"
