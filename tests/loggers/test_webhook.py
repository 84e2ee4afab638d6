"""Messages to a real HTTP server, which may have trouble."""

import functools
import http.server
import json
import threading

import jax.numpy as jnp
import pytest

import spoolax
from spoolax import loggers

pytestmark = pytest.mark.once


class Server:
    """A real HTTP server, which answers as it is told."""

    def __init__(self, statuses=()):
        self.received, statuses = [], list(statuses)
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = statuses.pop(0) if statuses else 200
                received.append((status, body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self):
        # It would look only twice a second whether it should shut down.
        serve = functools.partial(self._server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


def test_a_webhook_is_called_on_condition():
    with Server() as server:
        with loggers.WebhookLogger(server.url, lambda values: values["x"] > 2) as logger:
            for i, x in enumerate([0, 3, 4, 1, float("inf")]):
                logger.log({"x": jnp.float32(x)}, i)
        assert [body for _, body in server.received] == [
            {"event": "condition", "step": 1, "values": {"x": 3.0}},
            {"event": "condition", "step": 4, "values": {"x": "Infinity"}},
        ]


def test_a_webhook_is_called_at_the_end_and_on_failure():
    with Server() as server:
        with loggers.WebhookLogger(server.url, body=lambda event: {"text": event}) as logger:
            logger.log({"x": 1}, 7)
        with (
            pytest.raises(RuntimeError),
            loggers.WebhookLogger(server.url, "failure"),
        ):
            raise RuntimeError("crash")
        with loggers.WebhookLogger(server.url, "failure"):
            pass
    (_, first), (_, second) = server.received
    assert first == {"text": {"event": "end", "step": 7, "values": {"x": 1}}}
    assert second == {
        "event": "failure",
        "step": None,
        "values": {},
        "error": "RuntimeError: crash",
    }


def test_a_webhook_tells_an_interruption_from_a_failure():
    with Server() as server:
        for when in ("failure", "end"):
            with pytest.raises(KeyboardInterrupt), loggers.WebhookLogger(server.url, when):
                raise KeyboardInterrupt
        with pytest.raises(spoolax.Converged), loggers.WebhookLogger(server.url, "end"):
            raise spoolax.Converged("flat")
    (_, first), (_, second) = server.received
    assert (first["event"], first["error"]) == ("interruption", "KeyboardInterrupt: ")
    assert second == {"event": "end", "step": None, "values": {}}


def test_a_webhook_is_called_again_if_the_server_has_trouble():
    with Server([500, 503]) as server, loggers.WebhookLogger(server.url, "end"):
        pass
    assert [status for status, _ in server.received] == [500, 503, 200]


def test_a_webhook_that_is_refused_is_reported_at_the_end():
    with Server([404]) as server:
        with (
            pytest.raises(ConnectionError, match="after 1 attempts"),
            loggers.WebhookLogger(server.url, "end"),
        ):
            pass
        assert len(server.received) == 1
    with (
        pytest.raises(ConnectionError, match="after 2 attempts"),
        loggers.WebhookLogger(server.url, "end", retries=1, timeout=1),
    ):
        pass
    with (
        pytest.raises(ConnectionError, match="control characters"),
        loggers.WebhookLogger("http://local host/", retries=0),
    ):
        pass
    with pytest.raises(TypeError), loggers.WebhookLogger(server.url, body=lambda event: object()):
        pass
    with pytest.raises(ValueError, match="URL"):
        loggers.WebhookLogger("example")
    with pytest.raises(ValueError, match="timeout"):
        loggers.WebhookLogger(server.url, timeout=None)
    with pytest.raises(ValueError, match="when"):
        loggers.WebhookLogger(server.url, "sometimes")
