"""The addresses that the page asks for, and the server that answers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.resources
import json
import math
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from .._extras import load
from .._runs.lines import Line, axis_of, lines_of, mean_of
from ..errors import LogValueError, SpoolaxError
from . import drawn
from .catalog import Catalog
from .guard import Guard

POLL = 0.5  # Seconds between two looks at the files.
MOST_POINTS = 4000
MOST_RUNS = 2000  # In one panel.
PORTS = 20  # How many to try.
PAGE = Path(__file__).parent / "page"


def application(
    catalog: Catalog, token: str, port: int, ends: Callable[[], bool] = lambda: False
) -> Any:
    """What answers requests, until `ends()`."""
    starlette, routing, responses, static = (
        load(f"starlette.{name}", "`spoolax view`", "view")
        for name in ("applications", "routing", "responses", "staticfiles")
    )
    plotly = importlib.resources.files(load("plotly", "`spoolax view`", "view"))
    library = Path(str(plotly / "package_data" / "plotly.min.js"))

    def answers(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What goes wrong with a run is said in the panel that asked for it."""

        def answer(request: Any) -> Any:
            try:
                return responses.Response(_as_json(make(request)), media_type="application/json")
            except (SpoolaxError, OSError) as error:
                return responses.JSONResponse({"error": str(error)}, status_code=404)
            except Exception as error:  # Anything can be in a file. The page goes on.
                what = f"{type(error).__name__}: {error}"
                return responses.JSONResponse({"error": what}, status_code=500)

        return answer

    def csv(request: Any) -> Any:
        try:
            asked = _Asked(request)
            lines = [(name, line) for name, _, line in _lines(catalog, asked)]
        except Exception as error:
            return responses.PlainTextResponse(f"{error}\n", status_code=404)
        name = "".join(c if c.isalnum() else "-" for c in asked.key)
        plain = name.encode("ascii", "replace").decode().replace("?", "-")
        full = urllib.parse.quote(f"{name}.csv")
        headers = {
            "content-disposition": f"attachment; filename=\"{plain}.csv\"; filename*=UTF-8''{full}"
        }
        text = drawn.as_csv(lines, asked.x)
        return responses.StreamingResponse(text, media_type="text/csv", headers=headers)

    async def changes(request: Any) -> Any:
        events = _events(catalog, request, ends)
        return responses.StreamingResponse(events, media_type="text/event-stream")

    def page(request: Any) -> Any:
        del request
        return responses.FileResponse(PAGE / "index.html")

    def plotly_js(request: Any) -> Any:
        del request
        return responses.FileResponse(library, headers={"cache-control": "max-age=86400"})

    routes = [
        routing.Route("/", page),
        routing.Route("/plotly.js", plotly_js),
        routing.Route("/api/runs", answers(lambda request: catalog.listed())),
        routing.Route("/api/keys", answers(lambda request: _keys(catalog, _Asked(request)))),
        routing.Route("/api/about", answers(lambda request: _about(catalog, _Asked(request)))),
        routing.Route("/api/lines", answers(lambda request: _panel(catalog, _Asked(request)))),
        routing.Route("/api/field", answers(lambda request: _field(catalog, _Asked(request)))),
        routing.Route("/api/csv", csv),
        routing.Route("/api/changes", changes),
        routing.Mount("/page", static.StaticFiles(directory=PAGE)),
    ]
    return Guard(starlette.Starlette(routes=routes), token, port)


class _Asked:
    """What a request asks for, checked."""

    def __init__(self, request: Any) -> None:
        self._given = request.query_params
        self.runs = [name for name in self._given.get("runs", "").split(",") if name][:MOST_RUNS]
        self.key = self._given.get("key", "")
        self.x = self._given.get("x", "step")
        self.kind = self._given.get("kind", "lines")
        self.window = self._number("from"), self._number("to")
        self.points = int(min(MOST_POINTS, max(10, self._number("points") or 1000)))
        self.smooth = min(0.9999, max(0.0, self._number("smooth") or 0.0))
        self.row = int(self._number("row") or 0)
        self.log_x = self._given.get("logx") == "true"
        # Runs that are drawn as their mean have the same name here.
        self.groups = self._given.get("groups", "").split(",") if self._given.get("groups") else []

    @property
    def one_run(self) -> str:
        """The only run."""
        if len(self.runs) != 1:
            raise LogValueError("This is about one run: `runs` must be one id.")
        return str(self.runs[0])

    def _number(self, name: str) -> float | None:
        text = self._given.get(name)
        try:
            number = float(text) if text else None
        except ValueError:
            raise LogValueError(f"`{name}={text}` is not a number.") from None
        return number if number is not None and math.isfinite(number) else None


def _keys(catalog: Catalog, asked: _Asked) -> Any:
    """The keys of some runs, and how they can be drawn."""
    found: dict[str, Any] = {}
    for one in asked.runs:
        with contextlib.suppress(Exception), catalog.opened(one) as run:
            for each in (run, *run.runs.values()):
                for key, curve in each.own_curves().items():
                    about = drawn.described(curve)
                    known = found.setdefault(key, {"runs": [], **about})
                    # In other runs, its values may have another shape.
                    both = [kind for kind in known["kinds"] if kind in about["kinds"]]
                    known["kinds"] = both or (["lines"] if known["kinds"] else [])
                    if one not in known["runs"]:
                        known["runs"].append(one)
    return found


def _about(catalog: Catalog, asked: _Asked) -> Any:
    """Everything that is known about a run."""
    with catalog.opened(asked.one_run) as run:
        meta = {name: value for name, value in run.meta.items() if name != "schema"}
        skipped = {path.name: why for path, why in run.skipped.items()}
        return {"path": str(run.path), **run.about(), "meta": meta, "skipped": skipped}


def _lines(catalog: Catalog, asked: _Asked) -> list[tuple[str, list[str], Line]]:
    """The curves of a key: their names, of which runs they are, and their points."""
    alone: dict[str, tuple[str, Line]] = {}
    wrong: Exception | None = None
    for one in asked.runs:
        try:
            with catalog.opened(one) as run:
                if asked.key in run or any(asked.key in each for each in run.runs.values()):
                    name = catalog.name_of(one)
                    alone[one] = name, lines_of(run, asked.key, asked.x)
        except Exception as error:  # Anything can be in a file. The others are still of use.
            wrong = wrong or error
    if not alone:
        raise wrong or LogValueError(f"None of the runs has {asked.key!r}.")
    if len(asked.groups) != len(asked.runs):
        return [(name, [one], line) for one, (name, line) in alone.items()]
    together: dict[str, list[str]] = {}
    for one, group in zip(asked.runs, asked.groups, strict=True):
        if one in alone:
            together.setdefault(group, []).append(one)
    return [
        (group, members, mean_of([alone[one][1] for one in members]))
        for group, members in together.items()
    ]


def _panel(catalog: Catalog, asked: _Asked) -> Any:
    """What a panel of curves draws."""
    return [
        {
            "name": name,
            "runs": members,
            **drawn.drawn_line(line, asked.window, asked.points, asked.smooth, asked.log_x),
        }
        for name, members, line in _lines(catalog, asked)
    ]


def _field(catalog: Catalog, asked: _Asked) -> Any:
    """What a panel of a run's arrays draws: a heat map, histograms over time, or a frame."""
    with catalog.opened(asked.one_run) as run:
        # Of runs of seeds, the first that has it.
        having = (each for each in run.runs.values() if asked.key in each)
        run = run if asked.key in run else next(having, run)
        curve = run[asked.key].still()
        if asked.kind == "frames":
            return drawn.frame(curve, asked.row)
        draw = drawn.histograms if asked.kind == "histogram" else drawn.heat_map
        return draw(curve, axis_of(run, curve, asked.x), asked.window)


async def _events(catalog: Catalog, request: Any, ends: Callable[[], bool]) -> AsyncIterator[str]:
    """Tell the page which runs have changed, and when there are others."""
    seen = await asyncio.to_thread(catalog.signatures, True)
    yield "retry: 1000\n\n"
    looks, version = 0, catalog.version
    while not ends() and not await request.is_disconnected():
        await asyncio.sleep(POLL)
        looks += 1
        # Runs that have ended hardly ever change, and new ones are looked for less often.
        now = await asyncio.to_thread(catalog.signatures, looks % 10 == 0)
        if looks % 2 == 0 and await asyncio.to_thread(catalog.has_changed):
            await asyncio.to_thread(catalog.listed)
        is_listed, version = catalog.version != version, catalog.version
        # One that was not known counts as well: it may have changed since the page read it.
        changed = [one for one, at in now.items() if seen.get(one) != at]
        seen |= now
        if changed or is_listed:
            yield f"data: {json.dumps({'changed': changed, 'listed': is_listed})}\n\n"
        elif looks % 20 == 0:
            yield ": still here\n\n"


def _as_json(what: Any) -> str:
    return json.dumps(_finite(what), default=str, separators=(",", ":"))


def _finite(what: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    if isinstance(what, dict):
        return {str(name): _finite(value) for name, value in what.items()}
    if isinstance(what, (list, tuple)):
        return [_finite(value) for value in what]
    return None if isinstance(what, float) and not math.isfinite(what) else what


def listening_socket(port: int) -> socket.socket:
    """A socket of this machine only: at this port, or at the next one that is free."""
    for candidate in [port] if port == 0 else range(port, port + PORTS):
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", candidate))
            made.listen(64)
        except OSError:
            made.close()
            continue
        return made
    raise LogValueError(
        f"The ports {port} to {port + PORTS - 1} are in use. Choose another one with `--port`."
    )


class View:
    """A server that shows runs. Its `url` is for whoever may see them.

    Args:
        places: Directories with runs in them, or runs.
        port: Where to begin looking for a free port; 0 takes any.
    """

    def __init__(self, places: Sequence[Path], port: int = 0) -> None:
        uvicorn = load("uvicorn", "`spoolax view`", "view")
        self._socket, token = listening_socket(port), secrets.token_urlsafe(16)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/?token={token}"
        self._catalog = Catalog(places)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(self._catalog, token, self.port, lambda: self._server.should_exit),
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=5,
                lifespan="off",
            )
        )

    def serve(self) -> None:
        """Answer requests until Ctrl-C."""
        threading.Thread(target=self._prepare, daemon=True).start()
        self._server.run(sockets=[self._socket])

    def _prepare(self) -> None:
        """Do what takes a moment before somebody waits for it, and nothing while somebody does."""
        with contextlib.suppress(Exception):  # Whoever asks for it will be told.
            self._catalog.listed()
        time.sleep(3 * POLL)
        importlib.import_module("scipy.signal")  # For smoothing.

    def stop(self) -> None:
        """Answer no more, if `serve` runs on another thread."""
        self._server.should_exit = True
