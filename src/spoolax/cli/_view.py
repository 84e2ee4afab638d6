"""`spoolax view`: a page that shows runs, in the browser."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from pathlib import Path

from .._runs.listing import find_run
from .._runs.places import as_typed
from ._common import click, guarded

PORT = 6363


@click.command()
@click.argument("what", nargs=-1, metavar="[DIR or RUN]...")
@click.option("--port", "-p", default=PORT, show_default=True, help="Or the next that is free.")
@click.option("--open/--no-open", "opens", default=None, help="Whether to open a browser.")
@guarded
def view(what: tuple[str, ...], port: int, opens: bool | None) -> None:
    """Show runs in the browser: curves of many of them, live.

    Without arguments, those in `runs`. Only this machine can see the page, and only with the
    address that is printed.
    """
    from ..view.server import View  # Which needs starlette and uvicorn.

    _allow_many_files()
    places = [_place(text) for text in what or ("runs",)]
    served = View(places, port)
    if port and served.port != port:
        print(f"Port {port} is in use; this is at {served.port}.")
    print(f"{', '.join(as_typed(place) for place in places)} at {served.url}")
    print("Ctrl-C ends it.", flush=True)
    if _has_screen() if opens is None else opens:
        webbrowser.open(served.url)
    served.serve()


def _place(text: str) -> Path:
    """A directory, which may still be empty or missing, or a run."""
    path = Path(text).expanduser()
    is_there = path.exists() or text == "runs"
    return path.resolve() if is_there else find_run(text).resolve()


def _allow_many_files() -> None:
    """Runs of many seeds are many files, and some systems allow few by default."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _has_screen() -> bool:
    """Whether a browser would have a window. Others would take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
