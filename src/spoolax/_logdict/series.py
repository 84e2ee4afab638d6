"""One key of a `LogDict`, with everything that is known about it.

The axes of its arrays are, from the front: those that `vmap` or `scan` put around a call of
`spool`; time, if the key is `stacked`; `lanes`, of a `vmap` inside it; and those of one entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.arrays import type_text
from ..errors import MixedKeyError
from . import reductions


@dataclasses.dataclass(frozen=True)
class Series:
    """The entries of a key."""

    value: Any
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)
    valid: Any = None  # None: everything is.
    dropped: Any = None  # None: nothing was.
    stacked: bool = False
    lanes: int = 0
    own: int | None = None  # The axes of one entry, in the first array. None: all but time.
    backward: Any = None  # None: nothing is.

    def checked(self) -> Series:
        """The same, or a single entry if the arrays have lost axes, as by `jax.tree.map`."""
        if np.ndim(self._first) >= self.stacked + self.lanes + (self.own or 0):
            return self
        return dataclasses.replace(self, stacked=False, lanes=0, own=None)

    @property
    def axes(self) -> tuple[int, int]:
        """How many axes are lanes, and how many one entry has in the first array."""
        own = np.ndim(self._first) - self.stacked if self.own is None else self.own
        return self.lanes, own

    @property
    def axis(self) -> int:
        """Where time is, or would be."""
        return np.ndim(self._first) - sum(self.axes) - self.stacked

    @property
    def mask(self) -> Any:
        """Which entries are real, in which lanes."""
        return _as_flags(self.valid, np.ones, self._entries)

    @property
    def marks(self) -> Any:
        """Which entries were logged in a backward pass, as `mask` says which are real."""
        return _as_flags(self.backward, np.zeros, self._entries)

    @property
    def _entries(self) -> tuple[int, ...]:
        """The sizes of the axes in front of those of one entry."""
        return tuple(np.shape(self._first)[: self.axis + self.stacked + self.lanes])

    @property
    def _first(self) -> Any:
        """The first array, or a number if there is none."""
        return next(iter(jax.tree.leaves(self.value)), 0)

    def with_value(self, value: Any) -> Series:
        """The same entries with another value.

        If that has another number of them, nothing else is known about them, and if it has no such
        axes at all, it is a single entry.
        """
        shapes, entries = list(map(np.shape, jax.tree.leaves(value))), np.shape(self.mask)
        if all(shape[: len(entries)] == entries for shape in shapes):
            own = len(shapes[0]) - len(entries) if shapes else None
            return dataclasses.replace(self, value=value, own=own)
        before = list(map(np.shape, jax.tree.leaves(self.value)))
        axis = self.axis

        def without_time(shape: tuple[int, ...]) -> tuple[int, ...]:
            return shape[:axis] + shape[axis + 1 :]

        if (
            self.stacked
            and len(shapes) == len(before)
            and all(
                len(a) == len(b) and without_time(a) == without_time(b)
                for a, b in zip(shapes, before, strict=True)
            )
        ):
            return Series(value, stacked=True, lanes=self.lanes, own=self.own)
        return Series(value)

    def map(self, change: Callable[[Any], Any], **changes: Any) -> Series:
        """Apply `change` to every array: values, steps, mask and marks."""
        value, valid, backward = jax.tree.map(change, (self.value, self.valid, self.backward))
        steps = {name: change(at) for name, at in self.steps.items()}  # JAX would sort them.
        new = {"value": value, "steps": steps, "valid": valid, "backward": backward}
        return dataclasses.replace(self, **new, **changes)

    def with_time(self) -> Series:
        """Make a series of a single entry."""
        if self.stacked:
            return self
        axis = self.axis
        return self.map(
            lambda x: _library(x).expand_dims(x, axis),
            stacked=True,
            own=np.ndim(self._first) - axis - self.lanes,
        )

    def time_first(self) -> Series:
        """Put time in front of all other axes."""
        series = self.with_time()
        axis = series.axis
        own = np.ndim(series._first) - axis - series.lanes - 1
        if axis == 0:
            return series
        return series.map(
            lambda x: jnp.moveaxis(jnp.asarray(x), axis, 0), lanes=series.lanes + axis, own=own
        )

    def cut(self, index: slice) -> Series:
        """Take some of the entries."""
        if not self.stacked:
            return self
        place = (slice(None),) * self.axis + (index,)
        return self.map(lambda x: x[place])

    def join(self, others: Sequence[Series], key: str) -> Series:
        """Put the entries of others after these, in order."""
        first, *rest = every = [one.with_time() for one in (self, *others)]
        types = _types(first)
        for one in rest:
            if one.axis != first.axis or _types(one) != types:
                raise MixedKeyError(
                    f"Cannot join the logs of {key!r}: one side has entries of {types}, the other "
                    f"of {_types(one)}. Rename one side with `.prefix`, or convert it first."
                )
            if one.lanes != first.lanes:
                raise MixedKeyError(
                    f"Cannot join the logs of {key!r}: one side has {first.lanes} axes of `vmap` "
                    f"lanes, the other {one.lanes}. Rename one side with `.prefix`."
                )
            if set(one.steps) != set(first.steps):
                only = ", ".join(f"`{name}`" for name in sorted(set(one.steps) ^ set(first.steps)))
                raise MixedKeyError(
                    f"Cannot join the logs of {key!r}: only one side has the step {only}. "
                    "Log both with the same steps, or rename one side with `.prefix`."
                )
        if any(one.valid is not None for one in every):
            every = [dataclasses.replace(one, valid=one.mask) for one in every]
        if any(one.backward is not None for one in every):
            every = [dataclasses.replace(one, backward=one.marks) for one in every]

        def concatenated(*xs: Any) -> Any:
            return _library(*xs).concatenate(xs, first.axis)

        value, valid, backward = jax.tree.map(
            concatenated, *((one.value, one.valid, one.backward) for one in every)
        )
        steps = {name: concatenated(*(one.steps[name] for one in every)) for name in first.steps}
        counts = [one.dropped for one in every if one.dropped is not None]
        dropped = sum(counts) if counts else None
        new = {"value": value, "steps": steps, "valid": valid, "backward": backward}
        return dataclasses.replace(first, **new, dropped=dropped)

    def fold(self, how: reductions.How) -> Series:
        """Fold all entries into one."""
        series = self.time_first()
        mask = None if series.valid is None else jnp.asarray(series.mask)
        lanes = np.shape(series.mask)[1:]

        def folded(x: Any, how: reductions.How) -> Any:
            return reductions.over_rows(how, jnp.asarray(x), mask, lanes)

        when = "first" if how == "first" else "last"
        return Series(
            jax.tree.map(lambda x: folded(x, how), series.value),
            jax.tree.map(lambda x: folded(x, when), series.steps),
            None if mask is None else jnp.any(mask, 0),
            self.dropped,
            own=np.ndim(series._first) - 1 - len(lanes),
            backward=jax.tree.map(lambda x: folded(x, when), series.backward),
        )


def _as_flags(given: Any, otherwise: Callable[..., Any], shape: tuple[int, ...]) -> Any:
    dtype = getattr(given, "dtype", None)
    if dtype == np.bool_:
        return given
    if dtype is not None and dtype != jax.dtypes.float0:  # After `jax.tree.map`.
        return given != 0
    return otherwise(shape, bool)


def _types(series: Series) -> str:
    """The types of one entry in words."""
    axis = series.axis

    def one(x: Any) -> str:
        shape = [size for i, size in enumerate(np.shape(x)) if i != axis]
        dtype = x.dtype if hasattr(x, "dtype") else jnp.asarray(x).dtype
        return type_text(jax.ShapeDtypeStruct(shape, dtype))

    return str(jax.tree.map(one, series.value)).replace("'", "")


def _library(*arrays: Any) -> Any:
    """NumPy for what is on the host, as what a tap delivers, and else JAX: its arrays and tracers.

    Python's own numbers have the types that JAX gives them.
    """
    return np if all(isinstance(x, (np.ndarray, np.generic)) for x in arrays) else jnp
