"""The compiled loop over a step, with a test or without, and with views that take rows or without.

Whatever else there is stays outside of the loop of the steps, so that they are compiled alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._rows import RowView, Take
from .._weak_cache import WeakCache
from .step_logs import numbered

MOST_STEPS = 0xFFFFFFFF  # The largest number that `fold_in` takes. No step has it.

# Gets a key, the number of the next step, the state, how many steps to run, for each view after how
# many of them to take a row, and how often to test, and whether that was true already. Returns the
# number of the next step, the state, the rows of each view, and whether the test was true.
Advance = Callable[..., Any]


class _Taker(NamedTuple):
    """A view in a program."""

    take: Callable[[], Take]  # A weak reference.
    room: int  # For how many rows.
    kind: Any
    types: tuple[tuple[tuple[int, ...], Any], ...]  # Of the arrays of one row.

    def empty(self) -> list[Any]:
        return [jnp.zeros((self.room, *shape), dtype) for shape, dtype in self.types]


class CompiledStep:
    """The loop over a step, which is a weak reference, compiled once for all loggers.

    Unless they have views that run in it.
    """

    def __init__(
        self,
        donate: bool,
        step: Callable[[], Any],
        until: Callable[[], Any] | None = None,
        takers: tuple[_Taker, ...] = (),
    ) -> None:
        self._donate, self._step, self._until, self._takers = donate, step, until, takers
        self._tested: WeakCache[CompiledStep] = WeakCache(methods=False)
        self._taking: WeakCache[CompiledStep] = WeakCache(methods=False)

    def tested(self, until: Callable[[Any], Any]) -> CompiledStep:
        """The loop that ends after the step after which `until` is true."""
        return self._tested.get(
            until, None, lambda ref: CompiledStep(self._donate, self._step, ref, self._takers)
        )

    def taking(self, view: RowView, room: int) -> CompiledStep:
        """The loop that takes up to `room` rows for a view, besides those for others."""
        types = tuple((x.shape, x.dtype) for x in view.types)

        def make(take: Callable[[], Any]) -> CompiledStep:
            takers = (*self._takers, _Taker(take, room, view.kind, types))
            return CompiledStep(self._donate, self._step, self._until, takers)

        return self._taking.get(view.take, (room, view.kind, types), make)

    @functools.cached_property
    def advance(self) -> Advance:
        """Runs steps."""
        step, until, takers = self._step, self._until, self._takers

        def advance(key: Any, at: Any, state: Any, count: Any, wanted: Any, test: Any) -> Any:
            first, end = at, at + count
            rows = [(jnp.uint32(0), taker.empty()) for taker in takers]

            def run(at: Any, state: Any, rows: Any, count: Any) -> Any:
                if not takers:
                    return *_loop(step(), key, at, state, count), rows
                return _loop_with_rows(step(), takers, key, first, wanted, at, state, rows, count)

            if until is None:
                at, state, rows = run(at, state, rows, count)
                return at, state, [arrays for _, arrays in rows], None
            every, done = test

            def goes_on(carry: Any) -> Any:
                at, _, _, done = carry
                return (at < end) & ~done

            def up_to_test(carry: Any) -> Any:
                at, state, rows, _ = carry
                until_test = jnp.minimum(end - at, every - at % every)
                at, state, rows = run(at, state, rows, until_test)
                return at, state, rows, (at % every == 0) & jnp.asarray(until()(state), jnp.bool_)

            at, state, rows, done = lax.while_loop(goes_on, up_to_test, (at, state, rows, done))
            return at, state, [arrays for _, arrays in rows], done

        return jax.jit(advance, donate_argnums=(2,) if self._donate else ())  # type: ignore[no-any-return]


def _loop(step: Callable[..., Any], key: Any, at: Any, state: Any, count: Any) -> Any:
    # The number of steps is an argument: the same program runs whatever `inner` and the loggers
    # are, so that every bit is the same.
    def body(_: Any, carry: Any) -> Any:
        at, state = carry
        return at + jnp.uint32(1), numbered(step, at)(jax.random.fold_in(key, at), state)

    return lax.fori_loop(jnp.uint32(0), count, body, (at, state))


def _loop_with_rows(
    step: Callable[..., Any],
    takers: tuple[_Taker, ...],
    key: Any,
    first: Any,
    wanted: Any,
    at: Any,
    state: Any,
    rows: Any,
    count: Any,
) -> Any:
    """Run steps, from one after which a row is wanted to the next."""
    end = at + count

    def next_of(wanted: Any, number: Any) -> Any:
        return lax.dynamic_index_in_dim(wanted, number, keepdims=False)

    def up_to_row(carry: Any) -> Any:
        at, state, rows = carry
        stops = [next_of(mine, number) for mine, (number, _) in zip(wanted, rows, strict=True)]
        ahead = [stop - (at - first) for stop in stops]
        at, state = _loop(step, key, at, state, functools.reduce(jnp.minimum, ahead, end - at))
        are_due = [at - first == stop for stop in stops]
        taken = zip(takers, are_due, rows, strict=True)
        return at, state, [_take_row(one, due, state, *mine) for one, due, mine in taken]

    return lax.while_loop(lambda carry: carry[0] < end, up_to_row, (at, state, rows))


def _take_row(taker: _Taker, is_due: Any, state: Any, number: Any, arrays: list[Any]) -> Any:
    """Put a row behind the others, if it is due."""

    def put(arrays: list[Any]) -> list[Any]:
        kind, row = taker.take()(state)
        assert kind == taker.kind, "the view was shown another type of state"
        # The barrier: how a view is compiled must not depend on what becomes of the row.
        pairs = zip(arrays, lax.optimization_barrier(row), strict=True)
        return [lax.dynamic_update_index_in_dim(x, new, number, 0) for x, new in pairs]

    return number + is_due.astype(jnp.uint32), lax.cond(is_due, put, lambda same: same, arrays)
