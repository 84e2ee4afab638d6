"""Something that is made of a function once, and kept for as long as the function lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class PerFunction:
    """Makes something of functions, such as a compiled one, and finds it again.

    `make` is given a function that returns the user's, which it must not keep alive itself.
    """

    def __init__(self, make: Callable[[Callable[[], Any]], Any]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, f: Any) -> Any:
        # Methods are made anew whenever they are looked up, and equal ones do not live together.
        if hasattr(f, "__self__"):
            return self._make(lambda: f)
        try:
            if f not in self._made:
                self._made[f] = self._make(weakref.ref(f))
            return self._made[f]
        except TypeError:  # It cannot be hashed, or not be referred to weakly.
            return self._make(lambda: f)
