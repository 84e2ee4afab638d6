"""What one executed `log` call holds, as a pytree, before it is collected.

An `Entry` is one call. Entries that came out of a loop stand in a `Loop`, whose arrays have the
iterations as a leading axis. The shape of every array in an entry is

    (*meta.times, *meta.lanes, *shape of the logged value)

with one axis per enclosing `Loop`, then one per `vmap` (outermost first) or device axis.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from .._jax.arrays import zeros
from .._jax.primitives import Jaxpr


class Listener(Protocol):
    """Claims entries while a program is traced, and gets them when it runs."""

    listens_to_python: bool  # Then it also hears what is logged outside of programs.

    def claimed(self, nodes: Nodes) -> Nodes:
        """The same entries, of which it has claimed those that it wants."""

    def heard(self, nodes: Nodes) -> None:
        """Something was logged outside of programs."""

    def wants(self, jaxpr: Jaxpr) -> bool:
        """Say whether it puts something of its own into a program that is compiled in a block."""

    def instrumented(self, jaxpr: Jaxpr) -> Jaxpr:
        """The program with that in it."""

    def compile(self, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """Evaluate a program so that the entries in it reach those who have claimed them."""


class Alarm(Protocol):
    """Makes entries that hardly ever happen. Their masks may be true when they do not."""

    @property
    def holds_up(self) -> bool:
        """Whether the program is to wait until they have been delivered."""

    def confirmed(self, entry: Entry) -> Entry:
        """Return what is to be sent of such an entry, with a mask that is right."""


class Devices(NamedTuple):
    """Devices of a mesh, in the order of the mesh."""

    axes: tuple[tuple[str, int], ...]  # The names and sizes of the axes that they are along.
    names: tuple[str, ...]  # Of each device; empty if the mesh does not say.

    @property
    def coordinates(self) -> tuple[dict[str, int], ...]:
        """Where in the mesh each of them is."""
        places = itertools.product(*(range(size) for _, size in self.axes))
        names = [name for name, _ in self.axes]
        return tuple(dict(zip(names, place, strict=True)) for place in places)


@dataclasses.dataclass(frozen=True)
class Meta:
    """What is known about an entry when the program is traced."""

    tags: tuple[str, ...] = ()
    explicit: bool = False
    times: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    # It cannot be taken out of a function that is being differentiated. If that is checkpointed,
    # and split into what is known and what runs again, this tells which entries are in both.
    token: int | None = dataclasses.field(default=None, compare=False)
    # Who has claimed it, and whether others may have it too.
    listeners: tuple[Listener, ...] = ()
    taken: bool = False
    backward: bool = False  # It is logged in the backward pass of a derivative.
    passes: str = dataclasses.field(default="", compare=False)  # See `tracing.passes`.
    # It hardly ever happens, so it may call the host on its own, if this confirms it.
    alarm: Alarm | None = dataclasses.field(default=None, compare=False)
    # Under `shard_map`: what is along the outermost axis of lanes.
    devices: Devices | None = dataclasses.field(default=None, compare=False)
    site: str = dataclasses.field(default="", compare=False)
    # The `log` call in the user's code, the same whenever that runs. None: it is not one.
    call: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def rare(self) -> bool:
        """Whether it hardly ever happens."""
        return self.alarm is not None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One `log` call: values by key, named steps, and whether (and in which lanes) it happened."""

    data: dict[str, Any]
    steps: dict[str, Any]
    mask: Any  # None: it certainly happened, in every lane.
    meta: Meta

    def replace(self, **changes: Any) -> Entry:
        return dataclasses.replace(self, **changes)


def _flatten(entry: Entry) -> tuple[Any, Any]:
    # Not as dictionaries, which JAX would sort: keys stay in the order of the `log` call.
    children = (tuple(entry.data.values()), tuple(entry.steps.values()), entry.mask)
    return children, (tuple(entry.data), tuple(entry.steps), entry.meta)


def _unflatten(aux: Any, children: Any) -> Entry:
    (keys, names, meta), (values, counts, mask) = aux, children
    data, steps = zip(keys, values, strict=True), zip(names, counts, strict=True)
    return Entry(dict(data), dict(steps), mask, meta)


jax.tree_util.register_pytree_node(Entry, _flatten, _unflatten)


@dataclasses.dataclass(frozen=True)
class Label:
    """The name of a loop, unique among those beside it. It makes no difference to the type."""

    name: str = dataclasses.field(compare=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loop:
    """What the iterations of a loop logged: every array has them as a leading axis."""

    body: tuple[Node, ...]
    label: Label = dataclasses.field(metadata={"static": True})
    ran: Any = None  # False: it is in a branch that was not taken, and made no iterations.


Node: TypeAlias = Entry | Loop
Nodes: TypeAlias = tuple[Node, ...]


def map_entries(change: Callable[[Entry], Entry], nodes: Sequence[Node]) -> Nodes:
    """Apply `change` to every entry."""
    return tuple(
        change(node)
        if isinstance(node, Entry)
        else dataclasses.replace(node, body=map_entries(change, node.body))
        for node in nodes
    )


def map_ran(change: Callable[[Any, int], Any], nodes: Sequence[Node], depth: int = 0) -> Nodes:
    """Change what says whether loops ran, given it and in how many others they are."""
    return tuple(
        node
        if isinstance(node, Entry)
        else Loop(
            map_ran(change, node.body, depth + 1),
            node.label,
            None if node.ran is None else change(node.ran, depth),
        )
        for node in nodes
    )


def restrict(nodes: Sequence[Node], wanted: Callable[[str, Entry], bool]) -> Nodes:
    """Keep only some keys of entries, and only entries with keys left."""

    def keys(entry: Entry) -> Entry:
        return entry.replace(
            data={key: value for key, value in entry.data.items() if wanted(key, entry)}
        )

    return _pruned(map_entries(keys, nodes))


def divided(
    nodes: Sequence[Node], wanted: Callable[[str, Entry], bool]
) -> Iterator[tuple[Nodes, bool]]:
    """Tell apart what is wanted and what is not, in order, down to the keys of an entry."""
    for node in nodes:
        if isinstance(node, Entry):
            for flag, keys in itertools.groupby(node.data, lambda key: wanted(key, node)):
                yield (node.replace(data={key: node.data[key] for key in keys}),), flag
        else:
            yield restrict((node,), wanted), True
            yield restrict((node,), lambda key, entry: not wanted(key, entry)), False


def _pruned(nodes: Sequence[Node]) -> Nodes:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            node = dataclasses.replace(node, body=_pruned(node.body))
            if node.body:
                kept.append(node)
        elif node.data:
            kept.append(node)
    return tuple(kept)


def with_steps(
    entry: Entry, steps: Mapping[str, Any], spread: Callable[..., Any] = jnp.broadcast_to
) -> Entry:
    """Give an entry more steps, each a scalar, in front of its own, which stay as they are.

    `spread` gives a value the shape that steps of the entry have.
    """
    shape = (*entry.meta.times, *entry.meta.lanes)
    more = {name: spread(at, shape) for name, at in steps.items()}
    return entry.replace(steps={**more, **entry.steps})


def entries(nodes: Sequence[Node]) -> list[Entry]:
    """List every entry, in program order."""
    return [
        entry
        for node in nodes
        for entry in ([node] if isinstance(node, Entry) else entries(node.body))
    ]


def calls(entry: Entry) -> dict[str, Any]:
    """By key, what the `log` call of an entry is known by, whenever it runs."""
    meta = entry.meta
    skip = len(meta.times) + len(meta.lanes)

    def known_by(key: str, value: Any) -> Any:
        leaves, tree = jax.tree.flatten(value)
        types = tuple((leaf.shape[skip:], leaf.dtype) for leaf in leaves)
        return meta.site, meta.call, meta.tags, key, tree, types

    return {key: known_by(key, value) for key, value in entry.data.items()} if meta.call else {}


def stacked(nodes: Sequence[Node], length: int, reverse: bool, name: str) -> Nodes:
    """Wrap what a scan stacked. Entries are in execution order, so a reverse scan is flipped."""
    if not nodes:
        return ()

    def deepen(entry: Entry) -> Entry:
        return entry.replace(
            meta=dataclasses.replace(entry.meta, times=(length, *entry.meta.times))
        )

    if reverse:
        nodes = jax.tree.map(lambda x: jnp.flip(x, 0), tuple(nodes))
    return (Loop(map_entries(deepen, nodes), Label(name)),)


def masked(nodes: Sequence[Node], flag: Any) -> Nodes:
    """Say that these entries happened only where `flag` (a scalar) is true."""

    def narrow(entry: Entry) -> Entry:
        shape = (*entry.meta.times, *entry.meta.lanes)
        mask = jnp.broadcast_to(flag, shape)
        return entry.replace(mask=both(entry.mask, mask))

    return tuple(
        dataclasses.replace(node, ran=both(node.ran, jnp.asarray(flag)))
        if isinstance(node, Loop)
        else node
        for node in map_entries(narrow, nodes)
    )


def both(flag: Any, other: Any) -> Any:
    """Whether two things are true. None is."""
    if flag is None or other is None:
        return other if flag is None else flag
    return flag & other


def alike(a: Any, b: Any) -> bool:
    """Say whether two trees of values (or of shapes) have the same structure and types."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.shape == y.shape and x.dtype == y.dtype
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def absent(node: Any) -> Any:
    """Return a node of the given types that did not happen."""
    (empty,) = masked(jax.tree.map(zeros, (node,)), False)
    return empty


def widen(x: Any, times: int, lanes: tuple[int, ...], wanted: tuple[int, ...]) -> Any:
    """Give an array, with `times` leading axes and then `lanes`, the lanes that are `wanted`."""
    if lanes == wanted:
        return x
    shape = jnp.shape(x)
    if needs_mask(lanes, wanted):
        room = jnp.broadcast_to(
            zeros(jax.typeof(x).update(shape=())),
            (*shape[:times], *wanted, *shape[times + len(lanes) :]),
        )
        return lax.dynamic_update_slice(room, x, (0,) * room.ndim)
    (places,) = embeddings(lanes, wanted)
    missing = [times + i for i in range(len(wanted)) if i not in places]
    target = (*shape[:times], *wanted, *shape[times + len(lanes) :])
    return jnp.broadcast_to(jnp.expand_dims(x, missing), target)


def needs_mask(lanes: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Say whether `wanted` has as many axes of lanes, but more lanes on them."""
    return len(lanes) == len(wanted) and lanes != wanted


def mask_for(entry: Entry, wanted: tuple[int, ...]) -> Any:
    """The mask of an entry, made explicit if it is to get lanes that it does not have."""
    if entry.mask is None and needs_mask(entry.meta.lanes, wanted):
        return jnp.ones((*entry.meta.times, *entry.meta.lanes), jnp.bool_)
    return entry.mask


def embeddings(few: tuple[int, ...], many: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the ways in which `few` can be found in `many`, in order."""
    return [
        places
        for places in itertools.combinations(range(len(many)), len(few))
        if tuple(many[i] for i in places) == few
    ]


def length_of(loop: Loop, depth: int) -> int:
    """How many iterations a loop made that is nested in `depth` others."""
    return entries(loop.body)[0].meta.times[depth]


def size_of(node: Node, depth: int = 0) -> int:
    """How many entries a node stands for, at most."""
    if isinstance(node, Entry):
        return 1
    return length_of(node, depth) * sum(size_of(child, depth + 1) for child in node.body)
