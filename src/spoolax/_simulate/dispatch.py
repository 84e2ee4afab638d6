"""Steps on the device: compiled as a loop, sent there a number at a time, and logged."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._weak_cache import WeakCache
from ..loggers import Logger
from .step_logs import numbered

MOST_STEPS = 0xFFFFFFFF  # The largest number that `fold_in` takes. No step has it.
AHEAD = 4  # Dispatches that the device has in store while the host waits for the test of another.

Advance = Callable[..., Any]


class CompiledStep:
    """The loop over a step, which is a weak reference, compiled with a test or without."""

    def __init__(self, donate: bool, step: Callable[[], Any]) -> None:
        self._step, self._donated = step, (2,) if donate else ()
        self._tested: WeakCache[Advance] = WeakCache(methods=False)

    @functools.cached_property
    def loop(self) -> Advance:
        """Runs `count` steps."""
        step = self._step

        def advance(key: Any, at: Any, state: Any, count: Any) -> Any:
            return _loop(step(), key, at, state, count)

        return jax.jit(advance, donate_argnums=self._donated)  # type: ignore[no-any-return]

    def tested(self, until: Callable[[Any], Any]) -> Advance:
        """Runs `count` steps, or up to the one after which `until` is true."""
        return self._tested.get(until, None, self._compile_tested)

    def _compile_tested(self, until: Callable[[], Any]) -> Advance:
        step = self._step

        def advance(key: Any, at: Any, state: Any, count: Any, every: Any, done: Any) -> Any:
            end = at + count

            def goes_on(carry: Any) -> Any:
                at, _, done = carry
                return (at < end) & ~done

            def up_to_test(carry: Any) -> Any:
                # The test is outside of the loop of the steps, which are compiled as without it.
                at, state, _ = carry
                until_test = jnp.minimum(end - at, every - at % every)
                at, state = _loop(step(), key, at, state, until_test)
                return at, state, (at % every == 0) & jnp.asarray(until()(state), jnp.bool_)

            return lax.while_loop(goes_on, up_to_test, (at, state, done))

        return jax.jit(advance, donate_argnums=self._donated)  # type: ignore[no-any-return]


def _loop(step: Callable[..., Any], key: Any, at: Any, state: Any, count: Any) -> Any:
    # The number of steps is an argument: the same program runs whatever `inner` and the loggers
    # are, so that every bit is the same.
    def body(_: Any, carry: Any) -> Any:
        at, state = carry
        return at + jnp.uint32(1), numbered(step, at)(jax.random.fold_in(key, at), state)

    return lax.fori_loop(jnp.uint32(0), count, body, (at, state))


_copied = jax.jit(lambda state: jax.tree.map(jnp.copy, state))


@functools.lru_cache(maxsize=1024)
def number(n: int) -> Any:
    """A number on the device. Transferring the same ones every time would be slow."""
    return jnp.asarray(n, jnp.uint32)


def untested(advance: Advance) -> Advance:
    """Run a program with a test without the test."""

    def run(key: Any, at: Any, state: Any, count: Any) -> Any:
        return advance(key, at, state, count, number(MOST_STEPS), jnp.bool_(False))[:2]

    return run


@dataclasses.dataclass
class Now:
    """Where a run is: the number of the next step, and the state before it."""

    step: int
    state: Any


def run(
    now: Now, advance: Advance, end: int, inner: int, logger: Logger[Any], asked: Callable[[], bool]
) -> None:
    """Run up to a step, or until somebody asks to stop."""
    at = number(now.step)
    while now.step < end and not asked():
        count = _until_wanted(logger, now.step, min(inner, end - now.step))
        at, now.state = advance(at, now.state, number(count))
        now.step += count
        last = now.step - 1
        _log_or_skip(logger, logger.wants(last), now.state, last, count)


class _Sent(NamedTuple):
    """Steps that were dispatched. If the test was true before, fewer of them have run, or none."""

    end: int
    steps: int
    at: Any  # How far they have come,
    done: Any  # and whether that is due to the test.
    is_wanted: bool  # Whether the state after them is to be logged; if so,
    state: Any  # it is here.


def run_until(
    now: Now,
    advance: Advance,
    end: int,
    inner: int,
    logger: Logger[Any],
    asked: Callable[[], bool],
    every: int,
    donate: bool,
    ahead: int = AHEAD,
) -> bool:
    """Run up to a step, or until somebody asks to stop, or a test is true; say whether it was.

    The result of a test is read when other steps have been dispatched, so that the device need not
    wait for the host: `ahead` of them. They do nothing if it was true. States that are wanted are
    logged after that, so they are copied if their buffers are donated.
    """
    sent, at, state, done = now.step, number(now.step), now.state, jnp.bool_(False)
    unknown: collections.deque[_Sent] = collections.deque()

    def is_true(most_unknown: int) -> bool:
        while len(unknown) > most_unknown:
            one = unknown.popleft()
            if one.done:
                count = int(one.at) - now.step
                now.step, now.state = int(one.at), state
                last = now.step - 1
                _log_or_skip(logger, logger.wants(last), state, last, count)
                return True
            now.step, now.state = one.end, one.state
            _log_or_skip(logger, one.is_wanted, one.state, one.end - 1, one.steps)
        return False

    while sent < end and not asked():
        count = _until_wanted(logger, sent, min(inner, end - sent))
        at, state, done = advance(at, state, number(count), number(every), done)
        sent += count
        is_wanted = logger.wants(sent - 1)
        done.copy_to_host_async()
        kept = _copied(state) if is_wanted and donate else state if is_wanted else None
        unknown.append(_Sent(sent, count, at, done, is_wanted, kept))
        if is_true(ahead):
            return True
    if is_true(0):
        return True
    now.state = state
    return False


def _until_wanted(logger: Logger[Any], first: int, most: int) -> int:
    """How many steps to run until the logger wants the state, at most `most`."""
    for count in range(1, most):
        if logger.wants(first + count - 1):
            return count
    return most


def _log_or_skip(logger: Logger[Any], is_wanted: bool, state: Any, step: int, count: int) -> None:
    """Log the state after a step, the last of `count`, if it is wanted."""
    if count > is_wanted:
        logger.skipped(count - is_wanted)
    if is_wanted:
        logger.log(state, step)
