"""`spoolax check` and `spoolax repair`: files after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import SpoolaxError, StorageError
from ._common import click, guarded, in_directory, opened

if TYPE_CHECKING:
    from .._runs.run import Run

DAMAGED = 1
BLOCK = 10_000  # Rows that are read at once.


@click.command()
@click.argument("run", default="last")
@in_directory
@guarded
def check(run: str, directory: str) -> None:
    """Read everything in a run, and say what can be read.

    The exit code is 1 if something cannot.
    """
    with opened(run, directory) as one:
        print(f"{one.path}: {one.status or 'a file'}{f', {one.reason}' if one.reason else ''}")
        problems = sum(_check_run(each) for each in (one, *one.runs.values()))
        if problems:
            raise click.exceptions.Exit(DAMAGED)
        if one.status == "crashed":
            print("Its writer died. All rows above are safe.")
            print(f"`spoolax repair {run}` closes its files.")


def _check_run(run: Run) -> int:
    problems = 0
    for source in run.sources:
        for number, (rows, keys) in enumerate(source.tables()):
            count = rows.count()
            what = f"{source.path.name}, table {number}: {count} rows of {', '.join(keys.values())}"
            try:
                for start in range(0, count, BLOCK):
                    stop = min(start + BLOCK, count)
                    rows.steps(start, stop)
                    for column in rows.shapes:
                        rows.read(column, start, stop)
            except SpoolaxError as error:
                print(f"{what}: {error}")
                problems += 1
            else:
                print(what)
    return problems


@click.command()
@click.argument("run")
@in_directory
@guarded
def repair(run: str, directory: str) -> None:
    """Close the files of a run whose writer died, so that any program can read them.

    Nothing that was written is lost. A run that is being written is left alone.
    """
    from .._runs.sources import StoreSource

    with opened(run, directory) as one:
        if one.status == "running":
            raise StorageError(f"{one.name} is being written. Wait until it has ended.")
        crashed = [
            source.path
            for each in (one, *one.runs.values())
            for source in each.sources
            if isinstance(source, StoreSource) and source.is_left_open()
        ]
    if not crashed:
        print("No file was left open, so there is nothing to repair.")
        print(f"Whether all that was written can be read, `spoolax check {run}` tells.")
        return
    from ..storage._repair import close_after_crash  # Which needs JAX.

    for path in crashed:
        print(f"{path}: {close_after_crash(path)} rows")
