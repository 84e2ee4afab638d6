"""Drivers: Python functions that compile and run programs themselves, as fits do.

They cannot be traced, so `spool` and `tap` wrap the programs that they run: while a driver is
called, its listeners are kept here, and the driver passes its programs through them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
F = TypeVar("F", bound=Callable[..., Any])
_wraps: contextvars.ContextVar[tuple[Wrap, ...]] = contextvars.ContextVar("wraps", default=())


def driver(f: F) -> F:
    """Mark a function that runs programs itself, and passes them through `wrapped`."""
    f.__spoolax_driver__ = True  # type: ignore[attr-defined]
    return f


def is_driver(f: Any) -> bool:
    return getattr(f, "__spoolax_driver__", False) is True


def is_driven() -> bool:
    """Say whether a driver is running."""
    return bool(_wraps.get())


@contextlib.contextmanager
def listening_around(wrap: Wrap) -> Iterator[None]:
    """Wrap the programs that run inside this context."""
    token = _wraps.set((wrap, *_wraps.get()))
    try:
        yield
    finally:
        _wraps.reset(token)


def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a program in everything that listens to it, innermost first."""
    for wrap in _wraps.get():
        run = wrap(run)
    return run
