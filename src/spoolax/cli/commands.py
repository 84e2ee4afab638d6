"""The list of commands. Each is imported when it is called."""

from __future__ import annotations

import importlib
from typing import Any

from .. import __version__
from ._common import click, debugging

# What there is, in the order of the help, and the file that has it.
COMMANDS = {
    "demo": ("demos._demo", "Run a small JAX program, and look at what it logged."),
    "ls": ("_ls", "List runs."),
    "show": ("_show", "Show a run: settings, status, and a small curve of every key."),
    "plot": ("_plot", "Draw curves, in the terminal or into a file."),
    "view": ("_view", "Show runs in the browser."),
    "tail": ("_tail", "Print the last entries of a run, and new ones."),
    "export": ("_export", "Write a run as .csv, .json, .npz or .parquet."),
    "diff": ("_diff", "Say where two runs first differ."),
    "check": ("_check", "Read everything in a run, and say what can be read."),
    "repair": ("_check", "Close the files of a run whose writer died."),
    "fit": ("_fit", "Fit a formula to columns of a table."),
    "replay": ("_replay", "Send to a tracker what could not be sent."),
    "doctor": ("_doctor", "Say what is installed, and whether it works."),
    "completion": ("_completion", "Print what makes a shell complete commands."),
}


class Commands(click.Group):  # type: ignore[misc]
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        file, _ = COMMANDS[cmd_name]
        return getattr(importlib.import_module(f".{file}", __package__), cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each of them does."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.command(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="spoolax %(version)s")
@click.option("--debug", is_flag=True, help="Show where errors come from.")
def app(debug: bool) -> None:
    """Look at what JAX programs logged.

    A RUN is a directory in `runs`, or a file of a logger. It can be named by its path, by its name,
    by the beginning of its name (the latest such run), or as `last`.
    """
    debugging.is_on = debug
