"""What a program logs, key by key: types, lanes, and how many entries there can be."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from .._jax.arrays import is_key, mesh_of, raw_spec, type_text, varying_axes
from .._log.entry import Loop, Node, Nodes, alike, embeddings, needs_mask
from .._logdict.reductions import How, check_function
from .._walk.places import Where
from ..errors import LogTypeError, MixedKeyError
from .options import Options


@dataclasses.dataclass
class Key:
    """Everything that is known about a key before the program runs."""

    name: str
    value: Any  # The types of one entry; once everything is known, with the lanes in front.
    steps: dict[str, Any]
    step_names: tuple[str, ...]  # In the order of the `log` call.
    varying: frozenset[str]  # The mesh axes over which it differs inside `shard_map`.
    mesh: Any  # The mesh that its type says it is sharded over, if any,
    specs: list[tuple[Any, ...]]  # and how the axes of each array of an entry are, but lanes.
    lanes: tuple[int, ...]
    site: str
    backward: bool  # All of it is logged in backward passes.
    tags: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()  # The `log` calls that it is in, by number.
    count: int = 0  # At most this many entries, if `unbounded` is false,
    kept: int = 0  # and after thinning out by `interval` this many.
    unbounded: bool = False
    conditional: bool = False
    loops: tuple[str, ...] = ()  # Those whose iterations `interval` counts.


def loop_name(where: Where, *stacked: Loop) -> str:
    """Name the loop whose iterations an entry is counted by; "" outside all loops.

    It may be one that has ended: `stacked` are loops whose entries were logged after them.
    """
    if not stacked:
        return str(where)
    return "/".join([f"{where}+{where.ordinal}", *(loop.label.name for loop in stacked)])


def keys_of(found: Sequence[tuple[Nodes, Where]], options: Options) -> dict[str, Key]:
    """Describe every selected key."""
    keys: dict[str, Key] = {}
    calls = itertools.count()
    for nodes, where in found:
        for node in nodes:
            _add(keys, node, where, (), options, calls)
    for key in keys.values():
        key.value, key.steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*key.lanes, *x.shape), x.dtype), (key.value, key.steps)
        )
        if options.reduce is not None:
            _check_reducible(key, options.reduce)
    return keys


def _check_reducible(key: Key, how: How) -> None:
    has_keys = any(is_key(x) for x in jax.tree.leaves(key.value))
    if has_keys and how not in ("first", "last"):
        raise LogTypeError(
            f"{key.name!r}, logged at {key.site}, holds random keys, which have no {how!r}. Use "
            "`reduce='first'` or 'last', or select other keys with `argnames`."
        )
    if callable(how):
        check_function(how, key.value, key.name)


def _add(
    keys: dict[str, Key],
    node: Node,
    where: Where,
    loops: tuple[Loop, ...],
    options: Options,
    calls: Iterator[int],
) -> None:
    if isinstance(node, Loop):
        for child in node.body:
            _add(keys, child, where, (*loops, node), options, calls)
        return
    loop, call, meta = loop_name(where, *loops), next(calls), node.meta
    for name, value in node.data.items():
        if not options.selects(name, node):
            continue
        skip = len(meta.times) + len(meta.lanes)
        one, steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[skip:], x.dtype), (value, node.steps)
        )
        specs = [raw_spec(x)[skip:] for x in jax.tree.leaves(value)]
        about = (tuple(node.steps), frozenset[str](), None, specs, meta.lanes, meta.site)
        key = keys.setdefault(name, Key(name, one, steps, *about, meta.backward))
        key.backward &= meta.backward
        key.calls += (call,)
        key.tags += tuple(tag for tag in meta.tags if tag not in key.tags)
        key.varying = key.varying.union(*map(varying_axes, jax.tree.leaves(node)))
        key.mesh = next(filter(None, map(mesh_of, jax.tree.leaves(node))), key.mesh)
        _check_same(key, one, steps, meta.site)
        pairs = zip(key.specs, specs, strict=True)
        key.specs = [mine if mine == its else (None,) * len(its) for mine, its in pairs]
        _join_lanes(key, meta.lanes, meta.site)
        lengths = (*(frame.length for frame in where.path), *meta.times)
        iterations = math.prod(length for length in lengths if length is not None)
        key.count += iterations
        if options.reduce is None or not loop or loop not in key.loops:  # Else, the same windows.
            every = options.interval if options.interval and loop else 1
            key.kept += -(-iterations // every)
        key.unbounded |= where.unbounded
        key.conditional |= where.conditional or node.mask is not None
        if loop and loop not in key.loops:
            key.loops += (loop,)


def _check_same(key: Key, value: Any, steps: Any, site: str) -> None:
    if not alike(key.value, value):
        raise MixedKeyError(
            f"The key {key.name!r} is logged with two types: {_types(key.value)} at {key.site}, "
            f"and {_types(value)} at {site}. Entries of one key are joined into one array, so "
            "convert one of them, or log it under another name."
        )
    if set(key.steps) != set(steps) or not alike(key.steps, steps):
        raise MixedKeyError(
            f"The key {key.name!r} is logged with the steps {_types(key.steps)} at {key.site}, "
            f"and with {_types(steps)} at {site}. Give both the same named steps, or log one of "
            "them under another name."
        )


def _join_lanes(key: Key, lanes: tuple[int, ...], site: str) -> None:
    """Combine lanes: a call outside `vmap` logs for all lanes at once."""
    if needs_mask(key.lanes, lanes):  # As with `lax.map`, whose last batch is smaller.
        key.lanes = tuple(map(max, key.lanes, lanes))
        key.conditional = True
        return
    few, many = sorted((key.lanes, lanes), key=len)
    if few != many and len(embeddings(few, many)) != 1:
        raise MixedKeyError(
            f"The key {key.name!r} is logged in the `vmap` lanes {key.lanes} at {key.site} "
            f"and in {lanes} at {site}, which do not fit together. Log one of them under another "
            "name."
        )
    key.lanes = many


def _types(tree: Any) -> str:
    text = str(jax.tree.map(type_text, tree)).replace("'", "")
    return text if jax.tree.leaves(tree) else "none"
