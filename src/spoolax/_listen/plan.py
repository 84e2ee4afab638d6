"""Decide, before anything runs, how each key of a program will be collected.

A survey of the traced program says what each key holds and how often it can be logged. A key whose
entries have a fixed number is stacked by the scans themselves; one in a while loop, or one that is
thinned out or reduced on the way, needs a state that the loops carry.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from .._jax.arrays import is_key, mesh_of, varying_axes
from .._log.entry import (
    Entry,
    Loop,
    Node,
    Nodes,
    alike,
    embeddings,
    entries,
    map_entries,
    needs_mask,
)
from .._log.primitive import listening
from .._logdict.logdict import matches
from .._logdict.reductions import How, check_function, reduction
from .._spool.buffer import check_overflow
from .._walk.interpret import Where
from ..errors import (
    LogTypeError,
    LogValueError,
    MixedKeyError,
    NothingSelectedWarning,
    UnboundedLogError,
)

SPILL_ROWS = 1024
SPILL_NUMBERS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Options:
    """What `spool` was asked for."""

    argnames: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    keep_logs: bool
    interval: int | None
    reduce: How | None
    prefix: str
    capacity: int | None = None
    overflow: str = "last"

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise LogTypeError(f"`prefix` must be a string, not {self.prefix!r}.")
        for name in ("interval", "capacity"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise LogValueError(f"`{name}` must be a whole number above 0, not {value!r}.")
        if self.reduce is not None:
            reduction(self.reduce)
        check_overflow(self.overflow)

    def selects(self, key: str, entry: Entry) -> bool:
        """Say whether a key of an entry was asked for."""
        if entry.meta.taken:
            return False
        if self.argnames is None and self.tags is None:
            return not entry.meta.explicit
        by_name = self.argnames is None or any(matches(key, name) for name in self.argnames)
        by_tag = self.tags is None or not set(self.tags).isdisjoint(entry.meta.tags)
        return by_name and by_tag


def names(given: str | Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Normalise the value of `argnames` or `tags`."""
    if given is None:
        return None
    try:
        given = (given,) if isinstance(given, str) else tuple(given)
    except TypeError as error:
        raise LogTypeError(
            f"`{option}` takes a string or several, not {given!r}. The arguments of the function "
            "go into a second pair of parentheses: `spoolax.spool(f)(x)`."
        ) from error
    for name in given:
        if not isinstance(name, str):
            raise LogTypeError(f"`{option}` takes strings, but one of them is {name!r}.")
    return given


@dataclasses.dataclass
class Plan:
    """What a key holds, and how it is collected: stacked, folded, or buffered."""

    key: str
    value: Any  # The types of one entry; once everything is known, with the lanes in front.
    steps: dict[str, Any]
    step_names: tuple[str, ...]  # In the order of the `log` call.
    varying: frozenset[str]  # The mesh axes over which it differs inside of `shard_map`.
    mesh: Any  # The mesh over which its type says that it is spread, if any.
    lanes: tuple[int, ...]
    site: str
    tags: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()  # The `log` calls that it is in, by number.
    count: int = 0  # At most this many entries, if `unbounded` is false,
    kept: int = 0  # and after thinning out by `interval` this many.
    unbounded: bool = False
    conditional: bool = False
    ticks: tuple[str, ...] = ()  # The loops whose iterations `interval` counts.
    # How it is collected.
    folded: bool = False
    capacity: int = 0  # 0: no buffer.
    overflow: str = "exact"

    @property
    def stacked(self) -> bool:
        return not self.folded and not self.capacity


def tick_name(where: Where, *stacked: Loop) -> str:
    """Name the loop whose iterations an entry is counted by; "" outside of all loops.

    It may be one that has ended: `stacked` are loops whose entries were logged after them.
    """
    if not stacked:
        return str(where)
    return "/".join([f"{where}+{where.ordinal}", *(loop.label.name for loop in stacked)])


def make_plans(
    found: Sequence[tuple[Nodes, Where]], options: Options, traced: bool
) -> dict[str, Plan]:
    """Plan every key that is asked for. `traced` says that all shapes must be static."""
    plans: dict[str, Plan] = {}
    calls = itertools.count()
    for nodes, where in found:
        for node in nodes:
            _note(plans, node, where, (), options, calls)
    for plan in plans.values():
        plan.value, plan.steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*plan.lanes, *x.shape), x.dtype),
            (plan.value, plan.steps),
        )
        _decide(plan, options, traced)
    return plans


def warn_of_nothing(found: Iterable[Nodes], options: Options) -> None:
    """Warn if a filter selects nothing of what there is."""
    there = [entry for nodes in found for entry in entries(nodes)]
    filtered = options.argnames or options.tags
    if not there or not filtered or any(options.selects(k, e) for e in there for k in e.data):
        return
    keys = sorted({key for entry in there for key in entry.data})
    tags = sorted({tag for entry in there for tag in entry.meta.tags})
    asked = ", ".join(
        f"{name}={value!r}"
        for name, value in (("argnames", options.argnames), ("tags", options.tags))
        if value is not None
    )
    warnings.warn(
        f"Nothing is collected: {asked} selects none of the keys {keys} with tags {tags}.",
        NothingSelectedWarning,
        stacklevel=2,
    )


def _note(
    plans: dict[str, Plan],
    node: Node,
    where: Where,
    loops: tuple[Loop, ...],
    options: Options,
    calls: Iterator[int],
) -> None:
    if isinstance(node, Loop):
        for child in node.body:
            _note(plans, child, where, (*loops, node), options, calls)
        return
    tick = tick_name(where, *loops)
    call = next(calls)
    meta = node.meta
    for key, value in node.data.items():
        if not options.selects(key, node):
            continue
        skip = len(meta.times) + len(meta.lanes)
        one, steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[skip:], x.dtype), (value, node.steps)
        )
        plan = plans.setdefault(
            key, Plan(key, one, steps, tuple(node.steps), frozenset(), None, meta.lanes, meta.site)
        )
        plan.calls += (call,)
        plan.tags += tuple(tag for tag in meta.tags if tag not in plan.tags)
        plan.varying = plan.varying.union(*map(varying_axes, jax.tree.leaves(node)))
        plan.mesh = next(filter(None, map(mesh_of, jax.tree.leaves(node))), plan.mesh)
        _check_same(plan, one, steps, meta.site)
        _join_lanes(plan, meta.lanes, meta.site)
        lengths = (*(frame.length for frame in where.path), *meta.times)
        iterations = math.prod(length for length in lengths if length is not None)
        plan.count += iterations
        if options.reduce is None or not tick or tick not in plan.ticks:  # Else, the same windows.
            every = options.interval if options.interval and tick else 1
            plan.kept += -(-iterations // every)
        plan.unbounded |= where.unbounded
        plan.conditional |= where.conditional or node.mask is not None
        if tick and tick not in plan.ticks:
            plan.ticks += (tick,)


def _check_same(plan: Plan, value: Any, steps: Any, site: str) -> None:
    if not alike(plan.value, value):
        raise MixedKeyError(
            f"The key {plan.key!r} is logged with two types: {_types(plan.value)} at {plan.site}, "
            f"and {_types(value)} at {site}. Entries of one key are joined into one array, so "
            "convert one of them, or log it under another name."
        )
    if set(plan.steps) != set(steps) or not alike(plan.steps, steps):
        raise MixedKeyError(
            f"The key {plan.key!r} is logged with the steps {_types(plan.steps)} at {plan.site}, "
            f"and with {_types(steps)} at {site}. Give both the same named steps, or log one of "
            "them under another name."
        )


def _join_lanes(plan: Plan, lanes: tuple[int, ...], site: str) -> None:
    """A key may be logged inside and outside of `vmap`: outside, for all lanes at once."""
    if needs_mask(plan.lanes, lanes):  # As of `lax.map`, whose last batch is smaller.
        plan.lanes = tuple(map(max, plan.lanes, lanes))
        plan.conditional = True
        return
    few, many = sorted((plan.lanes, lanes), key=len)
    if few != many and len(embeddings(few, many)) != 1:
        raise MixedKeyError(
            f"The key {plan.key!r} is logged in the `vmap` lanes {plan.lanes} at {plan.site} "
            f"and in {lanes} at {site}, which do not fit together. Log one of them under another "
            "name."
        )
    plan.lanes = many


def _types(tree: Any) -> str:
    def one(x: Any) -> str:
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"

    return str(jax.tree.map(one, tree)).replace("'", "") if jax.tree.leaves(tree) else "none"


def _decide(plan: Plan, options: Options, traced: bool) -> None:
    windowed = options.interval is not None and bool(plan.ticks)
    plan.folded = options.reduce is not None
    has_keys = any(is_key(x) for x in jax.tree.leaves(plan.value))
    if has_keys and plan.folded and options.reduce not in ("first", "last"):
        raise LogTypeError(
            f"{plan.key!r}, logged at {plan.site}, holds random keys, which have no "
            f"{options.reduce!r}. Use `reduce='first'` or 'last', or select other keys with "
            "`argnames`."
        )
    if callable(options.reduce):
        check_function(options.reduce, plan.value, plan.key)
    if plan.folded and not windowed:
        return
    bound = plan.kept if windowed else plan.count
    if options.capacity is not None and (
        plan.unbounded or (plan.ticks and bound > options.capacity)
    ):
        plan.capacity, plan.overflow = options.capacity, options.overflow
    elif plan.unbounded and traced:
        raise UnboundedLogError(
            f"Cannot spool {plan.key!r}, logged at {plan.site}, from inside `jax.lax.while_loop` "
            "in a traced function (under `jax.jit`, `vmap`, `grad`, ...): the number of entries "
            "is unknown until run time. Pass `capacity=` to keep that many, `reduce=` to fold "
            "them into one, or call the spooled function outside of any trace to get them all."
        )
    elif plan.unbounded:
        numbers = sum(math.prod(x.shape) for x in jax.tree.leaves((plan.value, plan.steps)))
        plan.capacity = max(1, min(SPILL_ROWS, SPILL_NUMBERS // max(1, numbers)))
        plan.overflow = "spill"
    elif windowed:
        plan.capacity = max(1, bound)


def restrict(nodes: Sequence[Node], wanted: Callable[[str, Entry], bool]) -> Nodes:
    """Keep only some keys of entries, and only entries with keys left."""

    def keys(entry: Entry) -> Entry:
        return entry.replace(
            data={key: value for key, value in entry.data.items() if wanted(key, entry)}
        )

    return _pruned(map_entries(keys, nodes))


def is_heard(entry: Entry) -> bool:
    """Say whether somebody else wants an entry: a tap that has it already, or one further out."""
    return bool(entry.meta.taps) or listening.value is not None


def left_over(nodes: Nodes, options: Options) -> Nodes:
    """What a listener leaves in the program for others."""
    if options.keep_logs:
        return restrict(nodes, lambda key, entry: is_heard(entry))

    def close(entry: Entry) -> Entry:
        return entry.replace(meta=dataclasses.replace(entry.meta, taken=True))

    not_ours = restrict(nodes, lambda k, e: is_heard(e) and not options.selects(k, e))
    shared = restrict(nodes, lambda k, e: bool(e.meta.taps) and options.selects(k, e))
    return not_ours + map_entries(close, shared)


def _pruned(nodes: Sequence[Node]) -> Nodes:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            node = Loop(_pruned(node.body), node.label)
            if node.body:
                kept.append(node)
        elif node.data:
            kept.append(node)
    return tuple(kept)
