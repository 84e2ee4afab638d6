"""How each key is collected: stacked by the scans themselves, in a buffer, or reduced to one entry.

A key whose entries have a fixed number is stacked. One in a while loop, or one that is thinned out
on the way, goes into a buffer that the loops carry.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax

from .._listen.keys import Key
from .._listen.options import Options, check_count
from ..errors import UnboundedLogError
from .buffer import check_overflow

SPILL_ROWS = 1024
SPILL_NUMBERS = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpoolOptions(Options):
    """What `spool` was asked for."""

    capacity: int | None = None
    overflow: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("capacity", self.capacity)
        check_overflow(self.overflow)


class Plan(NamedTuple):
    """How one key is collected."""

    key: Key
    reduced: bool = False  # To one entry.
    capacity: int = 0  # Of its buffer; 0: it has none.
    overflow: str = "exact"  # What happens when the buffer is full. "exact": it never is.

    @property
    def stacked(self) -> bool:
        return not self.reduced and not self.capacity


def make_plan(key: Key, options: SpoolOptions, traced: bool) -> Plan:
    """Decide how to collect a key. If `traced`, all shapes must be static."""
    windowed = options.interval is not None and bool(key.loops)
    if options.reduce is not None and not windowed:
        return Plan(key, reduced=True)
    bound = key.kept if windowed else key.count
    is_known = isinstance(bound, int)  # Else, it is symbolic: under `jax.export`.
    if options.capacity is not None and (
        key.unbounded or (key.loops and (not is_known or bound > options.capacity))
    ):
        return Plan(key, capacity=options.capacity, overflow=options.overflow)
    if key.unbounded and traced:
        raise UnboundedLogError(
            f"Cannot spool {key.name!r}, logged at {key.site}, from inside `jax.lax.while_loop` "
            "in a traced function (under `jax.jit`, `vmap`, `grad`, ...): the number of entries "
            "is unknown until run time. Pass `capacity=` to keep that many, `reduce=` to fold "
            "them into one, or call the spooled function outside any trace to get them all."
        )
    if key.unbounded:
        numbers = sum(math.prod(x.shape) for x in jax.tree.leaves((key.value, key.steps)))
        capacity = max(1, min(SPILL_ROWS, SPILL_NUMBERS // max(1, numbers)))
        return Plan(key, capacity=capacity, overflow="spill")
    return Plan(key, capacity=max(1, bound) if is_known else bound) if windowed else Plan(key)
