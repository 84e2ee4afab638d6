"""What was logged: values by key, with their steps and their validity.

A `LogDict` is an ordinary dictionary and a pytree, so it can be returned from jitted functions,
mapped over and printed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax

from ..errors import LogTypeError
from . import tables as _tables
from . import text as _show
from .origin import Origin
from .pytree import register
from .reductions import How
from .series import Series

if TYPE_CHECKING:
    import pandas
    import xarray


class LogDict(dict[str, Any]):
    """What was logged, by key.

    A key that was logged once holds the value as it was logged. A key that was logged in a loop, or
    more than once, has one leading axis in execution order (`key in logs.stacked`).

    It can be changed like any dictionary. A key that is removed takes its steps along. A key that
    gets another value keeps its steps if that has as many entries; else they are forgotten.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     def body(x, i):
        ...         spoolax.log({"x": x}, step=i)
        ...         return 2 * x, None
        ...     return jax.lax.scan(body, x, jax.numpy.arange(4))[0]
        >>> y, logs = spoolax.spool(f)(1.0)
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

    _beside_states = False  # Whether a logger also gets the states of the steps that logged this.

    def __init__(
        self,
        values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        valid: Mapping[str, Any] | None = None,
        dropped: Mapping[str, Any] | None = None,
        backward: Mapping[str, Any] | None = None,
        stacked: Iterable[str] = (),
    ) -> None:
        super().__init__(values)
        # None of these is ever changed in place: they may be shared with copies.
        self.steps = {name: dict(by_key) for name, by_key in (steps or {}).items()}
        self.stacked = frozenset(stacked)
        self._valid = dict(valid or {})
        self._dropped = dict(dropped or {})
        self._backward = dict(backward or {})
        self._axes: dict[str, tuple[int, int | None]] = {}  # Those of lanes, and of one entry.
        self._origin: Origin | Callable[[], Origin | None] | None = None
        self._meta: dict[str, Any] = {}
        if isinstance(values, LogDict):
            known = values.copy()
            self.steps = self.steps or known.steps
            self.stacked = self.stacked or known.stacked
            self._valid = self._valid or known._valid
            self._dropped = self._dropped or known._dropped
            self._backward = self._backward or known._backward
            self._axes = known._axes

    def __getattr__(self, name: str) -> dict[str, Any]:
        steps: dict[str, dict[str, Any]] = self.__dict__.get("steps", {})
        if name in steps:
            return steps[name]
        known = ", ".join(f"`{step}`" for step in steps) or "none"
        raise AttributeError(f"LogDict has no step or attribute `{name}`; its steps are: {known}")

    def __missing__(self, key: str) -> Any:
        known = ", ".join(map(repr, self)) or "none"
        raise KeyError(f"{key!r} was not logged; the logged keys are: {known}")

    @property
    def valid(self) -> dict[str, Any]:
        """Which entries of each key are real, and in which lanes."""
        return {key: self.series(key).mask for key in self}

    @property
    def dropped(self) -> dict[str, Any]:
        """How many entries of each key did not fit into `capacity`."""
        return {key: self._dropped.get(key, 0) for key in self}

    @property
    def backward(self) -> dict[str, Any]:
        """Which entries of each key were logged in a backward pass, in the shape of `valid`."""
        return {key: self.series(key).marks for key in self}

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about the run, if it was loaded from a file: "config", "start", ..."""
        return dict(self.__dict__.get("_meta", {}))

    @property
    def origin(self) -> Origin | None:
        """Where and when it was logged, if it came from `tap`; else None."""
        origin = self.__dict__.get("_origin")
        if callable(origin):  # Not made before somebody asks.
            origin = self._origin = origin()
        return origin

    def __reduce__(self) -> Any:
        return _restored, (type(self), dict(self), {**self.__dict__, "_origin": self.origin})

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:
            self._set(key, self.series(key).with_value(value))
        else:
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._know(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key with all that is known about it, and return its value."""
        value = super().pop(key, *default)
        self._know(key)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key with all that is known about it, and return it with its value."""
        key, value = super().popitem()
        self._know(key)
        return key, value

    def clear(self) -> None:
        """Remove everything."""
        for key in tuple(self):
            del self[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, which is `default` if it had none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, /, *others: Any, **values: Any) -> None:
        """Take over the values of `others`; if they are LogDicts, all that is known about them."""
        for other in (*others, values):
            if isinstance(other, LogDict):
                for key, one in other._all().items():
                    self._set(key, one)
            else:
                for key, value in dict(other).items():
                    self[key] = value

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]
        self.update(other)
        return self

    def _set(self, key: str, one: Series) -> None:
        super().__setitem__(key, one.value)
        self._know(key, one)

    def _know(self, key: str, one: Series | None = None) -> None:
        """Replace what is known about a key. None: it was removed."""
        about = one or Series(None)
        names = dict.fromkeys((*self.steps, *about.steps))
        steps = {
            name: _with(self.steps.get(name, {}), key, about.steps.get(name)) for name in names
        }
        self.steps = {name: by_key for name, by_key in steps.items() if by_key}
        self.stacked = self.stacked | {key} if about.stacked else self.stacked - {key}
        self._valid = _with(self._valid, key, about.valid)
        self._dropped = _with(self._dropped, key, about.dropped)
        self._backward = _with(self._backward, key, about.backward)
        self._axes = _with(self._axes, key, None if one is None else one.axes)

    def __add__(self, other: LogDict) -> LogDict:
        """Concatenate in time: the entries of `other` come last."""
        if not isinstance(other, LogDict):
            return NotImplemented
        return joined([self, other])

    def __radd__(self, other: Any) -> LogDict:
        return self if other == 0 else NotImplemented  # So that `sum` works.

    def __or__(self, other: Any) -> LogDict:  # type: ignore[override]
        """Merge; a key in both is taken from `other`."""
        if not isinstance(other, Mapping):
            return NotImplemented
        merged = from_series(self._all())
        merged.update(other)
        return merged

    def __ror__(self, other: Any) -> LogDict:  # type: ignore[override]
        return LogDict(other) | self if isinstance(other, Mapping) else NotImplemented

    def copy(self) -> LogDict:
        """Return a LogDict with the same arrays."""
        return self._like(self._all())

    __copy__ = copy

    def filter(self, *names: str | Iterable[str] | Callable[[str], bool]) -> LogDict:
        """Keep the keys that match one of `names`: names, glob patterns, or functions of the key.

        Examples:
            >>> logs = LogDict({"train/loss": 1.0, "train/lr": 0.1, "eval/loss": 2.0})
            >>> list(logs.filter("train/*"))
            ['train/loss', 'train/lr']
        """
        tests = [_as_test(name) for name in names]
        chosen = {key: one for key, one in self._all().items() if any(t(key) for t in tests)}
        return self._like(chosen)

    def prefix(self, prefix: str) -> LogDict:
        """Put `prefix` in front of every key.

        Examples:
            >>> LogDict({"loss": 1.0}).prefix("train/")["train/loss"]
            1.0
        """
        return self._like({f"{prefix}{key}": one for key, one in self._all().items()})

    def map(self, change: Callable[[Any], Any]) -> LogDict:
        """Apply a function to every logged array, but not to steps and masks.

        `jax.tree.map` would change those as well.

        Examples:
            >>> LogDict({"loss": 1.0}).map(lambda x: 2 * x)["loss"]
            2.0
        """
        logs = self.copy()
        logs.update({key: jax.tree.map(change, value) for key, value in self.items()})
        return logs

    @property
    def slice(self) -> _Slicer:
        """Slice every key that has a time axis: `logs.slice[10:20:2]`."""
        return _Slicer(self)

    def reduce(self, how: How) -> LogDict:
        """Fold the entries of every key into one, as `spool(f, reduce=how)` would have done."""
        return from_series({key: one.fold(how) for key, one in self._all().items()})

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame: one row per entry, one column per number in an entry.

        Needs pandas (the extra `pandas`). Rows are matched by the named steps that keys share.
        If a key has no steps, all keys must have the same number of entries. If some keys have a
        time axis, values that were logged once, outside loops, are in `frame.attrs`.

        Examples:
            >>> logs = LogDict({"loss": jax.numpy.array([3.0, 1.0])}, stacked=["loss"])
            >>> logs.to_pandas()["loss"].tolist()
            [3.0, 1.0]
        """
        return _tables.to_pandas(self)

    def to_xarray(self) -> xarray.Dataset:
        """Return a Dataset with one variable per array, and the steps as coordinates.

        Needs xarray (the extra `xarray`). Keys with the same steps (or, without steps, of the same
        length) share a time axis. A single time axis is called `entry`; several are called
        `entry_<first key>`. Lanes are called `lane_0`, `lane_1`, ...

        Examples:
            >>> logs = LogDict({"loss": jax.numpy.array([3.0, 1.0])}, stacked=["loss"])
            >>> logs.to_xarray()["loss"].dims
            ('entry',)
        """
        return _tables.to_xarray(self)

    def __repr__(self) -> str:
        return _show.as_text(self)

    def _repr_html_(self) -> str:
        return _show.as_html(self)

    def series(self, key: str) -> Series:
        """Return one key with its value, steps, mask and axes."""
        steps = {name: by_key[key] for name, by_key in self.steps.items() if key in by_key}
        return Series(
            self[key],
            steps,
            self._valid.get(key),
            self._dropped.get(key),
            key in self.stacked,
            *self._axes.get(key, (0, None)),
            self._backward.get(key),
        ).checked()

    def _all(self) -> dict[str, Series]:
        return {key: self.series(key) for key in self}

    def _like(self, series: Mapping[str, Series]) -> LogDict:
        """The same entries, with other keys."""
        logs = from_series(series)
        logs._origin = self.__dict__.get("_origin")
        logs._meta = self.__dict__.get("_meta", {})
        return logs


def joined(logs: Sequence[LogDict]) -> LogDict:
    """Concatenate several in time, in order."""
    series: dict[str, list[Series]] = {}
    for one in logs:
        for key in one:
            series.setdefault(key, []).append(one.series(key))
    return from_series(
        {key: one.join(rest, key) if rest else one for key, (one, *rest) in series.items()}
    )


def from_series(series: Mapping[str, Series]) -> LogDict:
    """Make a LogDict of its keys."""
    steps: dict[str, dict[str, Any]] = {}
    for key, one in series.items():
        for name, at in one.steps.items():
            steps.setdefault(name, {})[key] = at
    logs = LogDict(
        {key: one.value for key, one in series.items()},
        steps=steps,
        valid={key: one.valid for key, one in series.items() if one.valid is not None},
        dropped={key: one.dropped for key, one in series.items() if one.dropped is not None},
        backward={key: one.backward for key, one in series.items() if one.backward is not None},
        stacked=(key for key, one in series.items() if one.stacked),
    )
    logs._axes = {key: one.axes for key, one in series.items()}
    return logs


def _as_test(name: str | Iterable[str] | Callable[[str], bool]) -> Callable[[str], bool]:
    if callable(name):
        return name
    names = (name,) if isinstance(name, str) else tuple(name)
    return lambda key: any(matches(key, one) for one in names)


def matches(key: str, name: str) -> bool:
    """Say whether a key is meant by a name or glob pattern."""
    return key == name or fnmatch.fnmatchcase(key, name)


class _Slicer:
    def __init__(self, logs: LogDict) -> None:
        self._logs = logs

    def __getitem__(self, index: slice) -> LogDict:
        if not isinstance(index, slice):
            raise LogTypeError(
                f"`logs.slice[...]` takes a slice such as `logs.slice[10:20]`, not {index!r}. "
                "For one entry write `logs.slice[i:i + 1]`."
            )
        return from_series({key: one.cut(index) for key, one in self._logs._all().items()})


def _with(known: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with another value for a key, or without the key if the value is None."""
    rest = {**known, key: value}
    if value is None:
        del rest[key]
    return rest


def _restored(kind: type[LogDict], values: dict[str, Any], about: dict[str, Any]) -> LogDict:
    """Make a LogDict of its parts, as when it is unpickled."""
    logs = kind.__new__(kind)
    dict.update(logs, values)
    logs.__dict__.update(about)
    return logs


register(LogDict)
