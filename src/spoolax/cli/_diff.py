"""`spoolax diff`: where two runs first differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._show import words
from ..errors import LogValueError, StorageError
from ._common import as_json_option, click, guarded, in_directory, opened, print_json, print_table

if TYPE_CHECKING:
    from .._runs.curve import Array, Curve

DIFFERENT = 1


@click.command()
@click.argument("first", metavar="[RUN]", default="")
@click.argument("second", metavar="[RUN]", default="")
@in_directory
@as_json_option
@guarded
def diff(first: str, second: str, directory: str, as_json: bool) -> None:
    """Compare two runs: their settings, and for each key where values of a step first differ.

    Without RUN, the two latest runs; with one, that and the latest. The exit code is 0 if they are
    the same, and 1 if they are not.
    """
    if not first:
        from .._runs.listing import runs

        latest = runs(directory)[-2:]
        if len(latest) < 2:
            raise StorageError(f"There are not two runs in {directory!r} to compare.")
        first, second = (str(one.path) for one in latest)
    with opened(first, directory) as a, opened(second or "last", directory) as b:
        if a.path == b.path:
            raise LogValueError(f"Both are {a.name}. Name two runs: `spoolax ls` lists them.")
        settings = _settings(a.config, b.config)
        mine, theirs = a.curves(), b.curves()
        keys = {key: _compared(mine, theirs, key) for key in {**mine, **theirs}}
        if as_json:
            print_json({"config": settings, "keys": keys})
        else:
            print(f"{a.name} / {b.name}\n")
            if settings:
                rows = [[name, str(x), str(y)] for name, (x, y) in settings.items()]
                print_table(["setting", "first", "second"], rows)
                print()
            rows = [[key, *_words(one)] for key, one in keys.items()]
            print_table(["key", "values", "first difference", "largest"], rows)
    if settings or any(one["different"] for one in keys.values()):
        raise click.exceptions.Exit(DIFFERENT)


def _settings(a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Settings that differ."""
    from .._runs.settings import flat_settings

    one, other = flat_settings(a), flat_settings(b)
    names = dict.fromkeys([*one, *other])
    pairs = {name: (one.get(name, "-"), other.get(name, "-")) for name in names}
    return {name: (x, y) for name, (x, y) in pairs.items() if x != y}


def _compared(a: Mapping[str, Curve], b: Mapping[str, Curve], key: str) -> dict[str, Any]:
    import numpy as np

    if key not in a or key not in b:
        return {"different": True, "only_in": "first" if key in a else "second"}
    x, y = a[key].still(), b[key].still()
    counts = {"values": [len(x), len(y)]}
    if x.shape != y.shape:
        return {"different": True, "shapes": [list(x.shape), list(y.shape)], **counts}
    steps, mine, theirs = _common(x.steps, y.steps)
    alone = [len(x) - len(mine), len(y) - len(theirs)]
    one, other = np.asarray(x[:])[mine], np.asarray(y[:])[theirs]
    same = (one == other) | ((one != one) & (other != other))
    rows = same.reshape(len(steps), math.prod(x.shape)).all(axis=1)
    if rows.all():
        return {"different": any(alone), "alone": alone, **counts}
    at = int(np.argmin(rows))
    kind = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):
        away = np.abs(one.astype(kind) - other.astype(kind))[~same]
    return {
        "different": True,
        "alone": alone,
        **counts,
        "step": int(steps[at]),
        "first": words.value(one[at]),
        "second": words.value(other[at]),
        "largest": float(np.where(np.isnan(away), np.inf, away).max()),
    }


def _common(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """The steps that two curves have in common, and where they are in each of them."""
    import numpy as np

    from .._runs.table import places_of

    places = np.concatenate([places_of(a), places_of(b)])
    rows, found = np.unique(places, axis=0, return_inverse=True)
    mine, theirs = np.split(found.reshape(-1), [len(a)])
    common, i, j = np.intersect1d(mine, theirs, return_indices=True)
    return rows[common, 0], i, j


def _words(one: dict[str, Any]) -> list[str]:
    if "only_in" in one:
        return ["", f"only in the {one['only_in']}", ""]
    counts = " / ".join(map(str, dict.fromkeys(one["values"])))
    if "shapes" in one:
        return [counts, f"other shapes: {one['shapes'][0]}, {one['shapes'][1]}", ""]
    alone = [words.counted(count, "step") for count in one["alone"]]
    only = f"{alone[0]} only in the first, {alone[1]} only in the second"
    if "step" not in one:
        return [counts, only if one["different"] else "the same", ""]
    where = f"step {one['step']}: {one['first']} / {one['second']}"
    return [counts, f"{where}; {only}" if any(one["alone"]) else where, _far(one["largest"])]


def _far(largest: float) -> str:
    return "not finite" if math.isinf(largest) else words.number(largest, 3)
