"""`spoolax completion`: what makes a shell complete commands."""

from __future__ import annotations

from ._common import click, guarded

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@guarded
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands.

    For bash: `spoolax completion bash >> ~/.bashrc`.
    """
    from click.shell_completion import get_completion_class

    from .commands import app

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(app, {}, "spoolax", "_SPOOLAX_COMPLETE").source())
