"""`spoolax replay`: send what a tracker could not be sent."""

from __future__ import annotations

from ._common import click, guarded


@click.command()
@click.argument("path")
@click.option(
    "--to", default="", help="wandb, tensorboard, mlflow or trackio; else as the file says."
)
@guarded
def replay(path: str, to: str) -> None:
    """Send the rows of a file to a tracker: those that could not be sent, or those of any run."""
    from ..loggers import replay as send  # Which needs JAX.

    count = send(path, to or None)
    print(f"{count} rows were sent.")
