"""`spoolax demo`: something to look at."""

from __future__ import annotations

import importlib

from .._common import click, guarded, in_directory

DEMOS = ("train", "md", "ising", "fit")


@click.command()
@click.argument("which", type=click.Choice(DEMOS), default="train")
@in_directory
@guarded
def demo(which: str, directory: str) -> None:
    """Run a small JAX program, watch it, and look at what it logged.

    train: a classifier of two moons. md: a liquid. ising: a magnet. fit: lines of a spectrum.
    """
    from .compiling import starting

    with starting():
        module = importlib.import_module(f".{which}", __package__)
    module.main(directory)
