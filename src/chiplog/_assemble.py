"""Make a `LogDict` of what was collected: first with static shapes, then of what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _jax_compat as compat
from ._entry import Entry, Node, Nodes, widen
from ._fold import Result, Row, raw, unraw
from ._logdict import LogDict
from ._plan import Plan, restrict


def assemble(
    plans: dict[str, Plan], nodes: Nodes, folded: dict[str, Result], prefix: str
) -> LogDict:
    """Join what scans stacked and what was folded, in the order in which keys first appear."""
    values, valid, dropped, stacked = {}, {}, {}, []
    steps: dict[str, dict[str, Any]] = {}

    def wanted(key: str) -> Callable[[str, Entry], bool]:
        return lambda name, entry: name == key

    for key, plan in plans.items():
        name = prefix + key
        if plan.stacked:
            value, at, mask, single = _joined(restrict(nodes, wanted(key)), plan)
            if not single:
                stacked.append(name)
        else:
            value, at, mask, lost = folded[key]
            if plan.capacity:
                stacked.append(name)
            if plan.overflow in ("first", "last", "thin"):
                dropped[name] = lost
        values[name] = value
        for step in plan.step_names:
            steps.setdefault(step, {})[name] = at[step]
        if mask is not None:
            valid[name] = mask
    return LogDict(values, steps=steps, valid=valid, dropped=dropped, stacked=stacked)


def _joined(nodes: Nodes, plan: Plan) -> tuple[Any, Any, Any, bool]:
    """Join the entries of a key; a single one that certainly happened stays as it was logged."""
    if len(nodes) == 1 and isinstance(nodes[0], Entry) and nodes[0].mask is None:
        return nodes[0].data[plan.key], nodes[0].steps, None, True
    return (*_rows(nodes, plan), False)


def _rows(nodes: Sequence[Node], plan: Plan, depth: int = 0) -> tuple[Any, Any, Any]:
    """Join the entries of a key along one axis, behind `depth` axes of enclosing loops."""
    pieces = []
    for node in nodes:
        if isinstance(node, Entry):
            piece = (node.data[plan.key], node.steps, node.mask)
            piece = jax.tree.map(lambda x: widen(x, depth, node.meta.lanes, plan.lanes), piece)
            pieces.append(jax.tree.map(lambda x: jnp.expand_dims(x, depth), piece))
        else:
            piece = _rows(node.body, plan, depth + 1)
            pieces.append(jax.tree.map(lambda x: _merge_axes(x, depth), piece))
    masked = any(mask is not None for _, _, mask in pieces)
    if masked:
        pieces = [(v, s, _full_mask(v, m, depth, plan.lanes)) for v, s, m in pieces]
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
    logs: LogDict, spilled: dict[str, list[Row]], plans: dict[str, Plan], prefix: str
) -> LogDict:
    """Put what came to the host while the program ran in front of what was left at its end."""
    values, valid = dict(logs), dict(logs._valid)
    steps = {name: dict(by_key) for name, by_key in logs.steps.items()}
    for key, chunks in spilled.items():
        name, plan = prefix + key, plans[key]
        at = {step: by_key[name] for step, by_key in steps.items() if name in by_key}
        last = jax.device_get(Row(raw(values[name]), at, valid[name]))
        masks = [_chunk_mask(row, last.mask) for row in chunks]
        rows = [row._replace(mask=mask) for row, mask in zip(chunks, masks, strict=True)]
        joined = jax.tree.map(lambda *xs: np.concatenate(xs), *rows, last)
        values[name] = unraw(joined.value, plan.value)
        valid[name] = joined.mask
        for step, when in joined.steps.items():
            steps[step][name] = when
    return LogDict(values, steps=steps, valid=valid, dropped=logs._dropped, stacked=logs.stacked)


def _chunk_mask(row: Row, like: Any) -> Any:
    # A chunk is full, so without a mask of lanes all of it is real.
    if row.mask is not None:
        return row.mask
    return np.ones((len(jax.tree.leaves(row)[0]), *like.shape[1:]), bool)


def happened(logs: LogDict) -> LogDict:
    """Keep only the entries that happened, in at least one lane. Works on the host."""
    values, valid = dict(logs), dict(logs._valid)
    steps = {name: dict(by_key) for name, by_key in logs.steps.items()}
    for key, mask in jax.device_get(logs._valid).items():
        if key in logs.stacked:
            kept = mask.any(tuple(range(1, mask.ndim)))
            mask = mask[kept]
            values[key] = jax.tree.map(lambda rows: _take(rows, kept), values[key])
            for by_key in steps.values():
                if key in by_key:
                    by_key[key] = _take(by_key[key], kept)
        if mask.all():
            del valid[key]
        else:
            valid[key] = jnp.asarray(mask)
    return LogDict(values, steps=steps, valid=valid, dropped=logs._dropped, stacked=logs.stacked)


def _take(rows: Any, kept: Any) -> Any:
    if compat.is_key(rows):
        return compat.as_key(_take(jax.random.key_data(rows), kept), rows.dtype)
    if kept.all():
        return jnp.asarray(rows)
    return jnp.asarray(np.asarray(rows)[kept])
