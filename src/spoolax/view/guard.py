"""Who may ask: the page that was opened with the token, from this machine, and nobody else."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# The page loads nothing from elsewhere, and nothing else may embed or read it.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Guard:
    """Refuses requests that do not come from the page.

    Any site that is open in the browser can send requests to this machine. So a request has to
    name us as its host (or else a name that somebody made point here did), must not come from
    another site, and has to have the token: in the address that was printed, or in the cookie that
    the page got for it. Nothing can be changed, so nothing but reading is let through.
    """

    def __init__(self, app: Application, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._cookie = f"spoolax-{port}"  # Browsers keep cookies by host, whatever the port.
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # That it starts and ends.
            return
        given = {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}
        refusal = self._refusal(scope, given)
        if refusal:
            await _refuse(send, *refusal)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = {name for name, _ in message["headers"]}
                more = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                more.append((b"set-cookie", cookie.encode()))
                message["headers"] += [(name, text) for name, text in more if name not in kept]
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, given: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused, if it is."""
        host, origin = given.get("host", ""), given.get("origin")
        if host not in self._hosts:
            return 421, "This page is for this machine only."
        if origin is not None and origin not in {f"http://{name}" for name in self._hosts}:
            return 403, "Another site asks for this page."
        # "none": somebody typed the address, or followed a link in a program.
        if given.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "Another site asks for this page."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Runs can only be looked at."
        if not self._has_token(scope, given):
            return (
                401,
                "The token is wrong. Open the address that `spoolax view` printed.",
            )
        return None

    def _has_token(self, scope: Scope, given: dict[str, str]) -> bool:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        # By hand: other programs of this machine have cookies that no parser accepts.
        pairs = (part.strip().partition("=") for part in given.get("cookie", "").split(";"))
        cookies = [value for name, _, value in pairs if name == self._cookie]
        tokens = [*query.get("token", ()), *cookies]
        return any(hmac.compare_digest(one.encode(), self._token.encode()) for one in tokens)


async def _refuse(send: Send, status: int, why: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})
