"""Collect entries in a state that loops carry: reduced, thinned out, or in a bounded buffer.

The state has, by key, a buffer or a reduction under way; and by loop, the number of iterations
so far, which `interval` counts over the whole run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax.arrays import as_key, gathered, is_key, raw, raw_type, vary
from .._log.entry import Entry, Loop, Nodes, map_entries, mask_for, widen
from .._logdict import reductions as _reduce
from .._spool import buffer as _buffer
from .._walk.interpret import Where
from .plan import Options, Plan, tick_name


class State(NamedTuple):
    """What the loops carry."""

    ticks: dict[str, Any]
    buffers: dict[str, _buffer.Buffer]
    folds: dict[str, Any]  # By key and, with `interval`, by loop.


class Result(NamedTuple):
    """What a key has come to: rows (or one reduced value), steps, validity, and how many lost."""

    value: Any
    steps: dict[str, Any]
    valid: Any
    dropped: Any


class Row(NamedTuple):
    """One entry of one key. Steps and mask have a value for each lane."""

    value: Any
    steps: Any
    mask: Any


class Fold:
    """Takes entries into a state."""

    def __init__(
        self,
        plans: dict[str, Plan],
        options: Options,
        receive: Callable[[str, Row], None] | None = None,
    ) -> None:
        self._plans = {key: plan for key, plan in plans.items() if not plan.stacked}
        self._types = {key: jax.tree.map(raw_type, plan.value) for key, plan in self._plans.items()}
        self._interval = options.interval
        self._how = options.reduce or "last"
        # A reduced entry has the step of the last entry in it, or of the one that was kept.
        self._when = "first" if self._how == "first" else "last"
        self._receive = receive

    def start(self) -> State:
        ticks, buffers, folds = {}, {}, {}
        for key, plan in self._plans.items():
            if self._interval is not None:
                ticks.update({tick: jnp.int32(0) for tick in plan.ticks})
            if plan.capacity:
                empty = _buffer.start(self._row_type(plan), plan.capacity, plan.overflow)
                buffers[key] = _typed(empty, plan)
            if plan.folded:
                folds.update({name: self.new(plan) for name in self._fold_names(plan)})
        return State(ticks, buffers, folds)

    def push(self, state: State, nodes: Nodes, where: Where) -> State:
        """Take in entries; stacked ones in the order in which they happened."""
        for node in nodes:
            if isinstance(node, Entry):
                state = self._take(state, node, tick_name(where))
            else:
                state = self._take_rows(state, where, (node,))
                state = self.left(state, where)
        return state

    def _take_rows(self, state: State, where: Where, loops: tuple[Loop, ...]) -> State:
        tick = tick_name(where, *loops)

        def shallower(entry: Entry) -> Entry:
            return entry.replace(meta=dataclasses.replace(entry.meta, times=entry.meta.times[1:]))

        def body(state: State, rows: Nodes) -> tuple[State, None]:
            for node in map_entries(shallower, rows):
                if isinstance(node, Entry):
                    state = self._take(state, node, tick)
                else:
                    state = self._take_rows(state, where, (*loops, node))
            return self.tick(state, tick), None

        return lax.scan(body, state, loops[-1].body)[0]  # type: ignore[no-any-return]

    def _take(self, state: State, entry: Entry, tick: str) -> State:
        for key, value in entry.data.items():
            plan = self._plans[key]
            row = row_of(plan, entry, value)
            windowed = tick in state.ticks
            assert windowed or not tick or self._interval is None, f"nobody counts {tick}"
            if plan.folded and (windowed or not plan.capacity):
                name = self._fold_name(key, tick if windowed else None)
                fold = self.fold(state.folds[name], row)
                state = state._replace(folds={**state.folds, name: fold})
            else:
                if plan.folded:  # A window of its own: an entry outside of all loops.
                    row, _ = self.unfold(plan, self.fold(self.new(plan), row))
                wanted = None if entry.mask is None else jnp.any(entry.mask)
                if windowed:
                    due = state.ticks[tick] % self._interval == 0
                    wanted = due if wanted is None else wanted & due
                state = self._write(state, plan, row, wanted)
        return state

    def tick(self, state: State, tick: str) -> State:
        """An iteration of a loop has ended."""
        if tick not in state.ticks:
            return state
        count = state.ticks[tick] + 1
        state = state._replace(ticks={**state.ticks, tick: count})
        if not any(self._fold_name(key, tick) in state.folds for key in self._plans):
            return state
        return lax.cond(  # type: ignore[no-any-return]
            count % self._interval == 0, lambda s: self._close(s, tick), lambda s: s, state
        )

    def left(self, state: State, where: Where) -> State:
        """A loop has ended. If it was an outermost one, so have the windows in it."""
        if where.path:
            return state
        for tick in state.ticks:
            state = self._close(state, tick)
        return state

    def _close(self, state: State, tick: str) -> State:
        """End the windows of a loop: what they reduced to becomes an entry."""
        for key, plan in self._plans.items():
            name = self._fold_name(key, tick)
            if name not in state.folds:
                continue
            row, count = self.unfold(plan, state.folds[name])
            state = self._write(state, plan, row, jnp.any(count > 0))
            state = state._replace(folds={**state.folds, name: self.new(plan)})
        return state

    def finish(self, state: State) -> dict[str, Result]:
        """Return what was collected, padded to static shapes."""
        results = {}
        for key, plan in self._plans.items():
            if plan.capacity:
                rows, valid, dropped = _buffer.finish(state.buffers[key], plan.overflow)
                if rows.mask is not None:
                    valid = rows.mask & valid.reshape(valid.shape + (1,) * len(plan.lanes))
                if plan.overflow == "exact" and not plan.conditional and plan.kept:
                    valid = None
            else:
                rows, count = self.unfold(plan, state.folds[key])
                sure = not plan.conditional and not plan.unbounded and plan.count
                valid, dropped = None if sure else count > 0, None
            results[key] = Result(unraw(rows.value, plan.value), rows.steps, valid, dropped)
        return results

    def _row_type(self, plan: Plan) -> Any:
        if plan.folded:
            return jax.eval_shape(lambda: self.unfold(plan, self.new(plan))[0])
        mask = None
        if plan.conditional and plan.lanes:
            mask = jax.ShapeDtypeStruct(plan.lanes, jnp.bool_)
        return Row(self._types[plan.key], plan.steps, mask)

    def _write(self, state: State, plan: Plan, row: Any, wanted: Any) -> State:
        has_mask = state.buffers[plan.key].rows.mask is not None
        mask = row.mask if has_mask else None
        if has_mask and mask is None:
            mask = jnp.ones(plan.lanes, jnp.bool_)
        tree = jax.tree.structure(row._replace(mask=mask))

        def receive(count: Any, *leaves: Any) -> Any:
            assert self._receive is not None
            self._receive(plan.key, jax.tree.unflatten(tree, leaves))
            return count

        buffer = _buffer.push(
            state.buffers[plan.key], row._replace(mask=mask), wanted, plan.overflow, receive
        )
        return state._replace(buffers={**state.buffers, plan.key: buffer})

    def _fold_names(self, plan: Plan) -> list[str]:
        if not plan.capacity:
            return [plan.key]
        return [self._fold_name(plan.key, tick) for tick in plan.ticks]

    def _fold_name(self, key: str, tick: str | None) -> str:
        return key if tick is None else f"{key} in {tick}"

    def new(self, plan: Plan) -> Any:
        value, steps = (
            jax.tree.map(lambda x: _reduce.start(how, x, plan.lanes), types)
            for how, types in ((self._how, self._types[plan.key]), (self._when, plan.steps))
        )
        return _typed((value, steps), plan)

    def fold(self, fold: Any, row: Row) -> Any:
        value, steps = fold
        return (
            _map_folds(lambda f, x: _reduce.push(self._how, f, x, row.mask), value, row.value),
            _map_folds(lambda f, x: _reduce.push(self._when, f, x, row.mask), steps, row.steps),
        )

    def unfold(self, plan: Plan, fold: Any) -> tuple[Row, Any]:
        """Return what was folded as a row, and how many entries went into it, by lane."""
        value, steps = fold
        count = jax.tree.leaves(value, is_leaf=_is_fold)[0].count
        types = self._types[plan.key]
        row = Row(
            _map_folds(lambda f, x: _reduce.finish(self._how, f, x), value, types),
            _map_folds(lambda f, x: _reduce.finish(self._when, f, x), steps, plan.steps),
            count > 0 if plan.conditional and plan.lanes else None,
        )
        return row, count


def row_of(plan: Plan, entry: Entry, value: Any) -> Row:
    """Make a row of a value that an entry has for the key of a plan."""
    # Loops carry one type of state, whatever the program does to the layout of values.
    row = Row(jax.tree.map(raw, value), entry.steps, mask_for(entry, plan.lanes))
    row = jax.tree.map(lambda x: gathered(x, plan.mesh), row)
    widened: Row = jax.tree.map(lambda x: widen(x, 0, entry.meta.lanes, plan.lanes), row)
    return widened


def _typed(state: Any, plan: Plan) -> Any:
    """Give a new state the type that it will have: varying, or spread over a mesh."""
    return jax.tree.map(lambda x: gathered(vary(x, plan.varying), plan.mesh), state)


def _is_fold(x: Any) -> bool:
    return isinstance(x, _reduce.Folded)


def _map_folds(function: Callable[..., Any], folds: Any, *rest: Any) -> Any:
    return jax.tree.map(function, folds, *rest, is_leaf=_is_fold)


def unraw(value: Any, like: Any) -> Any:
    """Make random keys of plain numbers again, where `like` has them."""
    return jax.tree.map(lambda x, one: as_key(x, one.dtype) if is_key(one) else x, value, like)
