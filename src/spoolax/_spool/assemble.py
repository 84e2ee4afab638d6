"""Make a `LogDict` of what was collected: padded to static shapes, then without the padding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import arrays, processes
from .._listen.keys import Key
from .._listen.windows import KeyEntry, unraw
from .._log.entry import Entry, Node, Nodes, mask_for, restrict, widen
from .._logdict.logdict import LogDict, from_series
from .._logdict.series import Series
from .collect import STAMP, Result
from .plan import Plan


def assemble(
    plans: dict[str, Plan], nodes: Nodes, results: dict[str, Result], prefix: str
) -> LogDict:
    """Join what scans stacked and the other results, in the order in which keys first appear."""

    def wanted(key: str) -> Callable[[str, Entry], bool]:
        return lambda name, entry: name == key

    series = {}
    for key, plan in plans.items():
        if plan.stacked:
            value, steps, valid, is_series = _joined(restrict(nodes, wanted(key)), plan.key)
            dropped = None
        else:
            value, steps, valid, lost = results[key]
            is_series = bool(plan.capacity)
            dropped = lost if plan.overflow in ("first", "last", "thin") else None
        series[prefix + key] = Series(
            value,
            {name: steps[name] for name in plan.key.step_names if name != STAMP},
            valid,
            dropped,
            is_series,
            lanes=len(plan.key.lanes),
            own=len(jax.tree.leaves(plan.key.value)[0].shape) - len(plan.key.lanes),
            backward=steps.get(STAMP),
        )
    return from_series(series)


def _joined(nodes: Nodes, key: Key) -> tuple[Any, Any, Any, bool]:
    """Join the entries of a key; a single one that certainly happened stays as it was logged."""
    if len(nodes) == 1 and isinstance(nodes[0], Entry) and nodes[0].mask is None:
        return nodes[0].data[key.name], nodes[0].steps, None, False
    return (*_rows(nodes, key), True)


def _rows(nodes: Sequence[Node], key: Key, depth: int = 0) -> tuple[Any, Any, Any]:
    """Join the entries of a key along one axis, behind `depth` axes of enclosing loops."""
    pieces = []
    for node in nodes:
        if isinstance(node, Entry):
            piece = (node.data[key.name], node.steps, mask_for(node, key.lanes))
            piece = jax.tree.map(lambda x: widen(x, depth, node.meta.lanes, key.lanes), piece)
            pieces.append(jax.tree.map(lambda x: jnp.expand_dims(x, depth), piece))
        else:
            piece = _rows(node.body, key, depth + 1)
            pieces.append(jax.tree.map(lambda x: _merge_axes(x, depth), piece))
    masked = any(mask is not None for _, _, mask in pieces)
    if masked:
        pieces = [(v, s, _full_mask(v, m, depth, key.lanes)) for v, s, m in pieces]
    value, steps, mask = jax.tree.map(lambda *xs: jnp.concatenate(xs, depth), *pieces)
    return value, steps, mask


def _merge_axes(x: Any, axis: int) -> Any:
    shape = x.shape
    return jnp.reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _full_mask(value: Any, mask: Any, depth: int, lanes: tuple[int, ...]) -> Any:
    if mask is not None:
        return mask
    rows = jax.tree.leaves(value)[0].shape[: depth + 1]
    return jnp.ones((*rows, *lanes), jnp.bool_)


def with_spilled(
    logs: LogDict, spilled: dict[str, list[KeyEntry]], plans: dict[str, Plan]
) -> LogDict:
    """Put what came to the host while the program ran in front of what was left at its end.

    `spilled` and `plans` are by the names that keys have in `logs`.
    """
    series = {key: logs.series(key) for key in logs}
    for key, chunks in spilled.items():
        one = series[key]
        steps = one.steps if one.backward is None else {**one.steps, STAMP: one.backward}
        last = KeyEntry(jax.tree.map(arrays.raw, one.value), steps, one.mask)
        rows = [row._replace(mask=_chunk_mask(row, last.mask)) for row in chunks]
        joined = jax.tree.map(lambda last, *xs: _in_front(xs, last), last, *rows)
        value = unraw(joined.value, plans[key].key.value)
        backward = joined.steps.pop(STAMP, None)
        new = {"value": value, "steps": joined.steps, "valid": joined.mask, "backward": backward}
        series[key] = dataclasses.replace(one, **new)
    return from_series(series)


def _in_front(chunks: Sequence[Any], last: Any) -> Any:
    """Put rows from the host in front of others, which stay where they are if they are spread."""
    if not arrays.is_spread(last):
        return np.concatenate([*chunks, np.asarray(last)])
    place = arrays.without_first_axis(last.sharding)
    return _concatenate(place)(jax.device_put(np.concatenate(chunks), place), last)


@functools.cache
def _concatenate(place: Any) -> Any:
    return jax.jit(lambda *parts: jnp.concatenate(parts), out_shardings=place)


def _chunk_mask(row: KeyEntry, like: Any) -> Any:
    # A chunk is full, so without a mask of lanes all of it is real.
    if row.mask is not None:
        return row.mask
    return np.ones((len(jax.tree.leaves(row)[0]), *like.shape[1:]), bool)


def only_real(logs: LogDict) -> LogDict:
    """Keep only the entries that happened, in at least one lane. Works on the host."""
    series = {key: logs.series(key) for key in logs}
    masks = processes.readable(list(logs._valid.values()))
    for key, mask in zip(logs._valid, jax.device_get(masks), strict=True):
        one = series[key]
        if one.stacked:
            kept = mask.any(tuple(range(1, mask.ndim)))
            mask = mask[kept]
            one = one.map(lambda x: _take(x, kept))
        series[key] = dataclasses.replace(one, valid=None if mask.all() else mask)
    rows: list[Any] = []
    for one in series.values():
        one.map(lambda x: None if arrays.is_spread(x) else rows.append(x))
    placed = iter(jax.device_put(rows))  # All at once, which is faster than one by one.
    return from_series(
        {
            key: one.map(lambda x: x if arrays.is_spread(x) else next(placed))
            for key, one in series.items()
        }
    )


def _take(rows: Any, kept: Any) -> Any:
    if arrays.is_key(rows):
        return arrays.as_key(_take(jax.random.key_data(rows), kept), rows.dtype)
    if kept.all():
        return rows
    if not arrays.is_spread(rows):
        return np.asarray(rows)[kept]
    return _selected(arrays.without_first_axis(rows.sharding))(rows, np.flatnonzero(kept))


@functools.cache
def _selected(place: Any) -> Any:
    return jax.jit(lambda rows, numbers: rows[numbers], out_shardings=place)
