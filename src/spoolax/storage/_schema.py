"""What to store: groups, each with a view of the state and a frequency."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.arrays import is_spread, start_transfer, type_text
from .._jax.processes import count, divided, local, readable
from .._packing import Packing
from .._ready import ReadyCopies, selected
from .._rows import Rows, RowView, row_view
from .._weak_cache import WeakCache
from ..errors import LogTypeError, StorageError
from ..loggers._protocol.frequency import Frequency, Once, Schedule, as_frequency
from ..loggers._protocol.view import SMALL, check_alike, check_there, copied, fetched
from ._store.dtypes import ColumnType, column_type_of
from ._store.pieces import Pieces, pieces_of
from ._store.structures import Json, leaf_names
from ._store.tables import TableSpec
from ._store.trees import leaves, structure_of


@dataclasses.dataclass(frozen=True)
class WriterGroupConfig:
    """One group of a store: what to take out of the state, and when.

    Args:
        view: A function of the state that returns a pytree of arrays. It is compiled.
        logging_frequency: A frequency, or a number of steps. With `Once()`, the group has no time
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


def read_schema(schema: Any) -> tuple[Json, list[tuple[str, WriterGroupConfig]]]:
    """The structure of a schema, and its groups by name."""

    def is_group(node: Any) -> bool:
        return isinstance(node, WriterGroupConfig)

    try:
        structure = structure_of(schema, is_group)
    except StorageError as error:
        raise LogTypeError(
            "A schema is a dictionary, a dataclass or another pytree of `WriterGroupConfig`s, and "
            f"the state comes after it: {error}"
        ) from error
    groups = list(zip(leaf_names(structure), leaves(schema, is_group), strict=True))
    if not groups:
        raise LogTypeError("The schema has no groups, so there is nothing to store.")
    return structure, groups


class GroupView:
    """The view of a group, which takes rows out of states."""

    def __init__(self, name: str, config: WriterGroupConfig, state: Any, in_pieces: bool) -> None:
        self.name, self._view = name, config.view
        self.schedule = Schedule(config.logging_frequency)
        try:
            row, _ = jax.eval_shape(_of_state(lambda: config.view), state)
        except Exception as error:
            _check_arrays(state)
            error.add_note(f"This was raised for the view of the group {name!r}.")
            raise
        structure = json.loads(row.structure)
        names = list(leaf_names(structure))
        rank = {name: i for i, name in enumerate(sorted(names))}
        self._ranks = [rank[name] for name in names]
        columns = [(name, row.types[rank[name]]) for name in names]
        timed = not isinstance(config.logging_frequency, Once)
        self._compiled = _compiled.get(self._view, None, _compile)
        self._large = [n for n, small in zip(rank, row.packing.is_packed, strict=True) if not small]
        self.grid = self._grid(state, row) if in_pieces else {}
        about = {"grid": self.grid} if self.grid else {}
        self.spec = TableSpec(name, structure, columns, timed, about)
        self.nbytes = self.spec.row_bytes
        self._row: RowType = row
        self._ready: ReadyCopies[None] = ReadyCopies()
        self._spare: list[list[Any]] = []  # Large arrays of rows that have been written.
        self._ready.learn(state, row.sources, row.packing, None)

    def _grid(self, state: Any, row: RowType) -> dict[str, list[int]]:
        """The shapes of the pieces of columns that are spread over devices."""
        if not any(map(is_spread, jax.tree.leaves(state))):
            return {}
        _, (_, *places) = self._compiled.lower(local(state)).compile().output_shardings
        types = row.packing.packed_types[1:]
        each = zip(self._large, places, types, strict=True)
        return {
            name: list(place.shard_shape(kind.shape))
            for name, place, kind in each
            if not place.is_fully_replicated
        }

    def fetched(self, arrays: Sequence[Any]) -> list[Any]:
        """Copy a row that `take` returned to the host: of arrays in pieces, those that are here."""
        words, *large = arrays
        each = zip(self._large, large, strict=True)
        return fetched([words]) + [
            pieces_of(x) if name in self.grid and is_spread(x) else fetched([x])[0]
            for name, x in each
        ]

    def pieces(self, rows: Sequence[Sequence[Any]]) -> dict[str, list[Pieces]]:
        """The pieces of rows that `fetched` returned, by column: none of rows that are whole."""

        def pieces(x: Any) -> Pieces:
            return x if isinstance(x, Pieces) else Pieces(x.shape, x.dtype.name, [])

        _, *large = zip(*rows, strict=True)
        each = zip(self._large, large, strict=True)
        return {name: list(map(pieces, column)) for name, column in each if name in self.grid}

    def take(self, state: Any, step: int) -> list[Any]:
        """Copy a row, small arrays packed into one: on the host if it is ready there, or else on
        the device."""
        if (ready := self._ready.take(state, self._spare)) is not None:
            return ready[0]
        parts = divided(jax.tree.leaves(state)) if count() > 1 else []
        if parts:
            check_alike(self.schedule.is_alike)
        state = local(state)
        try:
            row, arrays = self._compiled(state)
        except RuntimeError:
            check_there(state)
            raise
        except LookupError as error:
            error.add_note(f"This was raised for the group {self.name!r} at step {step}.")
            raise
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            raise LogTypeError(
                "`log` of a writer was called inside a function that JAX traces (jit, scan, "
                "...). Call `spoolax.log` there, and run it with `writer.tap(f)`."
            )
        if parts:
            words, *large = arrays
            whole = {n: x for n, x in zip(self._large, large, strict=True) if n not in self.grid}
            words, *others = readable([words, *whole.values()])
            whole = dict(zip(whole, others, strict=True))
            arrays = [words, *(whole.get(n, x) for n, x in zip(self._large, large, strict=True))]
        self.check_type(row, step)
        self._ready.learn(state, row.sources, row.packing, None)
        start_transfer(arrays)
        return arrays  # type: ignore[no-any-return]

    def accompany(self, state: Any, step: int) -> list[Any] | None:
        """Take part in copying arrays that several processes have parts of.

        Returns the row, if this process may have to write pieces of it.
        """
        if self.grid:
            return self.take(state, step)
        if divided(jax.tree.leaves(state)):
            self.take(state, step)
        return None

    def in_loop(self, state: Any, receive: Callable[[Rows], None]) -> RowView | None:
        """The view for a loop, if it can run in one."""
        if not self.schedule.is_by_step:
            return None
        return row_view(self._compiled, state, self.schedule.frequency.due, receive)

    def check_type(self, row: RowType, step: int) -> None:
        """Refuse rows of a type that does not fit into the table."""
        if row is not self._row:
            self._check(row, step)
            self._row = row

    def columns_of(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The columns of rows that `take` returned: arrays, or sequences of rows that are large."""
        words, *large = zip(*rows, strict=True)
        packing = self._row.packing
        by_name = packing.unpack(packing.stack(words), large)
        return [by_name[rank] for rank in self._ranks]

    def reuse(self, rows: Sequence[Sequence[Any]], limit: int) -> None:
        """Let rows that `take` will return have the memory of rows that have been written, which
        is kept for them up to a limit in bytes."""
        room = max(0, limit // max(1, self.nbytes) - len(self._spare))
        on_host = [large for words, *large in rows if large and type(words) is bytes]
        self._spare += on_host[:room]

    def _check(self, row: RowType, step: int) -> None:
        """Refuse a row that does not fit into the table."""
        structure = json.loads(row.structure)
        types = dict(zip(sorted(leaf_names(structure)), row.types, strict=True))
        expected = _described(self.spec.structure, dict(self.spec.columns))
        got = _described(structure, types)
        changes = [
            f"{'/'.join((self.name, *path))} has changed at step {step}: expected "
            f"{expected.get(path, 'nothing')}, got {got.get(path, 'nothing')}."
            for path in {**expected, **got}
            if expected.get(path) != got.get(path)
        ]
        if changes:
            raise StorageError(
                "\n".join(changes)
                + "\nAll rows of a group are alike: let its view return the same arrays every "
                "time, make several groups, or use a `SaveLogger`, which takes entries of any kind."
            )


def _described(
    node: Json, types: Mapping[str, ColumnType], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], str]:
    """What a row consists of, in words, by path; without the order of its parts."""
    if "leaf" in node:
        column = types[node["leaf"]]
        text = type_text(column)
        return {path: f"{text} (a {column.key} key)" if column.key else text}
    children = {
        where: text
        for name, child in node.get("children", ())
        for where, text in _described(child, types, (*path, name)).items()
    }
    kind = node["kind"].removeprefix("class ")
    return {path: "None" if kind == "none" else f"a {kind}", **children}


def _check_arrays(state: Any) -> None:
    """Refuse a state that cannot be traced, and name the leaf that is wrong."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not is_array(leaf) and not hasattr(leaf, "dtype"):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise LogTypeError(
                f"The state has {leaf!r}, of type {type(leaf).__name__}, at {name!r}. Views are "
                "compiled, so a state must be a pytree of arrays: log the part of it that is."
            )


@jax.tree_util.register_static
class RowType(NamedTuple):
    """The type of what a view returned. A compiled function returns it as part of its pytree."""

    structure: str  # As JSON.
    # In the order of the columns' names, so that the order of keys in dictionaries is all the same.
    types: tuple[ColumnType, ...]
    packing: Packing
    sources: tuple[int, ...] | None  # Which leaves of the state they are, if they are.


def _of_state(view: Callable[[], Any]) -> Callable[[Any], tuple[RowType, list[Any]]]:
    def of_state(state: Any) -> tuple[RowType, list[Any]]:
        # The structure is taken in here, because JAX sorts dictionaries that it returns.
        tree = view()(state)
        structure = structure_of(tree, is_array)
        by_name = zip(leaf_names(structure), leaves(tree, is_array), strict=True)
        values = [jnp.asarray(x) for _, x in sorted(by_name, key=lambda pair: pair[0])]
        packing = Packing.of(values, SMALL)
        types = tuple(map(column_type_of, values))
        sources = selected(values, jax.tree.leaves(state))
        row = RowType(json.dumps(structure), types, packing, sources)
        return row, copied(packing, values)

    return of_state


def _compile(view: Callable[[], Any]) -> Any:
    return jax.jit(_of_state(view))


_compiled: WeakCache[Any] = WeakCache(methods=False)


def is_array(x: Any) -> bool:
    """Whether something is an array or a number."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
