"""The layout H5MD, which programs for molecular dynamics read.

Nothing is stored twice: where such programs look, there are hard links to the same datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import LogValueError
from .._store.tables import TableSpec

# Names of leaves, and what H5MD calls them.
PARTICLES = {
    "position": "position",
    "positions": "position",
    "velocity": "velocity",
    "velocities": "velocity",
    "force": "force",
    "forces": "force",
    "image": "image",
    "images": "image",
    "mass": "mass",
    "masses": "mass",
    "charge": "charge",
    "charges": "charge",
    "species": "species",
    "id": "id",
}
VECTORS = ("position", "velocity", "force")


def check_h5md(tables: Sequence[TableSpec]) -> None:
    """Refuse tables in which such programs would find nothing, or the wrong thing."""
    for table in tables:
        if table.name.split("/")[0] in ("h5md", "particles", "observables"):
            raise LogValueError(
                f'With `layout="h5md"`, no group can be called {table.name!r}, because H5MD uses '
                "that name. Choose another one."
            )
    if not any(map(_dimension, tables)):
        raise LogValueError(
            '`layout="h5md"` needs a group with a time axis whose view returns arrays of shape '
            f"(particles, dimensions) called {', '.join(VECTORS)}."
        )


def add_h5md(file: Any, tables: Sequence[TableSpec]) -> None:
    """Add the links by which such programs find the datasets of a file."""
    about = file.create_group("h5md")
    about.attrs["version"] = [1, 1]
    about.create_group("creator").attrs.update({"name": "spoolax", "version": "1"})
    about.create_group("author").attrs["name"] = "unknown"
    for table in filter(_dimension, tables):
        # The name that MDAnalysis uses.
        name = "trajectory" if "particles" not in file else table.name
        particles = file.create_group(f"particles/{name}")
        observables = file.require_group(f"observables/{name}")
        group, box = file[table.name], particles.create_group("box")
        box.attrs["dimension"] = _dimension(table)
        leaves = [leaf for leaf, column in table.columns if 0 not in column.shape]
        box.attrs["boundary"] = ["periodic" if "box" in leaves else "none"] * _dimension(table)
        for leaf in leaves:
            if leaf in PARTICLES:
                element = particles.create_group(PARTICLES[leaf])
            elif leaf == "box":
                element = box.create_group("edges")
            else:
                element = observables.create_group(leaf)
            element["value"] = group[leaf]
            element["step"] = group[table.step_name]
            # Many programs need a time as well; if there is none, they get the steps.
            element["time"] = group["time" if "time" in leaves else table.step_name]


def _dimension(table: TableSpec) -> int:
    """How many dimensions the space of a table has if it holds particles; otherwise 0."""
    shapes = {PARTICLES.get(leaf): column.shape for leaf, column in table.columns if table.timed}
    return next((shapes[v][1] for v in VECTORS if len(shapes.get(v, ())) == 2), 0)
