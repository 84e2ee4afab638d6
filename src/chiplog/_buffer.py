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

from ._jax_compat import host_call
from .errors import LogValueError

OVERFLOW = ("last", "first", "thin")


class Buffer(NamedTuple):
    """Rows, how many have been pushed, and what the overflow rule needs to know."""

    rows: Any
    pushed: Any
    extra: Any


class Thinned(NamedTuple):
    """Which entry is in which row, and the distance between entries that are kept."""

    number: Any
    stride: Any


def start(row: Any, capacity: int, overflow: str) -> Buffer:
    """Make an empty buffer for rows of the type of `row`."""
    rows = jax.tree.map(lambda x: jnp.zeros((capacity + 1, *x.shape), x.dtype), row)
    extra: Any = ()
    if overflow == "thin":
        extra = Thinned(jnp.full(capacity, -1, jnp.int32), jnp.int32(1))
    return Buffer(rows, jnp.int32(0), extra)


def push(
    buffer: Buffer, row: Any, wanted: Any, overflow: str, receive: Callable[..., None] | None
) -> Buffer:
    """Write a row, if it is `wanted` (always, if that is None)."""
    rows, pushed, extra = buffer
    capacity = _capacity(rows)
    count = jnp.int32(1) if wanted is None else wanted.astype(jnp.int32)
    if overflow == "spill":
        assert receive is not None

        def spill() -> Any:
            return host_call(receive, jnp.int32(0), *(x[:capacity] for x in jax.tree.leaves(rows)))

        # The host answers with the new count, so that what follows waits for it.
        pushed = lax.cond(pushed == capacity, spill, lambda: pushed)
        slot = pushed
    elif overflow == "last":
        slot = pushed % capacity
    elif overflow == "thin":
        slot, extra = _thin(pushed, extra, count)
    else:
        slot = jnp.minimum(pushed, capacity)
    if wanted is not None:
        slot = jnp.where(wanted, slot, capacity)
    rows = jax.tree.map(
        lambda rows, x: lax.dynamic_update_index_in_dim(rows, x, slot, 0), rows, row
    )
    return Buffer(rows, pushed + count, extra)


def finish(buffer: Buffer, overflow: str) -> tuple[Any, Any, Any]:
    """Return the rows in the order of their coming, which are real, and how many were dropped."""
    rows, pushed, extra = buffer
    capacity = _capacity(rows)
    places = jnp.arange(capacity)
    valid = places < pushed
    if overflow == "last":
        oldest = jnp.where(pushed > capacity, pushed % capacity, 0)
        places = (places + oldest) % capacity
    elif overflow == "thin":
        kept = (extra.number >= 0) & (extra.number % extra.stride == 0)
        places = jnp.argsort(jnp.where(kept, extra.number, jnp.iinfo(jnp.int32).max))
        valid = kept[places]
    if overflow in ("last", "thin"):
        rows = jax.tree.map(lambda x: x[places], rows)
    else:
        rows = jax.tree.map(lambda x: x[:capacity], rows)
    return rows, valid, pushed - jnp.sum(valid)


def check_overflow(overflow: str) -> None:
    """Refuse an overflow rule that does not exist."""
    if overflow not in OVERFLOW:
        raise LogValueError(
            f"`overflow={overflow!r}` is not known. Use 'last' to keep the newest entries, 'first' "
            "to keep the oldest, or 'thin' to keep an even spread over the whole run."
        )


def _capacity(rows: Any) -> int:
    return int(jax.tree.leaves(rows)[0].shape[0]) - 1


def _thin(pushed: Any, extra: Thinned, count: Any) -> tuple[Any, Thinned]:
    # When all rows are taken by entries that the stride keeps, the stride doubles, and every
    # second of them makes room.
    number, stride = extra
    capacity = number.shape[0]
    replaceable = (number < 0) | (number % stride != 0)
    candidate = (pushed % stride == 0) & (count > 0)
    stride = jnp.where(candidate & ~jnp.any(replaceable), 2 * stride, stride)
    replaceable = (number < 0) | (number % stride != 0)
    kept = candidate & (pushed % stride == 0)
    slot = jnp.where(kept, jnp.argmax(replaceable), capacity)
    number = jnp.where(jnp.arange(capacity) == slot, pushed, number)
    return slot, Thinned(number, stride)
