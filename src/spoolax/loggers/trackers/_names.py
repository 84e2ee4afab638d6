"""What a tracker calls values whose names it does not take."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Names:
    """Other names for values: the same for the same one, and no two of them alike.

    `change` makes a name one that the tracker takes.
    """

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change
        self._found: dict[Hashable, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str, of: Hashable = None) -> str:
        """The name of a value; `of` tells it from others that would be called the same."""
        if (name, of) not in self._found:
            clean, number = self._change(name), 1
            while (other := clean if number == 1 else f"{clean}_{number}") in self._taken:
                number += 1
            self._taken.add(other)
            self._found[name, of] = other
        return self._found[name, of]
