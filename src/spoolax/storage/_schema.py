"""What is to be stored: groups, each with a view of the state and how often to store it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._weak_cache import WeakCache
from ..errors import LogTypeError, LogValueError, StorageError
from ..loggers._protocol.frequency import Frequency, Once, Schedule, as_frequency
from ..loggers._protocol.view import Layout, check_there, packed
from ._dtypes import Stored, stored_as
from ._file import RESERVED
from ._tree import Json, describe, leaf_names, leaves


@dataclasses.dataclass(frozen=True)
class WriterGroupConfig:
    """One group of a file: what to take out of the state, and when.

    Args:
        view: A function of the state that returns a pytree of arrays. It is compiled.
        logging_frequency: A frequency, or a number of steps. `Once()` makes a group without a time
            axis.

    Examples:
        >>> from spoolax.loggers import EveryNStep
        >>> frames = WriterGroupConfig(lambda state: {"x": state["x"]}, EveryNStep(10))
    """

    view: Callable[[Any], Any]
    logging_frequency: Frequency | int = 1

    def __post_init__(self) -> None:
        if not callable(self.view):
            raise LogTypeError(f"`view` is a function of the state, not {self.view!r}.")
        as_frequency(self.logging_frequency)


def is_group(node: Any) -> bool:
    """Say whether a node of a schema is a group."""
    return isinstance(node, WriterGroupConfig)


def checked_schema(schema: Any) -> tuple[Json, list[tuple[str, WriterGroupConfig]]]:
    """The structure of a schema, and its groups by name."""
    try:
        structure = describe(schema, is_group)
    except StorageError as error:
        raise LogTypeError(
            "A schema is a dictionary, a dataclass or another pytree of `WriterGroupConfig`s, and "
            f"the state comes after it: {error}"
        ) from error
    groups = list(zip(leaf_names(structure), leaves(schema, is_group), strict=True))
    if not groups:
        raise LogTypeError("The schema has no groups, so there would be nothing to store.")
    for name, _ in groups:
        if name.split("/")[0] in RESERVED:
            raise LogValueError(f"A group cannot be called {name!r}: the file has that already.")
    return structure, groups


class Group:
    """A group that is being written: what it takes out of a state."""

    def __init__(self, name: str, config: WriterGroupConfig, state: Any) -> None:
        self.name, self._view = name, config.view
        self.schedule = Schedule(config.logging_frequency)
        self.once = isinstance(config.logging_frequency, Once)
        try:
            seen, _ = jax.eval_shape(_of_state(lambda: config.view), state)
        except Exception as error:
            _check_arrays(state)
            error.add_note(f"This was raised for the view of the group {name!r}.")
            raise
        self.structure, types = json.loads(seen.structure), seen.types
        self.columns: list[tuple[str, Stored]] = list(
            zip(leaf_names(self.structure), types, strict=True)
        )
        self._taken = _compiled.get(self._view, None, _compile)
        self._seen: Seen | None = None
        self._is_far = False
        self.nbytes = sum(math.prod(s.shape) * s.dtype.itemsize for _, s in self.columns)

    def take(self, state: Any, step: int) -> list[Any]:
        """Copy what is to be stored, on the device, small arrays packed into one."""
        try:
            seen, arrays = self._taken(state)
        except RuntimeError:
            check_there(state)
            raise
        except LookupError as error:
            error.add_note(f"This was raised for the group {self.name!r} at step {step}.")
            raise
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            raise LogTypeError(
                "`log` of a writer was called inside of a function that JAX traces (jit, scan, "
                "...). Call `spoolax.log` there, and run it with `writer.tap(f)`."
            )
        if seen is not self._seen:
            self._check(seen, step)
            self._seen = seen
            self._is_far = any(d.platform != "cpu" for x in arrays for d in x.devices())
        if self._is_far:  # The way to the host begins now, so that the device can forget them soon.
            for x in arrays:
                x.copy_to_host_async()
        return arrays  # type: ignore[no-any-return]

    def columns_of(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The columns of rows that were taken: arrays, or lists of rows if those are large."""
        assert self._seen is not None
        layout = self._seen.layout
        parts = list(zip(*rows, strict=True))
        small = {place.array for place in layout.places if place.is_packed}
        blocks: list[Any] = [np.stack(part) if i in small else part for i, part in enumerate(parts)]
        return list(layout.unpack(blocks, (len(rows),)).values())

    def _check(self, seen: Seen, step: int) -> None:
        """Refuse arrays that do not fit into the file."""
        if json.loads(seen.structure) != self.structure:
            raise StorageError(
                f"The view of the group {self.name!r} returns something else at step {step} than "
                "it did for the first state: its structure has changed."
            )
        for (name, stored), now in zip(self.columns, seen.types, strict=True):
            if now != stored:
                raise StorageError(
                    f"{self.name}/{name} has changed at step {step}: expected "
                    f"{stored.real}{list(stored.shape)}, got {now.real}{list(now.shape)}."
                )


def _check_arrays(state: Any) -> None:
    """Refuse a state that cannot be traced, with the name of what is wrong."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not is_array(leaf) and not hasattr(leaf, "dtype"):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise LogTypeError(
                f"The state has {leaf!r}, of type {type(leaf).__name__}, at {name!r}. Views are "
                "compiled, so a state is a pytree of arrays: log a part of it that is."
            )


@jax.tree_util.register_static
class Seen(NamedTuple):
    """What a view returned. It comes out of a compiled function, as a part of its structure."""

    structure: str  # As JSON.
    types: tuple[Stored, ...]
    layout: Layout


def _of_state(view: Callable[[], Any]) -> Callable[[Any], tuple[Seen, list[Any]]]:
    def of_state(state: Any) -> tuple[Seen, list[Any]]:
        # The structure is looked at in here: outside, JAX has sorted dictionaries.
        tree = view()(state)
        structure = json.dumps(describe(tree, is_array))
        values = [jnp.asarray(x) for x in leaves(tree, is_array)]
        layout, arrays = packed({str(i): x for i, x in enumerate(values)})
        return Seen(structure, tuple(map(stored_as, values)), layout), arrays

    return of_state


def _compile(view: Callable[[], Any]) -> Any:
    return jax.jit(_of_state(view))


_compiled: WeakCache[Any] = WeakCache(methods=False)


def is_array(x: Any) -> bool:
    """Say whether something is an array or a number."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
