"""Steps on the device: sent there a number at a time, and logged."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import StopRun
from ..loggers import Logger
from .agreement import INTERRUPTED, NOBODY, Agreement, stop_of
from .programs import MOST_STEPS, Advance
from .taking import Plan, Taking

AHEAD = 4  # Dispatches that the device has in store while the host waits for the test of another.

_copied = jax.jit(lambda state: jax.tree.map(jnp.copy, state))


@functools.lru_cache(maxsize=1024)
def number(n: int) -> Any:
    """A number on the device. Transferring the same ones every time would be slow."""
    return jnp.asarray(n, jnp.uint32)


@dataclasses.dataclass
class Now:
    """Where a run is: the number of the next step, and the state before it."""

    step: int
    state: Any
    interrupted: bool = False  # By Ctrl-C, in any process.


class Course(NamedTuple):
    """How steps are run, and up to which."""

    advance: Advance  # With its key.
    end: int
    inner: int
    logger: Logger[Any]
    taking: Taking
    asked: Callable[[], BaseException | None]  # What asks to stop, if something does.
    agreement: Agreement | None = None  # With the other processes.

    def plan(self, first: int) -> Plan:
        """Plan the next dispatch."""
        return self.taking.plan(first, min(self.inner, self.end - first))


def run(now: Now, course: Course) -> None:
    """Run up to a step, or until somebody asks to stop."""
    logger, taking = course.logger, course.taking
    at, never = number(now.step), (number(MOST_STEPS), jnp.bool_(False))
    while now.step < course.end and course.asked() is None:
        plan = course.plan(now.step)
        wanted = taking.wanted(plan, now.step)
        at, now.state, rows, _ = course.advance(at, now.state, number(plan.length), wanted, never)
        now.step += plan.length
        stop = taking.deliver(plan, rows, now.step)
        _log_or_skip(logger, plan.is_wanted, now.state, now.step - 1, plan.length)
        if stop is not None:
            raise stop


class _Sent(NamedTuple):
    """Steps that were dispatched. If the test was true before, fewer of them have run, or none."""

    end: int
    plan: Plan
    at: Any  # How far they have come,
    done: Any  # and whether that is due to the test,
    why: Any  # or to what asks all processes to stop.
    rows: Any
    state: Any  # If the state after them is wanted, it is here.


def run_until(now: Now, course: Course, every: int, donate: bool, ahead: int = AHEAD) -> bool:
    """Run up to a step, or until somebody asks to stop, or a test is true; say whether it was.

    The result of a test is read when other steps have been dispatched, so that the device need not
    wait for the host: `ahead` of them. They do nothing if it was true. States that are wanted are
    logged after that, so they are copied if their buffers are donated. What several processes run
    stops when they agree on it: until then, all of them dispatch the same.
    """
    logger, taking, agreement = course.logger, course.taking, course.agreement
    sent, at, state, done = now.step, number(now.step), now.state, jnp.bool_(False)
    unknown: collections.deque[_Sent] = collections.deque()
    stop: StopRun | None = None  # By then the state may be gone, so what was dispatched runs.
    why: Any = None

    def log_or_skip(is_wanted: bool, state: Any, step: int, count: int) -> None:
        nonlocal stop
        try:
            _log_or_skip(logger, is_wanted, state, step, count)
        except StopRun as request:
            if agreement is None:
                raise
            stop = stop or request

    def is_asked() -> BaseException | None:
        return stop or course.asked()

    def is_true(most_unknown: int) -> bool:
        nonlocal stop, why
        while len(unknown) > most_unknown:
            one = unknown.popleft()
            if one.done:
                count = int(one.at) - now.step
                now.step, now.state, why = int(one.at), state, one.why
                if not count:  # They were not to do anything.
                    return True
                last = now.step - 1
                # No row was taken of a step whose state was to be logged.
                planned = one.plan.is_wanted and now.step == one.end
                is_wanted = planned or taking.wants_state(last)
                rows_end = last if is_wanted else now.step
                stop = taking.deliver(one.plan, one.rows, rows_end) or stop
                log_or_skip(is_wanted, state, last, count)
                return True
            now.step, now.state = one.end, one.state
            stop = taking.deliver(one.plan, one.rows, one.end) or stop
            log_or_skip(one.plan.is_wanted, one.state, one.end - 1, one.plan.length)
        return False

    reached = False
    while sent < course.end and not reached and (agreement or is_asked() is None):
        asks = None
        if agreement is not None:
            done, asks = agreement.known(done, is_asked())
        plan = course.plan(sent)
        count, wanted = number(plan.length), taking.wanted(plan, sent)
        at, state, rows, done = course.advance(at, state, count, wanted, (number(every), done))
        sent += plan.length
        done.copy_to_host_async()
        kept = None
        if plan.is_wanted:
            kept = _copied(state) if donate else state
        unknown.append(_Sent(sent, plan, at, done, asks, rows, kept))
        reached = is_true(ahead)
    reached = reached or is_true(0)
    now.state = state
    if agreement is not None:
        if not reached:  # Something may have come up since the last dispatch.
            _, why = agreement.known(done, is_asked())
        stop = stop_of(int(why), is_asked())
        now.interrupted = int(why) == INTERRUPTED
        reached = reached and int(why) == NOBODY
    if stop is not None:
        raise stop
    return reached


def _log_or_skip(logger: Logger[Any], is_wanted: bool, state: Any, step: int, count: int) -> None:
    """Log the state after a step, the last of `count`, if it is wanted."""
    if count > is_wanted:
        logger.skipped(count - is_wanted)
    if is_wanted:
        logger.log(state, step)
