"""One run for every key that `init` is given, also under `vmap` and `jit`.

`init` is a call of the host, which gives every key a number. The number travels through the program
as a value, and becomes a step of every entry; so whatever `vmap` does to the entries, each lane
still says which run it belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax import arrays, host_call
from ..._logdict.logdict import LogDict, from_series
from ..._logdict.series import Series
from ..._tap.streamed import Streamed
from ...errors import LogTypeError

RUN = "spoolax.run."  # And the number of the logger: a step that says which of its runs it is.


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """A run that `init` opened: the `number`-th of its logger, and the key it was given.

    Examples:
        >>> RunInfo(2, (0, 7), ()).name
        'run-2'
    """

    number: int
    key: tuple[int, ...]  # The words of the key.
    lane: tuple[int, ...]  # Which lane of the vmaps around `init`.

    @property
    def name(self) -> str:
        """A name for files and labels."""
        return f"run-{self.number}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """What `logger.init(key)` returns: says which run entries belong to.

    Examples:
        >>> import jax
        >>> from spoolax.loggers import RingBufferLogger
        >>> with RingBufferLogger(3) as logger:
        ...     states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        >>> states.run.tolist()
        [0, 1]
    """

    run: Any


def open_runs(key: Any, opened: Callable[[list[tuple[int, ...]], tuple[int, ...]], int]) -> Any:
    """Have runs opened for a key, or for every lane of it; return their numbers.

    `opened` gets the words of all keys and the sizes of the vmaps, and returns the first number.
    """
    words = _words(key)

    def receive(words: Any) -> Any:
        lanes = words.shape[:-1]
        keys = [tuple(row) for row in words.reshape(-1, words.shape[-1]).tolist()]
        first = opened(keys, lanes)
        return np.arange(first, first + len(keys), dtype=np.int32).reshape(lanes)

    return host_call.numbers_from_host(words, receive)


def _words(key: Any) -> Any:
    """The words of a key: typed, raw, or just a number."""
    if isinstance(key, jax.Array) and arrays.is_key(key):
        if key.ndim:
            raise LogTypeError(
                f"`init` opens one run for one key, but got an array of {key.shape} keys. Write "
                "`jax.vmap(logger.init)(keys)` for one run each."
            )
        return jax.random.key_data(key).reshape(-1)
    try:
        words = jnp.asarray(key)
    except TypeError as error:
        raise LogTypeError(f"`init` takes a key of `jax.random`, not {key!r}.") from error
    if not jnp.issubdtype(words.dtype, jnp.integer) or words.ndim > 1:
        raise LogTypeError(
            f"`init` takes a key of `jax.random`, or a whole number, not {words.dtype} of shape "
            f"{words.shape}."
        )
    return words.reshape(-1)


class OfRuns(Streamed):
    """A tapped program whose entries say which run they belong to."""

    def __init__(self, step: str, *args: Any) -> None:
        self.steps = (step,)
        super().__init__(*args)


def split(logs: LogDict, step: str, axes_of: Callable[[int], int]) -> Iterator[tuple[int, LogDict]]:
    """Yield the numbers of the runs that entries belong to, and the entries of each.

    `step` is the step that says so. `axes_of` says in how many vmaps a run was opened.
    """
    series = {key: logs.series(key) for key in logs}
    first = next(iter(series.values()))
    numbers, front = np.asarray(first.steps[step]), int(first.stacked)
    mask = np.broadcast_to(first.mask, numbers.shape)
    for rows in _alike(numbers) if front else (None,):
        # In these rows, lanes belong to the same runs.
        lanes = numbers if rows is None else numbers[rows[0]]
        happened = mask if rows is None else mask[rows].any(0)
        if not happened.any():
            continue
        telling = _telling(lanes, axes_of(int(lanes[happened][0])))
        for lane in np.ndindex(*(lanes.shape[axis] for axis in telling)):
            here: list[Any] = [slice(None)] * lanes.ndim
            for axis, at in zip(telling, lane, strict=True):
                here[axis] = at
            place = tuple(here)
            if happened[place].any():
                mine = rows
                if rows is not None:
                    each = mask[(rows, *place)]
                    mine = rows[each.reshape(len(rows), -1).any(1)]
                number = int(lanes[place][happened[place]][0])
                yield number, _of_run(logs, series, place, mine, len(telling))


def _alike(numbers: Any) -> list[Any]:
    """The rows of a batch, those together whose lanes belong to the same runs."""
    flat = numbers.reshape(len(numbers), -1)
    if (flat == flat[:1]).all():
        return [np.arange(len(flat))]
    _, which = np.unique(flat, axis=0, return_inverse=True)
    return [np.flatnonzero(which == i) for i in range(which.max() + 1)]


def _of_run(
    logs: LogDict, series: dict[str, Series], place: tuple[Any, ...], rows: Any, removed: int
) -> LogDict:
    part = from_series({key: _part(one, place, rows, removed) for key, one in series.items()})
    part._origin = _origin_of(logs, rows)
    return part


def forget_runs(logs: LogDict) -> None:
    """Remove the steps that say which run entries belong to."""
    for name in [name for name in logs.steps if name.startswith(RUN)]:
        del logs.steps[name]


def _telling(numbers: Any, vmaps: int) -> list[int]:
    """The lane axes that tell runs apart: those along which the number changes.

    An axis of length one has nothing to change, so of those the outer ones are taken, until there
    are as many as the vmaps that the run was opened in.
    """
    lanes = range(numbers.ndim)
    changing = [a for a in lanes if (numbers != np.take(numbers, [0], a)).any()]
    single = [a for a in lanes if numbers.shape[a] == 1]
    return sorted([*changing, *single[: max(0, vmaps - len(changing))]])


def _part(one: Series, place: tuple[Any, ...], rows: Any, removed: int) -> Series:
    where = place if rows is None else (rows, *place)

    def cut(x: Any) -> Any:
        return x[where] if np.ndim(x) >= len(where) else x

    steps = {name: at for name, at in one.steps.items() if not name.startswith(RUN)}
    part = dataclasses.replace(one, steps=steps).map(cut, lanes=one.lanes - removed)
    if part.valid is not None and np.all(part.valid):
        part = dataclasses.replace(part, valid=None)
    return part


def _origin_of(logs: LogDict, rows: Any) -> Callable[[], Any] | None:
    def origin() -> Any:
        whole = logs.origin
        if whole is None or rows is None:
            return whole
        return dataclasses.replace(whole, iteration=whole.iteration[rows])

    return origin
