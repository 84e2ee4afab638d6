"""One writer per prefix of a bucket, as far as that is possible.

A bucket has no locks that end with a process. Instead, an object beside the store says who writes
it and until when, and its writer renews it. If a writer dies, its lease ends within a minute; until
then the run counts as running. Clocks of machines that share a store must agree to some seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import LogFileError

SECONDS = 60.0


class Lease:
    """The right to write a store for some time.

    Args:
        target: What to call the store in errors.
        connect: Opens the object of the lease, whose key is "".
    """

    def __init__(self, target: str, connect: Callable[[], Any]) -> None:
        self._target, self._connect = target, connect
        self._ended, self._writing = threading.Event(), threading.Lock()
        self._generation: bytes | None = None

    def acquire(self) -> None:
        """Take the lease, or raise an error that says who has it."""
        self._store = self._connect()
        found = self._store.read("").result()
        owner, until = _read(found)
        if until > time.time() or not self._write(found.stamp.generation):
            owner = owner or _read(self._store.read("").result())[0]
            raise LogFileError(
                f"{self._target!r} is being written by {owner}. Wait for it to end, or choose "
                "another name."
            )
        self._ended.clear()
        threading.Thread(target=self._renew, name="spoolax-lease", daemon=True).start()

    def _write(self, before: bytes) -> bool:
        """Write the object, if nobody else has written it since."""
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        text = json.dumps({"owner": owner, "until": time.time() + SECONDS})
        after = self._store.write("", text.encode(), if_equal=before).result().generation
        self._generation = after or None
        return bool(after)

    def _renew(self) -> None:
        while not self._ended.wait(SECONDS / 4):
            # A renewal that fails may succeed the next time. Commits notice another writer.
            with self._writing, contextlib.suppress(ValueError, OSError):
                if self._generation is None or not self._write(self._generation):
                    return

    def release(self) -> None:
        """Give it back."""
        self._ended.set()
        with self._writing, contextlib.suppress(ValueError, OSError):  # Else it ends by itself.
            if self._generation is not None:
                self._store.write("", None, if_equal=self._generation).result()
            self._generation = None

    def is_held(self) -> bool:
        """Whether anybody has it."""
        return _read(self._connect().read("").result())[1] > time.time()


def _read(found: Any) -> tuple[str, float]:
    """Who has the lease, and until when."""
    try:
        lease = json.loads(found.value)
        return str(lease["owner"]), float(lease["until"])
    except (ValueError, KeyError, TypeError):  # There is none.
        return "", 0.0
