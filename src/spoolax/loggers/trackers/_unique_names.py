"""Names for values whose own names a tracker does not accept."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class UniqueNames:
    """Accepted names: the same one for the same value, and different ones for different values.

    `accepted` turns a name into one that the tracker accepts.
    """

    def __init__(self, accepted: Callable[[str], str]) -> None:
        self._accepted = accepted
        self._names: dict[Hashable, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str, kind: Hashable = None) -> str:
        """The accepted name of a value; values of another `kind` have another one."""
        if (name, kind) not in self._names:
            first, number = self._accepted(name), 1
            while (unique := first if number == 1 else f"{first}_{number}") in self._taken:
                number += 1
            self._taken.add(unique)
            self._names[name, kind] = unique
        return self._names[name, kind]
