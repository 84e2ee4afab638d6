"""What commands share: finding runs, printing tables, and errors in one line."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .._extras import load
from ..errors import SpoolaxError
from ..loggers._read_jsonl import finite_or_name

if TYPE_CHECKING:
    from .._runs.run import Run

click: Any = load("click", "The command `spoolax`", "cli")
FAILED, INTERRUPTED = 2, 130
GAP = 3  # Between two columns of a table.
NARROW, NARROWEST = 20, 6  # How wide the last one has to be.

in_directory = click.option(
    "--dir", "-d", "directory", default="runs", metavar="DIR", help="Where runs are."
)
as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for other programs."
)


class _Debugging:
    is_on = False


debugging = _Debugging()


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """What goes wrong is said in one line, and the exit code is 2."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:  # Whoever read our output has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except (SpoolaxError, OSError) as error:
            if debugging.is_on:
                raise
            print(f"spoolax: {error}", file=sys.stderr)
            raise click.exceptions.Exit(FAILED) from None
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            if debugging.is_on:
                raise
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"spoolax: {what}. `spoolax --debug ...` shows where.", file=sys.stderr)
            raise click.exceptions.Exit(FAILED) from None

    return wrapped


def _show_warning(message: Warning | str, *where: Any) -> None:
    """A warning in one line: where it comes from is in our code, not in the user's."""
    del where
    print(f"spoolax: {message}", file=sys.stderr)


def opened(text: str, directory: str) -> Run:
    """Open the run that somebody means."""
    from .._runs.listing import find_run  # Which needs NumPy, as does whatever reads files.
    from .._runs.run import Run

    return Run(find_run(text, directory))


def print_json(what: Any) -> None:
    """Print something as JSON. NaN and infinities are strings."""
    print(json.dumps(jsonable(what), indent=2, default=str))


def jsonable(what: Any) -> Any:
    if isinstance(what, dict):
        return {str(key): jsonable(value) for key, value in what.items()}
    if isinstance(what, (list, tuple)):
        return [jsonable(value) for value in what]
    if hasattr(what, "tolist"):
        return jsonable(what.tolist())
    if isinstance(what, complex):
        return [jsonable(what.real), jsonable(what.imag)]
    return finite_or_name(what) if isinstance(what, float) else what


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    styles: dict[str, str] | None = None,
    less: Sequence[str] = (),
) -> None:
    """Print a table, as wide as it needs to be if nobody looks at it in a terminal.

    In a terminal the last column gets what the others leave, which are never cut off. Where there
    is no room for it, those in `less` are left out, the first of them first.
    """
    box, consoles, tables, texts = (
        load(f"rich.{name}", "The command `spoolax`", "cli")
        for name in ("box", "console", "table", "text")
    )
    console, rows = consoles.Console(), list(rows)
    if not console.is_terminal:
        console = consoles.Console(width=10_000)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    shown, leave_out = list(range(len(header))), [header.index(name) for name in less]

    def left() -> int:
        """The room for the last column."""
        return int(console.width) - sum(widths[number] + GAP for number in shown[:-1])

    while leave_out and left() < min(widths[-1], NARROW):
        shown.remove(leave_out.pop(0))
    if left() < NARROWEST:
        shown.pop()
    table = tables.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number in shown:
        is_last = number == len(header) - 1
        width = min(widths[-1], left()) if is_last else widths[number]
        side = "right" if number in right else "left"
        table.add_column(
            header[number], justify=side, no_wrap=True, overflow="ellipsis", width=width
        )
    for row in rows:
        cells = [row[number] for number in shown]
        table.add_row(*(texts.Text(cell, style=(styles or {}).get(cell, "")) for cell in cells))
    console.print(table, crop=False)


STATUS_STYLES = {
    "running": "bold blue",
    "finished": "green",
    "interrupted": "yellow",
    "failed": "bold red",
    "crashed": "bold red",
}
