"""Threads that work in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(target: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread. None: the interpreter is shutting down, and starts none any more.

    Depending on the version of Python, it does so as soon as the main thread has ended, though
    others may run for hours.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
