"""What is shown around a demo: that something happens before it does, and what to do after it."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ..._extras import load


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Show that JAX is being imported, which takes a second or two."""
    console = load("rich.console", "The command `spoolax`", "cli").Console()
    if console.is_terminal:
        with console.status("importing JAX ..."):
            import jax  # noqa: F401

            yield
    else:
        yield


def as_typed_here() -> str:
    """What to type to run this command: its path, if it cannot be found by its name."""
    from ..._runs.places import as_typed

    script = Path(sys.argv[0])
    is_script = script.name == "spoolax" and script.exists()
    return as_typed(script.absolute()) if is_script and not shutil.which("spoolax") else "spoolax"


def look_at(path: Path, key: str, *, log_y: bool = False) -> None:
    """Draw a curve of a run, and say what else there is to see."""
    from ..._runs.figure import panels
    from ..._runs.places import as_typed
    from ..._runs.run import Run
    from .._plot import in_terminal

    with Run(path) as run:
        for name, lines in panels([run], [key]).items():
            print(f"\n{in_terminal(name, lines, log_y=log_y)}")
    shown = as_typed(path)
    directory = str(Path(shown).parent)
    where = "" if directory == "runs" else f" {directory}"
    print(f"The run is in {shown}. To look at it:\n")
    commands = {
        f"view{where}": "curves of all runs, in the browser, live",
        f"ls{where}": "all runs",
        f"show {shown}": "its settings, and every key",
        f"plot {shown} -o plot.png": "all curves in a picture",
        f"tail {shown}": "its last entries; in another terminal, while it runs",
        f"export {shown} -o run.csv": "a table for other programs",
        f"diff{'' if not where else ' -d' + where}": "after another demo: where the two differ",
    }
    typed, widest = as_typed_here(), max(map(len, commands))
    for command, what in commands.items():
        print(f"  {typed} {command:{widest}}  # {what}")
    sys.stdout.flush()
