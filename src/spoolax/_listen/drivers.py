"""Functions that prepare, compile and run programs by themselves, as fits do.

They cannot be traced, so `spool` and `tap` go around the programs that they run: while such a
function is called, whoever listens to it is known here, and it asks.
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
    """Say that a function runs programs by itself, and asks `wrapped` who listens to them."""
    f.__spoolax_driver__ = True  # type: ignore[attr-defined]
    return f


def is_driver(f: Any) -> bool:
    return getattr(f, "__spoolax_driver__", False) is True


@contextlib.contextmanager
def listening_around(wrap: Wrap) -> Iterator[None]:
    """Let a function go around the programs that are run meanwhile."""
    token = _wraps.set((wrap, *_wraps.get()))
    try:
        yield
    finally:
        _wraps.reset(token)


def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
    """A program with everything around it: first what is closest to it."""
    for wrap in _wraps.get():
        run = wrap(run)
    return run
