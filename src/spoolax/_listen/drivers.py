"""Functions that prepare, compile and run programs by themselves, as fits do.

They cannot be traced, so `spool` and `tap` go around the programs that they run: while such a
function is called, whoever listens to it is known here, and it asks.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from .._logdict.logdict import LogDict

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
F = TypeVar("F", bound=Callable[..., Any])
_wraps: contextvars.ContextVar[tuple[Wrap, ...]] = contextvars.ContextVar("wraps", default=())


def runs_programs(f: F) -> F:
    """Say that a function runs programs by itself, and asks `wrapped` who listens to them."""
    f.__spoolax_runs_programs__ = True  # type: ignore[attr-defined]
    return f


def is_running_programs(f: Any) -> bool:
    return getattr(f, "__spoolax_runs_programs__", False) is True


@contextlib.contextmanager
def around(wrap: Wrap) -> Iterator[None]:
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


def collecting(
    run: Callable[..., Any], spool: Callable[..., Any], kept: list[LogDict]
) -> Callable[..., Any]:
    """A program that keeps what it logs, by way of `spool`, and returns its output alone."""
    spooled = spool(run)

    @functools.wraps(run, updated=())
    def collected(*args: Any) -> Any:
        out, logs = spooled(*args)
        kept.append(logs)
        return out

    return collected


def joined(kept: list[LogDict]) -> LogDict:
    """All that was kept, one after the other."""
    with jax.enable_x64(True):  # They may come from programs with other settings than ours.
        return sum(kept[1:], kept[0]) if kept else LogDict()
