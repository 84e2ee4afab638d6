"""What is made from a function once, and kept for as long as the function lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class WeakCache(Generic[V]):
    """Values by function, and by whatever else they depend on.

    Args:
        methods: Whether values of bound methods are kept too, by their object. An object that has
            changed in the meantime gets its old value.
    """

    def __init__(self, *, methods: bool) -> None:
        self._methods = methods
        self._values: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, V]]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, f: Any, key: Hashable, make: Callable[[Callable[[], Any]], V]) -> V:
        """Return the value of a function and a key; `make` it if there is none.

        `make` gets a weak reference to the function: a value that held on to its function would
        keep both alive for ever.
        """
        # A bound method is made anew whenever it is looked up, so the object it belongs to counts.
        owner, part = getattr(f, "__self__", None), getattr(f, "__func__", None)
        is_method = part is not None and owner is not None
        if is_method and not self._methods:
            return make(lambda: f)
        try:
            values = self._values.setdefault(owner if is_method else f, {})
            reference: Any = weakref.WeakMethod(f) if is_method else weakref.ref(f)
        except TypeError:  # It cannot be hashed, or not be referred to weakly.
            return make(lambda: f)
        found = values.get((part, key))
        # Functions that are equal share a value, but that of one that is gone is of no use.
        if found is None or found[0]() is None:
            found = values[part, key] = reference, make(reference)
        return found[1]
