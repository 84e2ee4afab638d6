"""A POST to a URL when something happens."""

from __future__ import annotations

import http.client
import json
import queue
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from .._processes import Processes
from .._tap.sinks import reports
from .._threads import start_thread
from ..errors import LogValueError, WebhookError
from ._backoff import Backoff
from ._protocol.as_json import as_json
from ._protocol.frequency import Frequency
from ._protocol.record import Record
from ._protocol.runs import RunInfo
from ._protocol.writer import Viewer, WritingLogger

EVENTS = {"finished": "end", "failed": "failure", "interrupted": "interruption"}
MOST_WAITING = 1000  # Messages.
PAUSES = (0.25, 10.0)  # Seconds before the first retry, and at most; in between they double.


class WebhookLogger(WritingLogger):
    """Sends a POST with JSON when the run ends or fails, or when a condition becomes true.

    The JSON object has `event` ("condition", "end", "failure" or "interruption"), the `step` and
    `values` of the entry (or of the last one), and `error` unless the run has finished. A thread
    of its own sends it, with a timeout and retries, so a slow or absent server does not hold up the
    run. What cannot be delivered is reported, and raised at the end.

    Args:
        url: Where to send it.
        when: "end", "failure" (or an interruption), "always" (any of these), or a function of the
            values that is called for every entry: a message is sent when it turns true, and not
            again while it stays so.
        body: Turns that object into what is sent, such as `lambda event: {"text": str(event)}`.
        headers: Additional headers.
        timeout: Seconds to wait for the server.
        retries: How often to try again.
        view: Takes what to send out of the state.
        every: A number of steps, or a frequency.
        processes: Of several processes, whether the "first" writes, or "each".

    Examples:
        >>> def diverged(values):
        ...     return values["loss"] > 10
        >>> logger = WebhookLogger("http://localhost:8000/hook", when=diverged)
    """

    def __init__(
        self,
        url: str,
        when: str | Callable[[dict[str, Any]], Any] = "always",
        *,
        body: Callable[[dict[str, Any]], Any] = dict,
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        retries: int = 3,
        view: Viewer = None,
        every: Frequency | int | None = None,
        processes: Processes = "first",
    ) -> None:
        super().__init__(view=view, every=every, processes=processes)
        if not callable(when) and when not in ("end", "failure", "always"):
            raise LogValueError(
                f"`when={when!r}` is not known: use 'end', 'failure', 'always', or a function of "
                "the values that says whether to send."
            )
        if not str(url).startswith(("http://", "https://")):
            raise LogValueError(
                f"{url!r} is not a URL to send to: it must begin with http:// or https://."
            )
        for name, number in (("timeout", timeout), ("retries", retries)):
            if not isinstance(number, (int, float)) or number < 0:
                raise LogValueError(f"`{name}` must be a number, not {number!r}.")
        self.takes_entries = self.takes_entries and not callable(when)
        self._url, self._when, self._body = url, when, body
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._timeout, self._retries = timeout, retries
        self._run: int | None = None
        self._last: Record | None = None
        self._was_true = False

    def open(self) -> None:
        """Start the thread that sends."""
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._thread = start_thread(self._work, "spoolax-webhook")

    def write(self, record: Record) -> None:
        """Send a record, if the condition has become true."""
        self._last = record
        if callable(self._when):
            true = bool(self._when(record.values))
            if true and not self._was_true:
                self._send("condition", None)
            self._was_true = true

    def close(self, error: BaseException | None) -> None:
        """Send the last message, and wait until everything has been delivered."""
        assert self.ending is not None
        event = EVENTS[self.ending.status]
        try:
            if self._when in ("end" if event == "end" else "failure", "always"):
                self._send(event, error)
        finally:
            self._queue.put(None)
        if self._thread is None:
            return
        pause_after, attempts = Backoff(*PAUSES).pause_after, range(1, self._retries + 2)
        patience = sum(self._timeout + pause_after(attempt) for attempt in attempts)
        self._thread.join(timeout=patience + 1)
        if self._thread.is_alive():
            raise WebhookError(f"{self._queue.qsize()} messages to {self._url} were not delivered.")

    def fork(self, run: RunInfo) -> WebhookLogger:
        """Each run includes its number in what it sends."""
        logger = self.remade()
        logger._run = run.number
        return logger

    def _send(self, event: str, error: BaseException | None) -> None:
        last = self._last
        what: dict[str, Any] = {
            "event": event,
            "step": None if last is None else last.step,
            "values": {} if last is None else _values(last),
        }
        if self._run is not None:
            what["run"] = self._run
        if error is not None:
            what["error"] = f"{type(error).__name__}: {error}"
        content = json.dumps(self._body(what)).encode()
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put(content)
            if self._thread is None:
                self._queue.put(None)
                self._work()
        else:
            self._sink.fail(
                WebhookError(f"{MOST_WAITING} messages are waiting for {self._url} already.")
            )

    def _work(self) -> None:
        while (content := self._queue.get()) is not None:
            try:
                self._deliver(content, Backoff(*PAUSES))
            except WebhookError as error:
                self._sink.fail(error)

    def _deliver(self, content: bytes, backoff: Backoff) -> None:
        while True:
            request = urllib.request.Request(self._url, content, self._headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self._timeout):
                    return
            except (OSError, ValueError, http.client.HTTPException) as error:
                code = 0
                if isinstance(error, urllib.error.HTTPError):
                    code = error.code
                    error.close()
                backoff.failed(error)
                if backoff.failures > self._retries or 400 <= code < 500:
                    raise WebhookError(
                        f"{self._url} did not accept a message after {backoff.failures} attempts: "
                        f"{error}"
                    ) from error
                reports.info("%s: %s; trying again.", self._url, error)
                backoff.wait()


def _values(record: Record) -> dict[str, Any]:
    written = json.loads(as_json(record))
    return {name: written[name] for name in record.values}
