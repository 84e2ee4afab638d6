"""How many equations of some kind there are in a program, at any depth."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .._jax.anatomy import Call, Cond, anatomy, programs_in
from .._jax.filtered import trace_filtered_if
from .._jax.primitives import Jaxpr, JaxprEqn, open_jaxpr, scan_p, shard_map_p, while_p
from .._log.cotangents import mark_p
from .._log.entry import Loop
from .._log.primitive import listeners_of, listening, log_p, logged


class Count:
    """Counts the equations that a test picks out, and remembers it for every program.

    It does not look into those, nor into equations that are `closed`.
    """

    def __init__(
        self,
        test: Callable[[JaxprEqn], Any],
        closed: Callable[[JaxprEqn], Any] = lambda eqn: False,
    ) -> None:
        self._test, self._closed = test, closed
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __call__(self, eqn: JaxprEqn) -> int:
        """Count in one equation."""
        if self._test(eqn):
            return 1
        return 0 if self._closed(eqn) else sum(map(self.within, programs_in(eqn)))

    def within(self, jaxpr: Jaxpr) -> int:
        """Count in a program."""
        jaxpr, _ = open_jaxpr(jaxpr)
        if jaxpr not in self._counts:
            self._counts[jaxpr] = sum(map(self, jaxpr.eqns))
        return self._counts[jaxpr]


def is_loop(eqn: JaxprEqn) -> bool:
    """Say whether an equation is a loop."""
    return eqn.primitive in (scan_p, while_p)


def is_cond(eqn: JaxprEqn) -> bool:
    """Say whether an equation takes one of its branches, for other reasons than the platform."""
    construct = anatomy(eqn)
    return isinstance(construct, Cond) and not construct.by_platform


def is_host_call(eqn: JaxprEqn) -> bool:
    """Say whether an equation calls a Python function of the user's."""
    return str(eqn.primitive) in ("pure_callback", "io_callback", "debug_callback", "debug_print")


def _logs_a_loop(eqn: JaxprEqn) -> bool:
    """Say whether an equation is a loop that logs, or logs what a loop before it has stacked."""
    if eqn.primitive is log_p:
        return any(isinstance(node, Loop) for node in logged(eqn))
    return is_loop(eqn) and bool(logs(eqn))


def _is_claimed(eqn: JaxprEqn) -> bool:
    return eqn.primitive is log_p and bool(listeners_of(logged(eqn)))


loops = Count(is_loop)
# Not by their effects: some constructs, such as `custom_linear_solve`, do not pass those on.
logs = Count(lambda eqn: eqn.primitive is log_p)
logging_loops = Count(_logs_a_loop)
running_loops = Count(lambda eqn: is_loop(eqn) and logs(eqn))  # Not those that have ended.
logging_whiles = Count(lambda eqn: eqn.primitive is while_p and logs(eqn))
shard_maps = Count(lambda eqn: eqn.primitive is shard_map_p)
marks = Count(lambda eqn: eqn.primitive is mark_p)
claimed_logs = Count(_is_claimed)
trace_filtered_if(lambda: listening.value, logs.within)
host_calls = Count(is_host_call)
# Those that may not be made, in equations that can be entered: not in loops.
conditional_calls = Count(
    lambda eqn: is_cond(eqn) and host_calls(eqn),
    closed=lambda eqn: not isinstance(anatomy(eqn), Call),
)
