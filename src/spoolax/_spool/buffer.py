"""A device buffer of rows that a loop fills, with a rule for what to do when it is full.

A row is a pytree. All buffers have one row more than they keep: rows that are not wanted are
written there, which costs less than asking first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax.arrays import rows_at
from ..errors import LogValueError

STOPPED = -(1 << 30)
OVERFLOW = ("last", "first", "thin")


class Buffer(NamedTuple):
    """Rows, how many have been pushed, and what the overflow rule needs to know."""

    rows: Any
    pushed: Any
    extra: Any


class Thinned(NamedTuple):
    """How often the distance between entries that are kept has doubled."""

    level: Any


def start(row: Any, capacity: int, overflow: str) -> Buffer:
    """Make an empty buffer for rows of the type of `row`."""
    rows = jax.tree.map(lambda x: jnp.zeros((capacity + 1, *x.shape), x.dtype), row)
    extra: Any = ()
    if overflow == "thin":
        extra = Thinned(jnp.int32(0))
    return Buffer(rows, jnp.int32(0), extra)


def push(
    buffer: Buffer, row: Any, wanted: Any, overflow: str, hand_over: Callable[..., Any]
) -> Buffer:
    """Write a row, if it is `wanted` (always, if that is None).

    If the buffer is full and spills, `hand_over` its leaves to the host, which answers with the new
    count: 0, so that what follows waits for it; or one that stays negative, if it is to stop.
    """
    rows, pushed, extra = buffer
    capacity = _capacity(rows)
    count = jnp.int32(1) if wanted is None else wanted.astype(jnp.int32)
    if overflow == "spill":
        full = [x[:capacity] for x in jax.tree.leaves(rows)]
        pushed = lax.cond(pushed == capacity, lambda: hand_over(*full), lambda: pushed)
        slot = pushed
    elif overflow == "last":
        slot = pushed % capacity
    elif overflow == "thin":
        slot, extra = _thin(pushed, extra, count > 0, capacity)
    else:
        slot = jnp.minimum(pushed, capacity)
    if wanted is not None:
        slot = jnp.where(wanted, slot, capacity)
    rows = jax.tree.map(
        lambda rows, x: lax.dynamic_update_index_in_dim(rows, x, slot, 0), rows, row
    )
    return Buffer(rows, pushed + count, extra)


def finish(buffer: Buffer, overflow: str) -> tuple[Any, Any, Any]:
    """Return the rows in order, which of them are real, and how many were dropped."""
    rows, pushed, extra = buffer
    capacity = _capacity(rows)
    places = jnp.arange(capacity, dtype=pushed.dtype)
    valid = places < pushed
    if overflow == "last":
        oldest = jnp.where(pushed > capacity, pushed % capacity, 0)
        places = (places + oldest) % capacity
    elif overflow == "thin":
        valid = places * 2**extra.level < pushed
        places = _thinned_slot(places, extra.level, capacity)
    if overflow in ("last", "thin"):
        rows = jax.tree.map(lambda x: rows_at(x, places), rows)
    else:
        rows = jax.tree.map(lambda x: x[:capacity], rows)
    return rows, valid, pushed - jnp.sum(valid, dtype=pushed.dtype)


def check_overflow(overflow: str) -> None:
    """Refuse an unknown overflow rule."""
    if overflow not in OVERFLOW:
        raise LogValueError(
            f"`overflow={overflow!r}` is not known. Use 'last' to keep the newest entries, 'first' "
            "to keep the oldest, or 'thin' to keep an even spread over the whole run."
        )


def _capacity(rows: Any) -> int:
    return jax.tree.leaves(rows)[0].shape[0] - 1  # type: ignore[no-any-return]


def _thin(pushed: Any, extra: Thinned, wanted: Any, capacity: int) -> tuple[Any, Thinned]:
    # Entries 0, s, 2s, ... are kept, until that would be more than fit; then the stride s doubles.
    stride = 2**extra.level
    candidate = wanted & (pushed % stride == 0)
    level = extra.level + (candidate & (pushed // stride == capacity)).astype(jnp.int32)
    stride = 2**level
    kept = candidate & (pushed % stride == 0)
    slot = _thinned_slot(pushed // stride, level, capacity)
    return jnp.where(kept, slot, capacity), Thinned(level)


def _thinned_slot(number: Any, level: Any, capacity: int) -> Any:
    """Where the `number`-th of the entries that are kept is.

    When the stride doubles, those with an even number stay where they are, and are half as many;
    new ones take the places of those with an odd number, in order.
    """
    half = (capacity + 1) // 2

    def before(_: Any, number: Any) -> Any:
        return jnp.where(number < half, 2 * number, 2 * (number - half) + 1)

    return lax.fori_loop(0, level, before, number)
