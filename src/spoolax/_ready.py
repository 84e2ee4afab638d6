"""Copy what is ready in the memory of the host there, without running a compiled copy.

Running one takes far longer than copying a few numbers. It is needed for arrays that are still
being computed, lest the loop wait for them; for those on other devices; and for views that compute
something. A view that only selects arrays is found out when it is traced for the compiled copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ._jax.arrays import are_concrete, are_there, base, is_in_host_memory, types_of
from ._jax.tracing import flatten, trace_is_clean
from ._packing import Packing

T = TypeVar("T")
MANY = 64  # Structures of states. If there are more, all are forgotten.


def selected(values: Iterable[Any], leaves: Iterable[Any]) -> tuple[int, ...] | None:
    """Say which of the leaves the values are, by identity; None if one of them is none."""
    places = {id(leaf): place for place, leaf in enumerate(leaves)}
    found = [places.get(id(value)) for value in values]
    return None if None in found else tuple(found)  # type: ignore[arg-type]


class Known(NamedTuple, Generic[T]):
    """What is known about states of one structure."""

    types: list[Any]  # Of all leaves: a view may look at those of leaves that it does not select.
    pick: Callable[[list[Any]], Sequence[Any]]
    packing: Packing
    about: T


class ReadyCopies(Generic[T]):
    """Knows which leaves of a state are to be copied, and copies them if they are ready."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Known[T]] = {}

    def learn(
        self, state: Any, sources: tuple[int, ...] | None, packing: Packing, about: T
    ) -> None:
        """Learn which of the leaves of a state a compiled copy packs; None if it computes more."""
        if sources is None:
            return
        structure: Hashable
        # Dictionaries of arrays need not be flattened by JAX, which sorts them.
        is_flat = type(state) is dict and are_concrete(state.values())
        if is_flat:
            leaves, structure = list(state.values()), tuple(state)
        else:
            leaves, structure = flatten(state)
            if not are_concrete(leaves):
                return
        types, known = types_of(leaves), self._known.get(structure)
        if known is not None and known.types == types:
            return  # It was only not ready.
        if is_flat:
            place = {name: i for i, name in enumerate(state)}
            order = [place[name] for name in sorted(state)]
            sources = tuple(order[i] for i in sources)
        if not all(is_in_host_memory(base(leaves[i])) for i in sources):
            return
        if len(self._known) >= MANY:
            self._known.clear()
        pick = _picker(sources, len(leaves), any(packing.keys))
        self._known[structure] = Known(types, pick, packing, about)

    def take(self, state: Any, spare: list[list[Any]]) -> tuple[list[Any], T] | None:
        """Copy what is known of a state, packed, if all of it is ready.

        `spare` are large arrays of earlier copies that may be overwritten.
        """
        try:
            known = self._known.get(tuple(state)) if type(state) is dict else None
            if known is not None:
                leaves = list(state.values())
            else:
                leaves, structure = flatten(state)
                known = self._known.get(structure)
            if known is None or types_of(leaves) != known.types or not trace_is_clean():
                return None
            arrays = known.pick(leaves)
            if are_there(arrays):
                return known.packing.pack_on_host(arrays, spare), known.about
        # Not all leaves are arrays, or they are elsewhere this time, or JAX cannot sort the keys.
        except (AttributeError, TypeError, ValueError):
            pass
        return None


def _picker(
    sources: tuple[int, ...], count: int, has_keys: bool
) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that takes some arrays out of as many as there are."""
    if has_keys:
        return lambda leaves: [base(leaves[i]) for i in sources]
    if sources == tuple(range(count)):
        return lambda leaves: leaves
    return lambda leaves: [leaves[i] for i in sources]
