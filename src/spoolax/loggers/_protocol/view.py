"""Take what is to be logged out of a state, as copies that outlive it.

The user's `view` is compiled together with the copying, so that a `log` is one dispatch; what is
ready on the host needs none (see `_ready.py`). Small arrays are packed into one, because the number
of arrays is what costs time. A view that cannot be compiled is just called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax.arrays import are_concrete
from ..._jax.processes import count, divided, local, readable
from ..._logdict.logdict import LogDict
from ..._packing import Packing
from ..._ready import ReadyCopies, selected
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
    sources: tuple[int, ...] | None = None  # Which leaves of the state they are, if they are.

    def rows(self, words: Any, large: list[Any]) -> Values:
        """Take the values out of the arrays of several copies, which have an axis in front."""
        return dict(zip(self.names, self.packing.unpack(words, large), strict=True))

    def read(self, words: Any, large: list[Any]) -> Values:
        """Take the values out of the arrays of a copy."""
        if type(words) is bytes:
            words = np.frombuffer(words, np.uint32)
        return dict(zip(self.names, self.packing.unpack_one(words, large), strict=True))


class Copies(NamedTuple):
    """Copies of values, on the device or the host. Reading them waits for the device."""

    contents: Contents
    # The words of the small ones, then the large ones. May be empty. On the host, words are bytes.
    arrays: list[Any]
    rest: Values  # What is not a JAX array.
    order: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Their size."""
        rest = sum(int(getattr(x, "nbytes", 8)) for x in self.rest.values()) if self.rest else 0
        return self.contents.packing.nbytes + rest

    @property
    def waits(self) -> list[Any]:
        """The arrays that reading them waits for."""
        return to_wait_for(self.arrays)

    def fetch(self) -> list[Any]:
        """Copy the arrays to the host, still packed."""
        return fetched(self.arrays)

    def read(self) -> Values:
        """Copy the values to the host."""
        if not self.arrays:
            return dict(self.rest)
        words, *large = self.fetch()
        values = self.contents.read(words, large) | self.rest
        return {name: values[name] for name in self.order}


def to_wait_for(arrays: list[Any]) -> list[Any]:
    """Which arrays of a copy have to be waited for: all of them, or none if it is on the host."""
    return [] if arrays and type(arrays[0]) is bytes else arrays


def fetched(arrays: list[Any]) -> list[Any]:
    """Copy arrays to the host, except for those that are there."""
    return [x if isinstance(x, (bytes, np.ndarray)) else np.asarray(x) for x in arrays]


class View:
    """A function of the state that returns what to log; None logs all of it."""

    def __init__(self, view: Callable[[Any], Any] | None, option: str = "view") -> None:
        if view is not None and not callable(view):
            raise LogTypeError(f"`{option}` is a function of the state, not {view!r}.")
        self._view = view
        self._compiled: Any = None if view is None else _compiled.get(view, None, _compile)
        self._ready: ReadyCopies[Contents] = ReadyCopies()  # Of what it selects out of states.
        self._ready_values: ReadyCopies[Contents] = ReadyCopies()  # Of values by name.

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

    def accompany(self, state: Any, alike: bool) -> None:
        """Take part in making copies of arrays that span processes, for another one."""
        if divided(jax.tree.leaves(state)):
            self.copies(state, alike)

    def copies(self, state: Any, alike: bool = True) -> Copies:
        """Copies of the values. This does not wait for arrays: they stay on their devices, unless
        they are ready on the host.

        Arrays of which several processes have parts are copied by all of them together, so it must
        be known to all of them, `alike`, whether a state is due.
        """
        parts = divided(jax.tree.leaves(state)) if count() > 1 else []
        if parts:
            check_alike(alike)
        copies = self._copies_of(local(state))
        return copies._replace(arrays=readable(copies.arrays)) if parts else copies

    def _copies_of(self, state: Any) -> Copies:
        if self._compiled is not None and (ready := self._ready.take(state, [])) is not None:
            arrays, contents = ready
            return Copies(contents, arrays, {}, contents.names)
        if self._view is None and type(state) is dict:  # It may be the values by name.
            ready = self._ready_values.take(state, [])
            if ready is not None:
                return Copies(ready[1], ready[0], {}, tuple(state))
        # Tracing would round a Python number.
        if self._compiled is not None and are_concrete(jax.tree.leaves(state)):
            try:
                contents, arrays = self._compiled(state)
            except RuntimeError:
                check_there(state)
                raise
            except (TypeError, ValueError):
                check_there(state)
                # It reads numbers, or returns something other than arrays, or they are on several
                # devices.
                self._compiled = None
            else:
                self._ready.learn(state, contents.sources, contents.packing, contents)
                return Copies(contents, arrays, {}, contents.names)
        return self._copies(self.of(state))

    def _copies(self, values: Values) -> Copies:
        """Copy values of which some may not be JAX arrays, or which may be on several devices."""
        arrays, rest, order = values, {}, tuple(values)
        if not are_concrete(values.values()):
            arrays = {name: x for name, x in values.items() if isinstance(x, jax.Array)}
            others = {name: x for name, x in values.items() if name not in arrays}
            rest = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in others.items()}
        if not arrays:
            return Copies(NOTHING, [], rest, order)
        if (ready := self._ready_values.take(arrays, [])) is not None:
            return Copies(ready[1], ready[0], rest, order)
        try:
            contents, copies = _pack(arrays)
        except RuntimeError:
            check_there(values)
            raise
        except ValueError:  # They are on several devices, or were donated to a program.
            check_there(values)
            packing = Packing.of(arrays.values(), small=-1)
            contents, copies = Contents(tuple(arrays), packing), copied(packing, arrays.values())
        self._ready_values.learn(arrays, contents.sources, contents.packing, contents)
        return Copies(contents, copies, rest, order)


def _compile(view: Callable[[], Any]) -> Any:
    def of_state(state: Any) -> tuple[Contents, list[Any]]:
        values = by_name(view()(state), traced=True)
        if not all(isinstance(x, jax.Array) for x in values.values()):
            raise TypeError("What is not an array may have another value next time.")
        return _packed(values, jax.tree.leaves(state))

    return jax.jit(of_state)


_compiled: WeakCache[Any] = WeakCache(methods=False)
_take_all = _compile(lambda: lambda state: state)


def copied(packing: Packing, values: Iterable[Any]) -> list[Any]:
    """Copy arrays on the device: the words of the small ones, and the large ones."""
    words, large = packing.pack(values)
    return [words, *map(jnp.copy, large)]


def _packed(values: Values, leaves: Iterable[Any]) -> tuple[Contents, list[Any]]:
    packing = Packing.of(values.values(), SMALL)
    sources = selected(values.values(), leaves)
    return Contents(tuple(values), packing, sources), copied(packing, values.values())


_pack = jax.jit(lambda values: _packed(values, values.values()))
NOTHING = Contents((), Packing.of((), SMALL))


def _are_numpy(values: Values) -> bool:
    return all(
        issubclass(kind, (np.generic, np.ndarray)) for kind in set(map(type, values.values()))
    )


def _are_values(leaves: Iterable[Any]) -> bool:
    """Say whether these are arrays, numbers and strings, none of which is traced."""
    kinds = [kind for kind in set(map(type, leaves)) if not issubclass(kind, ON_HOST)]
    return all(issubclass(k, jax.Array) and not issubclass(k, jax.core.Tracer) for k in kinds)


def check_alike(alike: bool) -> None:
    """Refuse to decide by the clock, which differs between processes, when to read together."""
    if not alike:
        raise LogValueError(
            "Several processes have parts of what is logged, so they read it together, and have to "
            "agree on when that is. Their clocks differ: make `every` a number of steps, or log "
            "something that every process has the whole of, such as a sum or a mean."
        )


def check_there(state: Any) -> None:
    """Raise an error that names an array of the state that was donated, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if is_donated(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise LogValueError(
                f"{name!r} has been donated to another computation, so its value is gone. Call "
                "`log` with the state that a step returned, before the next step gets it."
            )
