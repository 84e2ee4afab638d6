"""Take what is to be logged out of a state, as copies that outlive it.

The user's `view` is compiled, together with the copying, so that a `log` is one dispatch. Where
that is not possible, it is just called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LogTypeError, LogValueError
from ._record import is_gone, named

Values = dict[str, Any]


class View:
    """A function of the state that says what to log; None: all of it."""

    def __init__(self, view: Callable[[Any], Any] | None, option: str = "view") -> None:
        if view is not None and not callable(view):
            raise LogTypeError(f"`{option}` is a function of the state, not {view!r}.")
        self._view = view
        self._compiled = None if view is None else jax.jit(self._traced)

    def of(self, state: Any) -> Values:
        """The values by name, as they are in the state."""
        return dict(named(state if self._view is None else self._view(state)))

    def copies(self, state: Any) -> tuple[Values, int]:
        """Copies of the values by name, and their size in bytes.

        Arrays stay on their devices, so nobody waits for them.
        """
        values = self._by_program(state)
        if values is None:
            values = _copied(self.of(state))
        return values, sum(getattr(x, "nbytes", 8) for x in values.values())

    def _by_program(self, state: Any) -> Values | None:
        # A number of Python would lose digits if it was traced.
        leaves = jax.tree.leaves(state)
        if self._compiled is None or not all(isinstance(x, jax.Array) for x in leaves):
            return None
        _check_there(state)
        try:
            names, arrays = self._compiled(state)
        except (TypeError, ValueError):
            # It reads numbers, returns something else than arrays, or they are on several devices.
            self._compiled = None
            return None
        return dict(zip(names.names, arrays, strict=True))

    def _traced(self, state: Any) -> tuple[_Names, list[Any]]:
        assert self._view is not None
        values = dict(named(self._view(state), traced=True))
        if not all(isinstance(x, jax.Array) for x in values.values()):
            raise TypeError("What is no array may be another one the next time.")
        return _Names(tuple(values)), [jnp.copy(x) for x in values.values()]


@jax.tree_util.register_static
class _Names(NamedTuple):
    """Names that come out of a compiled function, in their own order."""

    names: tuple[str, ...]


def _copied(values: Values) -> Values:
    _check_there(values)
    arrays = {name: x for name, x in values.items() if isinstance(x, jax.Array)}
    copies = {name: x.copy() for name, x in values.items() if isinstance(x, np.ndarray)}
    try:
        copies.update(zip(arrays, _copies(list(arrays.values())), strict=True))
    except ValueError:  # They are on several devices.
        copies.update({name: jnp.copy(x) for name, x in arrays.items()})
    return {name: copies.get(name, x) for name, x in values.items()}


@jax.jit
def _copies(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(x) for x in arrays]


def _check_there(state: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if is_gone(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise LogValueError(
                f"{name!r} has been donated to another computation, so its value is gone. Call "
                "`log` with the state that a step returned, before the next step gets it."
            )
