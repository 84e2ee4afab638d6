"""Collect entries: windows first, then stacked as outputs of loops, or in buffers they carry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._listen.selection import is_heard, left_over
from .._listen.windows import (
    KeyEntry,
    Windows,
    WindowState,
    entry_of_key,
    typed,
    typed_plainly,
    unraw,
    without_time,
)
from .._log.entry import Entry, Nodes, entries, map_entries, restrict, with_steps
from .._log.primitive import emit
from .._walk.meaning import Meaning
from .._walk.places import Where
from . import buffer
from .plan import Plan, SpoolOptions
from .spilled import Spilled


class Collected(NamedTuple):
    """What a spooled program carries."""

    windows: WindowState
    buffers: dict[str, buffer.Buffer]


class Result(NamedTuple):
    """What a key has come to: entries (or one), steps, validity, and how many were dropped."""

    value: Any
    steps: dict[str, Any]
    valid: Any
    dropped: Any


class Collecting(Meaning):
    """Stacks what has a fixed number, and keeps the rest in a state that loops carry.

    Buffers that spill hand what is in them to the host while the program runs.
    """

    def __init__(
        self,
        plans: dict[str, Plan],
        options: SpoolOptions,
        repeated: frozenset[Any],
        spilled: Spilled,
    ) -> None:
        self._plans, self._options = plans, options
        self.repeated, self._spilled = repeated, spilled
        self._stamps = any(STAMP in plan.key.steps for plan in plans.values())
        self._windows = Windows({name: plan.key for name, plan in plans.items()}, options)

    def start(self) -> Collected:
        """The state to begin with."""
        buffers = {}
        for name, plan in self._plans.items():
            if plan.capacity:
                new = buffer.start(self._windows.type_of(name), plan.capacity, plan.overflow)
                value, plain = typed(new.rows.value, plan.key), typed_plainly(new, plan.key)
                buffers[name] = plain._replace(rows=plain.rows._replace(value=value))
        return Collected(self._windows.start(), buffers)

    def spilling(self) -> dict[str, KeyEntry]:
        """The types of what is handed to the host at a time, by key."""
        return {
            name: jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((plan.capacity, *x.shape), x.dtype),
                self._windows.type_of(name),
            )
            for name, plan in self._plans.items()
            if plan.overflow == "spill"
        }

    def log(self, nodes: Nodes, state: Collected, where: Where) -> tuple[Nodes, Collected]:
        emit(left_over(nodes, self._options))
        ours = restrict(nodes, self._options.selects)
        if self._stamps:
            ours = stamped(ours)
        due, windows = self._windows.take(state.windows, ours, where)
        state = self._push(state._replace(windows=windows), due)
        return restrict(due, lambda name, _: self._plans[name].stacked), state

    def deferred(self) -> Meaning:
        return _Deferred(self._options, self.repeated)

    def iterated(self, state: Collected, where: Where) -> Collected:
        due, windows = self._windows.iterated(state.windows, where)
        return self._push(state._replace(windows=windows), due)

    def left(self, state: Collected, where: Where) -> Collected:
        due, windows = self._windows.left(state.windows, where)
        return self._push(state._replace(windows=windows), due)

    def goes_on(self, state: Collected) -> Any:
        spilling = [n for n, plan in self._plans.items() if plan.overflow == "spill"]
        stopped = [state.buffers[name].pushed < 0 for name in spilling]
        return ~functools.reduce(jnp.logical_or, stopped) if stopped else True

    def finish(self, state: Collected) -> dict[str, Result]:
        """Return what was not stacked, padded to static shapes."""
        results = {}
        for entry in entries(self._windows.finish(state.windows)):
            for name, value in entry.data.items():
                key = self._plans[name].key
                sure = not key.conditional and not key.unbounded and key.count
                results[name] = Result(value, entry.steps, None if sure else entry.mask, None)
        for name, rows in state.buffers.items():
            results[name] = self._unbuffered(self._plans[name], rows)
        return results

    def _unbuffered(self, plan: Plan, rows: buffer.Buffer) -> Result:
        key = plan.key
        ones, valid, dropped = buffer.finish(rows, plan.overflow)
        if ones.mask is not None:
            valid = ones.mask & valid.reshape(valid.shape + (1,) * len(key.lanes))
        if plan.overflow == "exact" and not key.conditional and key.kept:
            valid = None
        return Result(unraw(ones.value, key.value), ones.steps, valid, dropped)

    def _push(self, state: Collected, nodes: Nodes) -> Collected:
        """Put entries into buffers; stacked ones in the order in which they happened."""
        for node in restrict(nodes, lambda name, _: bool(self._plans[name].capacity)):
            if isinstance(node, Entry):
                for name, value in node.data.items():
                    state = self._write(state, self._plans[name], node, value)
            else:
                state, _ = lax.scan(
                    lambda state, rows: (self._push(state, map_entries(without_time, rows)), None),
                    state,
                    node.body,
                )
        return state

    def _write(self, state: Collected, plan: Plan, entry: Entry, value: Any) -> Collected:
        name = plan.key.name
        one = entry_of_key(plan.key, entry, value)
        if state.buffers[name].rows.mask is None:
            one = one._replace(mask=None)
        elif one.mask is None:
            one = one._replace(mask=jnp.ones(plan.key.lanes, jnp.bool_))
        wanted = None if entry.mask is None else jnp.any(entry.mask)
        hand_over = self._spilled.hands_over(name, one)
        pushed = buffer.push(state.buffers[name], one, wanted, plan.overflow, hand_over)
        return state._replace(buffers={**state.buffers, name: pushed})


# Entries of a program that has a backward pass which logs have a step more, while they are
# collected: whether they were logged there. No `log` call can have a step of this name.
STAMP = "backward"


def stamped(nodes: Nodes, spread: Callable[..., Any] = jnp.broadcast_to) -> Nodes:
    """Add that step. `spread` makes its arrays of a value and a shape."""
    return map_entries(lambda entry: with_steps(entry, {STAMP: entry.meta.backward}, spread), nodes)


class _Deferred(Meaning):
    """Passes on what anyone wants."""

    def __init__(self, options: SpoolOptions, repeated: frozenset[Any]) -> None:
        self._options, self.repeated = options, repeated

    def log(self, nodes: Nodes, state: Any, where: Where) -> tuple[Nodes, Any]:
        del where
        return restrict(nodes, lambda k, e: self._options.selects(k, e) or is_heard(e)), state

    def deferred(self) -> Meaning:
        return self
