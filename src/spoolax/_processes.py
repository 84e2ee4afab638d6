"""What the processes of `jax.distributed` do together: the first opens, and the others are told.

Every process runs the same program, so what one of them does alone must not be waited for by the
others for ever: they are told how it went, and if it failed, they fail as well.
"""

from __future__ import annotations

import collections
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ._jax import processes
from .errors import LogValueError, ProcessError

Processes = Literal["first", "each"]
# Seconds to wait for the first process, as long as JAX waits for processes to start; if that has
# opened something that this one has not; and those after which it is said that one waits.
PATIENCE, APART, HINT = 300.0, 30.0, 10.0

_OPENED = "spoolax/opened/"
_reports = logging.getLogger("spoolax")
_asked: collections.Counter[str] = collections.Counter()
_asking = threading.Lock()


def checked_processes(which: Any) -> Processes:
    """Refuse what is not known."""
    if which not in ("first", "each"):
        raise LogValueError(
            f"`processes={which!r}` is not known. Of several processes, use 'first' to write in "
            "process 0, or 'each' to write something in each of them."
        )
    return which  # type: ignore[no-any-return]


def mark() -> str:
    """What tells apart the files of processes: nothing for the first, then `-p0001`, ..."""
    number = processes.index()
    return f"-p{number:04}" if number else ""


def from_first(what: str, make: Callable[[], Any]) -> tuple[bool, Any]:
    """Have process 0 make something; return whether this is that process, and what it made.

    It has to be JSON. `what` names it in errors, and tells it from others: processes may ask for
    different things in different orders, but for the same thing equally often. An error is raised
    on all of them.
    """
    if processes.count() == 1:
        return True, make()
    key = _next_key(_OPENED, what)
    if processes.index() == 0:
        try:
            made = make()
        except BaseException as error:
            processes.tell(key, json.dumps({"error": f"{type(error).__name__}: {error}"}))
            raise
        processes.tell(key, json.dumps({"made": made}))
        return True, made
    told, seconds = processes.hear(key, HINT), PATIENCE
    if told is None:
        others = _not_asked_for()
        seconds = APART if others else PATIENCE
        _reports.warning(
            "%s This process waits for %.0f seconds.", _alone_with(what, others), seconds
        )
        told = processes.hear(key, seconds - HINT)
    if told is None:
        alone = _alone_with(what, _not_asked_for())
        raise ProcessError(f"{alone} This process has waited for {seconds:.0f} seconds.")
    answer = json.loads(told)
    if "error" in answer:
        raise ProcessError(f"Process 0 could not open {what}. {answer['error']}")
    return False, answer["made"]


def _not_asked_for() -> list[str]:
    """What process 0 has opened, and this one has not."""
    opened = {key.rpartition("/")[0] for key in processes.posted(_OPENED)}
    return sorted(opened - _asked.keys())


def _alone_with(what: str, others: Sequence[str]) -> str:
    """Say that process 0 has not opened what this one opens, and what it has opened instead."""
    instead = f", but {', '.join(others)}, which this process has not" if others else ""
    return (
        f"Process {processes.index()} opens {what}. Process 0 has not opened that{instead}. "
        "Open the same loggers on every process, with the same names and paths, without the time "
        "or the host in them; or, to write on this one as well, pass `processes='each'` on all."
    )


def _next_key(folder: str, what: str) -> str:
    """What the processes know something by that they do for the same time."""
    with _asking:
        number = _asked[what]
        _asked[what] += 1
    return f"{folder}{what}/{number}"


def wait_for_all(what: str, seconds: float) -> None:
    """Wait until all processes have come here. Raises an error if that takes too long."""
    if processes.count() == 1:
        return
    if not processes.wait_for_all(_next_key("spoolax/", what), seconds):
        raise ProcessError(
            f"Not all processes came to `{what}` within {seconds:g} seconds. Call it on every "
            "process, or wait longer: pass `timeout=`."
        )
