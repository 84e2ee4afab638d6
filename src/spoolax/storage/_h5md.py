"""The layout H5MD, which programs for molecular dynamics know, of the same data.

Nothing is stored twice: the places where such programs look are further names of the datasets that
are there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import LogValueError
from ._table import Form

# What a leaf of a view may be called, and what it is in H5MD.
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


def check_h5md(forms: Sequence[Form]) -> None:
    """Refuse a schema in which such programs would find nothing, or something else."""
    for form in forms:
        if form.name.split("/")[0] in ("h5md", "particles", "observables"):
            raise LogValueError(
                f'With `layout="h5md"`, no group can be called {form.name!r}, which has a meaning '
                "of its own there. Choose another name."
            )
    if not any(map(_dimension, forms)):
        raise LogValueError(
            '`layout="h5md"` needs a group with a time axis whose view returns arrays of shape '
            f"(particles, dimensions) that are called {', '.join(VECTORS)}."
        )


def add_h5md(file: Any, forms: Sequence[Form]) -> None:
    """Add the names by which programs for molecular dynamics find what is in a file."""
    about = file.create_group("h5md")
    about.attrs["version"] = [1, 1]
    about.create_group("creator").attrs.update({"name": "spoolax", "version": "1"})
    about.create_group("author").attrs["name"] = "unknown"
    for form in filter(_dimension, forms):
        # That is how MDAnalysis calls it.
        name = "trajectory" if "particles" not in file else form.name
        particles = file.create_group(f"particles/{name}")
        observables = file.require_group(f"observables/{name}")
        group, box = file[form.name], particles.create_group("box")
        box.attrs["dimension"] = _dimension(form)
        leaves = [leaf for leaf, stored in form.columns if 0 not in stored.shape]
        box.attrs["boundary"] = ["periodic" if "box" in leaves else "none"] * _dimension(form)
        for leaf in leaves:
            if leaf in PARTICLES:
                element = particles.create_group(PARTICLES[leaf])
            elif leaf == "box":
                element = box.create_group("edges")
            else:
                element = observables.create_group(leaf)
            element["value"] = group[leaf]
            element["step"] = group[form.step]
            # Many programs want a time, too; if there is none, steps have to do.
            element["time"] = group["time" if "time" in leaves else form.step]


def _dimension(form: Form) -> int:
    """How many dimensions the space of a group has, if it holds particles; else 0."""
    shapes = {PARTICLES.get(leaf): stored.shape for leaf, stored in form.columns if form.timed}
    return next((shapes[v][1] for v in VECTORS if len(shapes.get(v, ())) == 2), 0)
