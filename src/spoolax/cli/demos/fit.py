"""Fit two overlapping lines of a spectrum, and look at the iterations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import spoolax

from .compiling import look_at

TRUE = (1.0, 4.2, 0.35, 0.6, 5.4, 0.5, 0.2)
START = (0.6, 3.6, 0.6, 0.6, 6.2, 0.6, 0.0)


def model(x: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    """Two Gaussian lines on a background."""
    first = a * jnp.exp(-0.5 * ((x - b) / c) ** 2)
    return first + d * jnp.exp(-0.5 * ((x - e) / f) ** 2) + g


def main(directory: str) -> None:
    """Run it."""
    x = np.linspace(0, 10, 2000)
    noise = 0.05 * np.random.default_rng(0).normal(size=x.size)
    y = np.asarray(model(x, *TRUE)) + noise
    print(f"{x.size} points, two overlapping lines: the iterations of `spoolax.fit.curve_fit`:\n")
    config = {"points": x.size, "start": list(START)}
    with spoolax.run("fit", config, directory=directory, announce=False) as run:
        found = spoolax.fit.curve_fit(model, x, y, p0=START, logger=run)
    print(f"\n{found.message}")
    names = ("height", "place", "width", "height 2", "place 2", "width 2", "background")
    for name, value, error, true in zip(names, found.x, found.perr, TRUE, strict=True):
        print(f"  {name:10}  {value:7.4f} ± {error:.4f}   (true {true})")
    look_at(run.path, "cost", log_y=True)
