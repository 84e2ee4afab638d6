"""Listeners that hear nothing say so, once, in the line of the user that calls the function."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .._jax.primitives import Jaxpr, custom_vjp_call_p
from .._log.cotangents import mark_p
from .._log.entry import Entry, Nodes, entries
from .._walk.counts import Count
from .._warn import warn
from ..errors import NothingSelectedWarning
from .callables import name_of
from .drivers import is_driven
from .options import Options

_OURS = "spoolax."  # How the tags of what `watch` and `progress` log begin.

_marks = Count(lambda eqn: eqn.primitive is mark_p)
_backward_rules = Count(lambda eqn: eqn.primitive is custom_vjp_call_p)
_have_logged: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_silence(
    f: Callable[..., Any], closed: Jaxpr, found: Iterable[Nodes], options: Options
) -> None:
    """Warn if a listener gets nothing of what a function logs, and say why."""
    if () in (options.argnames, options.tags):  # That nothing is selected is intended.
        return
    all_entries = [entry for nodes in found for entry in entries(nodes)]
    there = [e for e in all_entries if not any(t.startswith(_OURS) for t in e.meta.tags)]
    if any(options.selects(key, entry) for entry in there for key in entry.data):
        _remember(f)
    elif there:
        warn(_why_none(there, options), NothingSelectedWarning)
    elif not (is_driven() or _has_logged(f) or _backward_rules.within(closed)):
        # Programs of drivers are not the user's. Backward rules may log when they are run.
        name = name_of(f)
        why = (
            "Its `log_grad` calls log in the backward pass: wrap the function that has one, as in "
            f"`spoolax.spool(jax.grad({name}))`."
            if _marks.within(closed)
            else "Call `spoolax.log` in it; or, if a `spool` inside it takes all of it, give that "
            "one `keep_logs=True`."
        )
        warn(f"Nothing is heard: `{name}` logs nothing. {why}", NothingSelectedWarning)


def _why_none(there: list[Entry], options: Options) -> str:
    keys = sorted({key for entry in there for key in entry.data})
    tags = sorted({tag for entry in there for tag in entry.meta.tags})
    if all(entry.meta.taken for entry in there):
        return (
            f"Nothing is heard: a `tap` inside takes {keys}. Give that one `keep_logs=True` to "
            "leave them for others too."
        )
    asked = ", ".join(
        f"{name}={value!r}"
        for name, value in (("argnames", options.argnames), ("tags", options.tags))
        if value is not None
    )
    if asked:
        return f"Nothing is heard: {asked} selects none of the keys {keys} with tags {tags}."
    return (
        f"Nothing is heard: {keys} are logged with `explicit=True`, so they have to be asked "
        "for, with `argnames` or `tags`."
    )


def _remember(f: Callable[..., Any]) -> None:
    with contextlib.suppress(TypeError):  # It cannot be hashed, or not be referred to weakly.
        _have_logged.add(f)


def _has_logged(f: Callable[..., Any]) -> bool:
    """Say whether a function has logged when it was called in another way."""
    try:
        return f in _have_logged
    except TypeError:
        return False
