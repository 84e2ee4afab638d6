"""The command, and what all its subcommands have in common."""

from __future__ import annotations

import sys

from ..errors import MissingExtraError


def main() -> None:
    """Run the command."""
    try:
        from .commands import app  # Which needs click.
    except MissingExtraError as error:
        print(f"spoolax: {error}", file=sys.stderr)
        sys.exit(2)
    app(prog_name="spoolax")
