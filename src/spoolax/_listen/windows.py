"""Thin out or reduce entries on their way, on the device, as `interval` and `reduce` say.

Entries go in, and entries come out, masked by whether they are due; what is done with them is the
listener's affair. With `reduce`, what comes out is what a window of iterations came to, or the
whole run: one entry for the keys that are logged by the same calls.

Nothing is put under `lax.cond`: on a GPU, that costs a wait for the device in every iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax.arrays import as_key, gathered, is_key, raw, raw_type, spread_over, vary
from .._log.entry import (
    Entry,
    Loop,
    Meta,
    Nodes,
    both,
    map_entries,
    map_ran,
    mask_for,
    masked,
    needs_mask,
    stacked,
    widen,
)
from .._logdict import reductions
from .._walk.places import Where
from .keys import Key, loop_name
from .options import Options


class WindowState(NamedTuple):
    """By loop, how many iterations there were; by key (and loop), the reduction under way."""

    counts: dict[str, Any]
    folds: dict[tuple[str, str], Any]


class KeyEntry(NamedTuple):
    """One entry of one key. Steps and mask have a value for each lane."""

    value: Any
    steps: Any
    mask: Any


class Windows:
    """What `interval` and `reduce` do to the entries of one listener."""

    def __init__(self, keys: dict[str, Key], options: Options) -> None:
        self._keys, self._interval = keys, options.interval
        self._windowed = options.windowed
        self._reduces = options.reduce is not None
        self._how = options.reduce or "last"
        # A reduced entry has the step of the last entry in it, or of the one that was kept.
        self._step_how = "first" if self._how == "first" else "last"
        self._types = {name: jax.tree.map(raw_type, key.value) for name, key in keys.items()}

    def start(self) -> WindowState:
        counts: dict[str, Any] = {}
        folds: dict[tuple[str, str], Any] = {}
        for name, key in self._keys.items():
            if self._interval is not None:
                counts.update({loop: jnp.int32(0) for loop in key.loops})
            if self._reduces:
                windows = key.loops if self._interval is not None else ()
                folds.update({(name, window): self._new(key) for window in windows or ("",)})
        return WindowState(counts, folds)

    def type_of(self, name: str) -> KeyEntry:
        """The types of an entry of a key that comes out. There is a mask where one is needed."""
        key = self._keys[name]
        value, steps = self._types[name], key.steps
        if self._reduces:
            value, steps, _ = jax.eval_shape(lambda: self._reduced(key, self._new(key)))
        has_mask = key.conditional and key.lanes
        return KeyEntry(
            value, steps, jax.ShapeDtypeStruct(key.lanes, jnp.bool_) if has_mask else None
        )

    def take(self, state: WindowState, nodes: Nodes, where: Where) -> tuple[Nodes, WindowState]:
        """Take entries in, and return those that are due."""
        if not self._windowed:
            return map_ran(lambda ran, depth: None, nodes), state  # Nobody counts.
        made: Nodes = ()
        for node in nodes:
            if isinstance(node, Entry):
                new, state = self._take(state, node, loop_name(where))
                made += new
            else:
                new, state = self._take_rows(state, where, (node,), node.ran)
                made += new
                new, state = self.left(state, where)
                made += new
        return made, state

    def _take_rows(
        self, state: WindowState, where: Where, loops: tuple[Loop, ...], ran: Any
    ) -> tuple[Nodes, WindowState]:
        loop, rows = loop_name(where, *loops), loops[-1].body

        def body(state: WindowState, rows: Nodes) -> tuple[WindowState, Nodes]:
            made: Nodes = ()
            for node in map_entries(without_time, rows):
                if isinstance(node, Entry):
                    new, state = self._take(state, node, loop)
                else:
                    inner = both(node.ran, ran)
                    new, state = self._take_rows(state, where, (*loops, node), inner)
                made += new
            new, state = self._counted(state, loop, ran)
            return state, made + new

        length = jax.tree.leaves(rows)[0].shape[0]
        state, made = lax.scan(body, state, rows)
        return stacked(made, length, False, loops[-1].label.name), state

    def _take(self, state: WindowState, entry: Entry, loop: str) -> tuple[Nodes, WindowState]:
        counted = loop in state.counts
        assert counted or not loop or self._interval is None, f"nobody counts {loop}"
        if not self._reduces:
            if not counted:
                return (entry,), state
            return masked((entry,), state.counts[loop] % self._interval == 0), state
        folds, alone, sure = dict(state.folds), {}, set()
        for name, value in entry.data.items():
            window = name, loop if counted else ""
            one = entry_of_key(self._keys[name], entry, value)
            if window in folds:
                fold = self._restarted(folds[window], one) if counted else folds[window]
                folds[window] = self._fold(self._keys[name], fold, one)
            else:  # A window of its own: an entry outside the loops that are counted.
                key = self._keys[name]
                alone[name] = self._fold(key, self._new(key), one)
                if one.mask is None:
                    sure.add(name)
        return self._entries(alone, sure), state._replace(folds=folds)

    def iterated(self, state: WindowState, where: Where) -> tuple[Nodes, WindowState]:
        """An iteration of the loop `where` has ended, and with it perhaps a window."""
        return self._counted(state, str(where))

    def _counted(self, state: WindowState, loop: str, ran: Any = None) -> tuple[Nodes, WindowState]:
        if loop not in state.counts:
            return (), state
        count = state.counts[loop] + (1 if ran is None else ran.astype(jnp.int32))
        state = state._replace(counts={**state.counts, loop: count})
        folds = self._open(state, loop)
        if not folds:
            return (), state
        due = both(ran, count % self._interval == 0)
        made = masked(self._entries(folds), due)
        return made, _with_folds(state, loop, _emptied(folds, due))

    def left(self, state: WindowState, where: Where) -> tuple[Nodes, WindowState]:
        """A loop has ended. If it was an outermost one, so have the windows in it."""
        made: Nodes = ()
        if not where.path:
            for loop in sorted(state.counts):  # As it is once they have been through JAX.
                folds = self._open(state, loop)
                made += self._entries(folds)
                state = _with_folds(state, loop, _emptied(folds, True))
        return made, state

    def finish(self, state: WindowState) -> Nodes:
        """Return what was reduced over the whole run."""
        return self._entries(self._open(state, ""))

    def _open(self, state: WindowState, loop: str) -> dict[str, Any]:
        # In the order in which keys are first logged; JAX sorts dictionaries.
        return {name: state.folds[name, loop] for name in self._keys if (name, loop) in state.folds}

    def _entries(self, folds: dict[str, Any], sure: Container[str] = ()) -> Nodes:
        """Make entries of reductions, masked by whether there was anything, unless that is sure."""
        together: dict[Any, list[str]] = {}
        for name in folds:
            key = self._keys[name]
            together.setdefault((key.calls, key.lanes), []).append(name)
        made: Nodes = ()
        for names in together.values():
            key = self._keys[names[0]]
            reduced = {name: self._reduced(self._keys[name], folds[name]) for name in names}
            data = {
                name: unraw(value, self._keys[name].value)
                for name, (value, _, _) in reduced.items()
            }
            _, steps, count = reduced[names[0]]
            steps = {name: steps[name] for name in key.step_names}
            meta = Meta(key.tags, lanes=key.lanes, backward=key.backward, site=key.site)
            made += (Entry(data, steps, None if names[0] in sure else count > 0, meta),)
        return made

    # A reduction under way is a pair of trees: of values, and of steps.

    def _new(self, key: Key) -> Any:
        value, steps = (
            jax.tree.map(lambda x: reductions.start(how, x, key.lanes), types)
            for how, types in ((self._how, self._types[key.name]), (self._step_how, key.steps))
        )
        return typed(value, key), typed_plainly(steps, key)

    def _restarted(self, fold: Any, one: KeyEntry) -> Any:
        value, steps = fold
        return (
            _map_folds(lambda f, x: reductions.restart(self._how, f, x), value, one.value),
            _map_folds(lambda f, x: reductions.restart(self._step_how, f, x), steps, one.steps),
        )

    def _fold(self, key: Key, fold: Any, one: KeyEntry) -> Any:
        value, steps = fold
        value = _map_folds(
            lambda f, x: reductions.push(self._how, f, x, one.mask), value, one.value
        )
        return (
            typed(value, key),  # Whatever a function of the user's made of it.
            _map_folds(
                lambda f, x: reductions.push(self._step_how, f, x, one.mask), steps, one.steps
            ),
        )

    def _reduced(self, key: Key, fold: Any) -> tuple[Any, dict[str, Any], Any]:
        """What a reduction came to: value, steps, and how many entries went into it, by lane."""
        value, steps = fold
        count = jax.tree.leaves(value, is_leaf=_is_fold)[0].count
        types = self._types[key.name]
        return (
            _map_folds(lambda f, x: reductions.finish(self._how, f, x), value, types),
            _map_folds(lambda f, x: reductions.finish(self._step_how, f, x), steps, key.steps),
            count,
        )


def _with_folds(state: WindowState, loop: str, folds: dict[str, Any]) -> WindowState:
    new = {(name, loop): fold for name, fold in folds.items()}
    return state._replace(folds={**state.folds, **new})


def entry_of_key(key: Key, entry: Entry, value: Any) -> KeyEntry:
    """Make an entry of a key alone, with all the lanes that the key has."""
    # Loops carry one type of state, whatever the program does to the layout of values.
    lanes, value = entry.meta.lanes, jax.tree.map(raw, value)
    is_padded = needs_mask(lanes, key.lanes)
    value = _gathered(value, key) if is_padded else _placed(value, key, lanes)
    one = KeyEntry(value, *_gathered((entry.steps, mask_for(entry, key.lanes)), key))
    wide: KeyEntry = jax.tree.map(lambda x: widen(x, 0, lanes, key.lanes), one)
    return wide._replace(value=_placed(wide.value, key, key.lanes))


def without_time(entry: Entry) -> Entry:
    """An entry as it is inside the loop that stacked it."""
    return entry.replace(meta=dataclasses.replace(entry.meta, times=entry.meta.times[1:]))


def typed(value: Any, key: Key) -> Any:
    """Give a state of the values of a key the type that it has in loops: it may vary over axes of a
    mesh, or be spread over it."""
    return _placed(_varied(value, key), key, key.lanes)


def typed_plainly(state: Any, key: Key) -> Any:
    """The same for what is not made of its values, of which every device has a copy."""
    return _gathered(_varied(state, key), key)


def _varied(tree: Any, key: Key) -> Any:
    return jax.tree.map(lambda x: vary(x, key.varying), tree)


def _gathered(tree: Any, key: Key) -> Any:
    return jax.tree.map(lambda x: gathered(x, key.mesh), tree)


def _placed(value: Any, key: Key, lanes: tuple[int, ...]) -> Any:
    """Spread arrays over the mesh as the values of a key are, and gather numbers of each lane."""
    if key.mesh is None:
        return value

    def place(x: Any, spec: tuple[Any, ...]) -> Any:
        if x.ndim < len(lanes) + len(spec):
            return gathered(x, key.mesh)
        return spread_over(x, key.mesh, (None,) * (x.ndim - len(spec)) + spec)

    tree = jax.tree.structure(key.value)
    parts = zip(tree.flatten_up_to(value), key.specs, strict=True)
    return tree.unflatten([jax.tree.map(lambda x: place(x, spec), part) for part, spec in parts])


def unraw(value: Any, like: Any) -> Any:
    """Make random keys of plain numbers again, where `like` has them."""
    return jax.tree.map(lambda x, one: as_key(x, one.dtype) if is_key(one) else x, value, like)


def _emptied(folds: dict[str, Any], when: Any) -> dict[str, Any]:
    """End windows. What they hold is forgotten when the next entry comes."""

    def empty(fold: reductions.Folded) -> reductions.Folded:
        return fold._replace(count=jnp.where(when, jnp.zeros_like(fold.count), fold.count))

    return {name: _map_folds(empty, fold) for name, fold in folds.items()}


def _is_fold(x: Any) -> bool:
    return isinstance(x, reductions.Folded)


def _map_folds(function: Callable[..., Any], folds: Any, *rest: Any) -> Any:
    return jax.tree.map(function, folds, *rest, is_leaf=_is_fold)
