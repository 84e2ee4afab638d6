"""Take what is to be logged out of a state, as copies that outlive it.

The user's `view` is compiled together with the copying, so that a `log` is one dispatch. Small
arrays are packed into one, because the number of arrays is what costs time. A view that cannot be
compiled is just called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._logdict.logdict import LogDict
from ..._packing import Packing
from ..._weak_cache import WeakCache
from ...errors import LogTypeError, LogValueError
from .record import SCALARS, by_name, is_donated

Values = dict[str, Any]
ON_HOST = (*SCALARS, np.ndarray)
SMALL = 256  # Elements of an array that is worth packing, at most.


@jax.tree_util.register_static
class Contents(NamedTuple):
    """What is in the arrays of a copy. A compiled function returns it as part of its pytree."""

    names: tuple[str, ...]
    packing: Packing

    def unpack(self, arrays: list[Any]) -> Values:
        """Take the values out of the arrays. The arrays may have an axis of rows in front."""
        if not arrays:
            return {}
        words, *large = arrays
        values = zip(self.names, self.packing.unpack(words, large), strict=True)
        return {name: value[()] if value.ndim == 0 else value for name, value in values}


class Copies(NamedTuple):
    """Values that were copied on the device. Reading them waits for the device."""

    contents: Contents
    arrays: list[Any]  # The words of the small ones, then the large ones. May be empty.
    rest: Values  # What is not a JAX array.
    order: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Their size."""
        return sum(int(getattr(x, "nbytes", 8)) for x in (*self.arrays, *self.rest.values()))

    def fetch(self) -> list[Any]:
        """Copy the arrays to the host, still packed."""
        return [np.asarray(x) for x in self.arrays]

    def read(self) -> Values:
        """Copy the values to the host."""
        values = {**self.rest, **self.contents.unpack(self.fetch())}
        return {name: values[name] for name in self.order}


class View:
    """A function of the state that returns what to log; None logs all of it."""

    def __init__(self, view: Callable[[Any], Any] | None, option: str = "view") -> None:
        if view is not None and not callable(view):
            raise LogTypeError(f"`{option}` is a function of the state, not {view!r}.")
        self._view = view
        self._compiled: Any = None if view is None else _compiled.get(view, None, _compile)

    @property
    def is_chosen(self) -> bool:
        """Whether there is a function."""
        return self._view is not None

    @property
    def take(self) -> Any:
        """The compiled function that `copies` calls, for loops; None if there is none."""
        return _take_all if self._view is None else self._compiled

    def of(self, state: Any) -> Values:
        """The values by name, as they are in the state."""
        if self._view is None and isinstance(state, LogDict) and _are_numpy(state):
            return dict(state)  # As nearly every entry of a tap is.
        if self._view is None and type(state) is dict and _are_values(state.values()):
            named = {str(name): x for name, x in state.items()}
            if len(named) == len(state):
                return named
        return by_name(state if self._view is None else self._view(state))

    def copies(self, state: Any) -> Copies:
        """Copies of the values. Arrays stay on their devices, so this does not wait for them."""
        # Tracing would round a Python number.
        if self._compiled is not None and _are_arrays(jax.tree.leaves(state)):
            try:
                contents, arrays = self._compiled(state)
                return Copies(contents, arrays, {}, contents.names)
            except RuntimeError:
                check_there(state)
                raise
            except (TypeError, ValueError):
                check_there(state)
                # It reads numbers, or returns something other than arrays, or they are on several
                # devices.
                self._compiled = None
        return _copies(self.of(state))


def _compile(view: Callable[[], Any]) -> Any:
    def of_state(state: Any) -> tuple[Contents, list[Any]]:
        values = by_name(view()(state), traced=True)
        if not all(isinstance(x, jax.Array) for x in values.values()):
            raise TypeError("What is not an array may have another value next time.")
        return _packed(values)

    return jax.jit(of_state)


_compiled: WeakCache[Any] = WeakCache(methods=False)
_take_all = _compile(lambda: lambda state: state)


def copied(packing: Packing, values: Iterable[Any]) -> list[Any]:
    """Copy arrays on the device: the words of the small ones, and the large ones."""
    words, large = packing.pack(values)
    return [words, *map(jnp.copy, large)]


def _packed(values: Values) -> tuple[Contents, list[Any]]:
    packing = Packing.of(values.values(), SMALL)
    return Contents(tuple(values), packing), copied(packing, values.values())


_pack = jax.jit(_packed)
NOTHING = Contents((), Packing.of((), SMALL))


def _copies(values: Values) -> Copies:
    """Copy values of which some are not JAX arrays, or which are on several devices."""
    arrays, rest = values, {}
    if not _are_arrays(list(values.values())):
        arrays = {name: x for name, x in values.items() if isinstance(x, jax.Array)}
        others = {name: x for name, x in values.items() if name not in arrays}
        rest = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in others.items()}
    if not arrays:
        return Copies(NOTHING, [], rest, tuple(values))
    try:
        contents, copies = _pack(arrays)
    except RuntimeError:
        check_there(values)
        raise
    except ValueError:  # They are on several devices, or were donated to a program.
        check_there(values)
        packing = Packing.of(arrays.values(), small=-1)
        contents, copies = Contents(tuple(arrays), packing), copied(packing, arrays.values())
    return Copies(contents, copies, rest, tuple(values))


def _are_numpy(values: Values) -> bool:
    return all(
        issubclass(kind, (np.generic, np.ndarray)) for kind in set(map(type, values.values()))
    )


def _are_values(leaves: Iterable[Any]) -> bool:
    """Say whether these are arrays, numbers and strings, none of which is traced."""
    kinds = [kind for kind in set(map(type, leaves)) if not issubclass(kind, ON_HOST)]
    return all(issubclass(k, jax.Array) and not issubclass(k, jax.core.Tracer) for k in kinds)


def _are_arrays(leaves: list[Any]) -> bool:
    # `isinstance` for each of them takes longer, as it goes through a metaclass.
    kinds = set(map(type, leaves))
    return all(issubclass(k, jax.Array) and not issubclass(k, jax.core.Tracer) for k in kinds)


def check_there(state: Any) -> None:
    """Raise an error that names an array of the state that was donated, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if is_donated(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise LogValueError(
                f"{name!r} has been donated to another computation, so its value is gone. Call "
                "`log` with the state that a step returned, before the next step gets it."
            )
