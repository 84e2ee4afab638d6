"""The entries of a run, one by one, as they were logged."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any, NamedTuple

from .sources import Source


class Logged(NamedTuple):
    """An entry of a run: its step, its values, and when it was logged."""

    step: int
    values: dict[str, Any]
    time: float | None


def new_entries(
    sources: Mapping[str, Source],
    done: dict[Any, int],
    names: tuple[str, ...],
    most: int | None = None,
) -> list[Logged]:
    """Entries of files that are new since `done`, which is brought up to date.

    Args:
        sources: The files, by what their keys begin with.
        done: How many rows of each table have been read.
        names: Keys or patterns. None: everything.
        most: How many of the last ones of each `log` call to read, if not all of them.
    """
    found: list[tuple[Any, Logged]] = []
    for prefix, source in sources.items():
        for number, (rows, keys) in enumerate(source.tables()):
            chosen = {
                column: prefix + key
                for column, key in keys.items()
                if not names or any(fnmatch.fnmatchcase(prefix + key, n) for n in names)
            }
            start, stop = done.get((prefix, number), 0), rows.count()
            start = start if most is None else max(start, stop - most)
            done[prefix, number] = stop
            if not chosen or stop <= start:
                continue
            columns = {key: rows.read(column, start, stop) for column, key in chosen.items()}
            steps = rows.steps(start, stop)
            times = rows.read("time", start, stop) if "time" in rows.shapes else None
            order = rows.read("order", start, stop) if "order" in rows.shapes else steps
            for i, step in enumerate(steps.tolist()):
                values = {key: column[i] for key, column in columns.items()}
                when = None if times is None else float(times[i])
                found.append(((order[i], number), Logged(step, values, when)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]
