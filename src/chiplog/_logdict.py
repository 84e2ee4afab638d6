"""What was logged: values by key, with their steps and their validity.

A `LogDict` is an ordinary dictionary and a pytree, so it can be returned from jitted functions,
mapped over and printed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _reduce, _show, _tables
from .errors import LogTypeError, MixedKeyError

if TYPE_CHECKING:
    import pandas
    import xarray


class LogDict(dict[str, Any]):
    """What was logged, by key.

    A key that was logged once has the value that was logged; one that was logged in a loop, or
    more than once, has one leading axis in execution order (`key in logs.stacked`).

    Examples:
        >>> import chiplog, jax
        >>> def f(x):
        ...     def body(x, i):
        ...         chiplog.log({"x": x}, step=i)
        ...         return 2 * x, None
        ...     return jax.lax.scan(body, x, jax.numpy.arange(4))[0]
        >>> y, logs = chiplog.spool(f)(1.0)
        >>> logs
        LogDict(
          x: float32[4] = 1 2 4 8  (step 0 ... 3)
        )
        >>> logs.step["x"].tolist()
        [0, 1, 2, 3]
        >>> logs.slice[::2]["x"].tolist()
        [1.0, 4.0]
        >>> float(logs.reduce("max")["x"])
        8.0
    """

    steps: dict[str, dict[str, Any]]
    stacked: frozenset[str]

    def __init__(
        self,
        values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        valid: Mapping[str, Any] | None = None,
        dropped: Mapping[str, Any] | None = None,
        stacked: Iterable[str] = (),
    ) -> None:
        super().__init__(values)
        self.steps = {name: dict(by_key) for name, by_key in (steps or {}).items()}
        self._valid = dict(valid or {})
        self._dropped = dict(dropped or {})
        self.stacked = frozenset(stacked)

    def __getattr__(self, name: str) -> dict[str, Any]:
        steps: dict[str, dict[str, Any]] = self.__dict__.get("steps", {})
        if name in steps:
            return steps[name]
        known = ", ".join(f"`{step}`" for step in steps) or "none"
        raise AttributeError(f"LogDict has no step or attribute `{name}`; its steps are: {known}.")

    @property
    def valid(self) -> dict[str, Any]:
        """Which entries of each key are real, and in which lanes."""
        return {
            key: self._valid[key] if key in self._valid else np.ones(self._length(key), bool)
            for key in self
        }

    @property
    def dropped(self) -> dict[str, Any]:
        """How many entries of each key did not fit into `capacity`."""
        return {key: self._dropped.get(key, 0) for key in self}

    def __add__(self, other: LogDict) -> LogDict:
        """Concatenate in time: the entries of `other` come after ours."""
        if not isinstance(other, LogDict):
            return NotImplemented
        both = [key for key in self if key in other]
        joined = {key: _concatenate(self, other, key) for key in both}
        steps: dict[str, dict[str, Any]] = {}
        for name in {**self.steps, **other.steps}:
            mine, theirs = self.steps.get(name, {}), other.steps.get(name, {})
            for key in both:
                if (key in mine) != (key in theirs):
                    raise MixedKeyError(
                        f"Cannot join the logs of {key!r}: only one side has the step `{name}`. "
                        "Log both with the same steps, or rename one side with `.prefix`."
                    )
            steps[name] = {**mine, **theirs}
            steps[name] |= {
                key: _join(_rows(self, key, mine[key]), _rows(other, key, theirs[key]))
                for key in both
                if key in mine
            }
        valid = self._valid | other._valid
        for key in both:
            if key in valid:
                valid[key] = _join(*(_lanes(logs._mask(key), valid[key]) for logs in (self, other)))
        dropped = self._dropped | other._dropped
        dropped |= {key: self.dropped[key] + other.dropped[key] for key in both if key in dropped}
        return LogDict(
            {**self, **other, **joined},
            steps=steps,
            valid=valid,
            dropped=dropped,
            stacked=self.stacked | other.stacked | set(both),
        )

    def __or__(self, other: Any) -> LogDict:  # type: ignore[override]
        """Merge: a key that both have is taken from `other`."""
        if not isinstance(other, Mapping):
            return NotImplemented
        theirs = other if isinstance(other, LogDict) else LogDict(other)
        mine = self.filter(lambda key: key not in theirs)
        return LogDict(
            {**{key: theirs[key] if key in theirs else self[key] for key in self}, **theirs},
            steps={
                name: {**mine.steps.get(name, {}), **theirs.steps.get(name, {})}
                for name in {**mine.steps, **theirs.steps}
            },
            valid=mine._valid | theirs._valid,
            dropped=mine._dropped | theirs._dropped,
            stacked=mine.stacked | theirs.stacked,
        )

    def filter(self, *names: str | Callable[[str], bool]) -> LogDict:
        """Keep the keys that match one of `names`: glob patterns, or functions of the key.

        Examples:
            >>> logs = LogDict({"train/loss": 1.0, "train/lr": 0.1, "eval/loss": 2.0})
            >>> list(logs.filter("train/*"))
            ['train/loss', 'train/lr']
        """

        def kept(key: str) -> bool:
            return any(
                fnmatch.fnmatchcase(key, name) if isinstance(name, str) else name(key)
                for name in names
            )

        return self._map_keys(lambda key: key if kept(key) else None)

    def prefix(self, prefix: str) -> LogDict:
        """Put `prefix` in front of every key.

        Examples:
            >>> LogDict({"loss": 1.0}).prefix("train/")["train/loss"]
            1.0
        """
        return self._map_keys(lambda key: prefix + key)

    @property
    def slice(self) -> _Slicer:
        """Take entries by their number, for every key with a time axis: `logs.slice[10:20:2]`."""
        return _Slicer(self)

    def reduce(self, how: _reduce.How) -> LogDict:
        """Fold the entries of every key into one, as `spool(f, reduce=how)` would have done."""
        values: dict[str, Any] = {}
        for key, value in self.items():
            if key not in self.stacked:
                value = jax.tree.map(lambda x: jnp.asarray(x)[None], value)
            mask = self._valid.get(key)
            values[key] = jax.tree.map(lambda rows: _fold(how, jnp.asarray(rows), mask), value)
        return LogDict(
            values,
            steps={
                name: {
                    key: at[-1] if key in self.stacked and len(at) else at
                    for key, at in by_key.items()
                }
                for name, by_key in self.steps.items()
            },
            dropped=self._dropped,
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame: one row per entry, one column per number in an entry.

        Needs the extra `chiplog[pandas]`. Keys of different lengths are aligned at their first
        entry. A step has one column if all keys agree on it, and else one per key.

        Examples:
            >>> logs = LogDict({"loss": np.array([3.0, 1.0])}, stacked=["loss"])
            >>> logs.to_pandas()["loss"].tolist()
            [3.0, 1.0]
        """
        return _tables.to_pandas(self)

    def to_xarray(self) -> xarray.Dataset:
        """Return a Dataset with one variable per array, and the steps as coordinates.

        Needs the extra `chiplog[xarray]`. The time axis of a key is called `entry`, or
        `entry_<key>` where keys have different lengths.

        Examples:
            >>> logs = LogDict({"loss": np.array([3.0, 1.0])}, stacked=["loss"])
            >>> logs.to_xarray()["loss"].dims
            ('entry',)
        """
        return _tables.to_xarray(self)

    def __repr__(self) -> str:
        return _show.as_text(self)

    def _repr_html_(self) -> str:
        return _show.as_html(self)

    def _map_keys(self, rename: Callable[[str], str | None]) -> LogDict:
        names = {key: new for key in self if (new := rename(key)) is not None}

        def renamed(by_key: Mapping[str, Any]) -> dict[str, Any]:
            return {names[key]: value for key, value in by_key.items() if key in names}

        steps = {name: renamed(by_key) for name, by_key in self.steps.items()}
        return LogDict(
            renamed(self),
            steps={name: by_key for name, by_key in steps.items() if by_key},
            valid=renamed(self._valid),
            dropped=renamed(self._dropped),
            stacked={names[key] for key in self.stacked if key in names},
        )

    def _length(self, key: str) -> tuple[int, ...]:
        """The shape of the time axis of a key: one number, or none."""
        leaves = jax.tree.leaves(self[key])
        return tuple(np.shape(leaves[0])[:1]) if key in self.stacked and leaves else ()

    def _mask(self, key: str) -> Any:
        mask = self.valid[key]
        return mask if key in self.stacked else jnp.asarray(mask)[None]


class _Slicer:
    def __init__(self, logs: LogDict) -> None:
        self._logs = logs

    def __getitem__(self, index: slice) -> LogDict:
        if not isinstance(index, slice):
            raise LogTypeError(
                f"`logs.slice[...]` takes a slice such as `logs.slice[10:20]`, not {index!r}. "
                "For one entry write `logs.slice[i:i + 1]`."
            )
        logs = self._logs

        def cut(by_key: Mapping[str, Any]) -> dict[str, Any]:
            return {
                key: jax.tree.map(lambda x: x[index], value) if key in logs.stacked else value
                for key, value in by_key.items()
            }

        return LogDict(
            cut(logs),
            steps={name: cut(by_key) for name, by_key in logs.steps.items()},
            valid=cut(logs._valid),
            dropped=logs._dropped,
            stacked=logs.stacked,
        )


def _flatten(logs: LogDict) -> tuple[tuple[Any, ...], Any]:
    # Keys and steps keep their order, which JAX would lose with dictionaries.
    children = (*logs.values(), tuple(logs.steps.values()), logs._valid, logs._dropped)
    return children, (tuple(logs), tuple(logs.steps), logs.stacked)


def _flatten_with_keys(logs: LogDict) -> tuple[list[tuple[Any, Any]], Any]:
    children, aux = _flatten(logs)
    names = [
        *map(jax.tree_util.DictKey, logs),
        *map(jax.tree_util.GetAttrKey, ("steps", "valid", "dropped")),
    ]
    return list(zip(names, children, strict=True)), aux


def _unflatten(aux: Any, children: tuple[Any, ...]) -> LogDict:
    # Not through __init__: this runs on every call of a spooled function.
    keys, names, stacked = aux
    logs = LogDict.__new__(LogDict)
    dict.update(logs, zip(keys, children))  # noqa: B905 (the rest follows)
    steps, logs._valid, logs._dropped = children[-3:]
    logs.steps = dict(zip(names, steps))  # noqa: B905 (this is the hot path)
    logs.stacked = stacked
    return logs


jax.tree_util.register_pytree_with_keys(LogDict, _flatten_with_keys, _unflatten, _flatten)


def _rows(logs: LogDict, key: str, value: Any) -> Any:
    if key in logs.stacked:
        return value
    return jax.tree.map(lambda x: jnp.asarray(x)[None], value)


def _concatenate(a: LogDict, b: LogDict, key: str) -> Any:
    before, after = _rows(a, key, a[key]), _rows(b, key, b[key])

    def types(rows: Any) -> list[Any]:
        return [(np.shape(x)[1:], jnp.asarray(x).dtype) for x in jax.tree.leaves(rows)]

    same = jax.tree.structure(before) == jax.tree.structure(after)
    if not same or types(before) != types(after):
        raise MixedKeyError(
            f"Cannot join the logs of {key!r}: one side has entries of {_types(before)}, the "
            f"other of {_types(after)}. Rename one side with `.prefix`, or convert it first."
        )
    return jax.tree.map(_join, before, after)


def _join(a: Any, b: Any) -> Any:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.concatenate([a, b])
    return jnp.concatenate([jnp.asarray(a), jnp.asarray(b)])


def _lanes(mask: Any, like: Any) -> Any:
    """Give a mask over entries the lanes of `like`."""
    extra = np.shape(like)[np.ndim(mask) :]
    widened = jnp.reshape(mask, np.shape(mask) + (1,) * len(extra))
    return jnp.broadcast_to(widened, np.shape(mask) + extra)


def _fold(how: _reduce.How, rows: Any, mask: Any) -> Any:
    lanes = () if mask is None else np.shape(mask)[1:]
    row = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)

    def step(folded: _reduce.Folded, now: Any) -> tuple[_reduce.Folded, None]:
        value, flag = now
        return _reduce.push(how, folded, value, flag), None

    folded, _ = jax.lax.scan(step, _reduce.start(how, row, lanes), (rows, mask))
    return _reduce.finish(how, folded, row)


def _types(value: Any) -> str:
    shapes = [
        f"{jnp.asarray(x).dtype}[{','.join(map(str, np.shape(x)[1:]))}]"
        for x in jax.tree.leaves(value)
    ]
    return ", ".join(shapes) or "nothing"
