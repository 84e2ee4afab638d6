"""Thin out or reduce entries on their way, as `interval` and `reduce` say.

What comes out are entries again, masked by whether they are due. With `reduce`, an entry is what
a window of iterations came to; it has the keys that were logged by the same calls.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._log.entry import Entry, Loop, Meta, Nodes, map_entries, masked, stacked
from .._walk.interpret import Where
from .fold import Fold, row_of, unraw
from .plan import Options, Plan, tick_name


class State(NamedTuple):
    """By loop, how many iterations there were; by key (and loop), the reduction under way."""

    ticks: dict[str, Any]
    folds: dict[tuple[str, str], Any]


class Windows:
    """What `interval` and `reduce` do to the entries of one listener."""

    def __init__(self, plans: dict[str, Plan], options: Options) -> None:
        self._plans, self._interval = plans, options.interval
        self._reduces = options.reduce is not None
        self._fold = Fold(plans, options, None)

    def start(self) -> State:
        ticks: dict[str, Any] = {}
        folds: dict[tuple[str, str], Any] = {}
        for key, plan in self._plans.items():
            if self._interval is not None:
                ticks.update({tick: jnp.int32(0) for tick in plan.ticks})
            if self._reduces:
                windows = plan.ticks if self._interval is not None else ()
                folds.update({(key, window): self._fold.new(plan) for window in windows or ("",)})
        return State(ticks, folds)

    def take(self, state: State, nodes: Nodes, where: Where) -> tuple[Nodes, State]:
        """Take entries in, and return those that are due."""
        if self._interval is None and not self._reduces:
            return nodes, state
        made: Nodes = ()
        for node in nodes:
            if isinstance(node, Entry):
                new, state = self._take(state, node, tick_name(where))
                made += new
            else:
                new, state = self._take_rows(state, where, (node,))
                made += new
                new, state = self.left(state, where)
                made += new
        return made, state

    def _take_rows(
        self, state: State, where: Where, loops: tuple[Loop, ...]
    ) -> tuple[Nodes, State]:
        tick, rows = tick_name(where, *loops), loops[-1].body

        def shallower(entry: Entry) -> Entry:
            return entry.replace(meta=dataclasses.replace(entry.meta, times=entry.meta.times[1:]))

        def body(state: State, rows: Nodes) -> tuple[State, Nodes]:
            made: Nodes = ()
            for node in map_entries(shallower, rows):
                if isinstance(node, Entry):
                    new, state = self._take(state, node, tick)
                else:
                    new, state = self._take_rows(state, where, (*loops, node))
                made += new
            new, state = self._ticked(state, tick)
            return state, made + new

        length = len(jax.tree.leaves(rows)[0])
        state, made = lax.scan(body, state, rows)
        return stacked(made, length, False, loops[-1].label.name), state

    def _take(self, state: State, entry: Entry, tick: str) -> tuple[Nodes, State]:
        counted = tick in state.ticks
        if not self._reduces:
            if not counted:
                return (entry,), state
            return masked((entry,), state.ticks[tick] % self._interval == 0), state
        folds, alone = dict(state.folds), {}
        for key, value in entry.data.items():
            window = key, tick if counted else ""
            row = row_of(self._plans[key], entry, value)
            if window in folds:
                folds[window] = self._fold.fold(folds[window], row)
            else:  # A window of its own: an entry outside of the loops that are counted.
                alone[key] = self._fold.fold(self._fold.new(self._plans[key]), row)
        made = self._entries(alone, sure=entry.mask is None)
        return made, state._replace(folds=folds)

    def iterated(self, state: State, where: Where) -> tuple[Nodes, State]:
        """An iteration of the loop `where` has ended, and with it perhaps a window."""
        return self._ticked(state, str(where))

    def _ticked(self, state: State, tick: str) -> tuple[Nodes, State]:
        if tick not in state.ticks:
            return (), state
        count = state.ticks[tick] + 1
        state = state._replace(ticks={**state.ticks, tick: count})
        if not self._open(state, tick):
            return (), state
        due = count % self._interval == 0
        made = masked(self._entries(self._open(state, tick)), due)
        state = lax.cond(due, lambda s: self._emptied(s, tick), lambda s: s, state)
        return made, state

    def left(self, state: State, where: Where) -> tuple[Nodes, State]:
        """A loop has ended. If it was an outermost one, so have the windows in it."""
        made: Nodes = ()
        if not where.path:
            for tick in state.ticks:
                made += self._entries(self._open(state, tick))
                state = self._emptied(state, tick)
        return made, state

    def finish(self, state: State) -> Nodes:
        """Return what was reduced over the whole run."""
        return self._entries(self._open(state, ""))

    def _open(self, state: State, tick: str) -> dict[str, Any]:
        # In the order in which keys are first logged; JAX sorts dictionaries.
        return {key: state.folds[key, tick] for key in self._plans if (key, tick) in state.folds}

    def _emptied(self, state: State, tick: str) -> State:
        new = {(key, tick): self._fold.new(self._plans[key]) for key in self._open(state, tick)}
        return state._replace(folds={**state.folds, **new})

    def _entries(self, folds: dict[str, Any], sure: bool = False) -> Nodes:
        """Make entries of reductions, those where there was something to reduce."""
        together: dict[Any, list[str]] = {}
        for key in folds:
            together.setdefault((self._plans[key].calls, self._plans[key].lanes), []).append(key)
        made: Nodes = ()
        for keys in together.values():
            plan = self._plans[keys[0]]
            rows, counts = zip(
                *(self._fold.unfold(self._plans[k], folds[k]) for k in keys), strict=True
            )
            data = {
                key: unraw(row.value, self._plans[key].value)
                for key, row in zip(keys, rows, strict=True)
            }
            steps = {name: rows[0].steps[name] for name in plan.step_names}
            meta = Meta(plan.tags, lanes=plan.lanes, site=plan.site)
            made += (Entry(data, steps, None if sure else counts[0] > 0, meta),)
        return made
