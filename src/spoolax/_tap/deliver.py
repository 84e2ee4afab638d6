"""Make `LogDict`s of rows that have arrived on the host, and hand them to callbacks in order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._jax import processes
from .._log.entry import Meta
from .._logdict.logdict import LogDict
from .._logdict.origin import Origin
from ._reels.gather import Arrived
from ._reels.pieces import Piece, by_name
from ._reels.reel import KeyData
from .runs import Run
from .sinks import Sink

# Entries in a batch that comes in order. To make a batch of less is no cheaper than to make single
# entries of them, and one of more would keep the program from the interpreter.
FEW, MANY = 8, 256
STEP = "step"


def count_entries(parts: Sequence[Arrived], wanted: Callable[[Meta], str | None]) -> int:
    """Count the entries that a sink would have received."""
    pieces = (piece for part in parts for piece in part.pieces())
    return sum(len(piece.order) for piece in pieces if wanted(piece.meta) is not None)


def deliver(
    parts: Sequence[Arrived],
    run: Run,
    sink: Sink,
    wanted: Callable[[Meta], str | None],
    when: float,
) -> Iterator[None]:
    """Call the sink's callback, and yield after each call.

    `wanted` says whether the sink wants an entry, and which prefix its keys get.
    """
    pieces = [piece for part in parts for piece in part.pieces()]
    mine = [
        piece._replace(data={prefix + key: value for key, value in piece.data.items()})
        for piece in pieces
        if (prefix := wanted(piece.meta)) is not None and len(piece.order)
    ]
    block = sink.block
    if block is not None:
        mine = [piece if piece.steps else _numbered(piece, run, block.numbered) for piece in mine]
    make = _singles if not sink.batch else _stretches if sink.in_order else _batches
    for logs in make(mine, run, when):
        if sink in run.done_with or (block is not None and sink.stop is not None):
            return
        sink.call(run, logs)
        yield


def _numbered(piece: Piece, run: Run, numbered: Callable[..., Any]) -> Piece:
    """Give entries a step."""
    steps, lanes = numbered(run, piece.meta, piece.iterations), piece.meta.lanes
    whole = np.broadcast_to(steps.reshape(-1, *(1 for _ in lanes)), (len(steps), *lanes))
    return piece._replace(steps={STEP: whole})


def _singles(pieces: Sequence[Piece], run: Run, when: float) -> Iterator[LogDict]:
    """Make a LogDict of every entry, in order."""
    makers = [_maker(piece, run, when) for piece in pieces]
    which, rows = _in_order(pieces)
    for number, row in zip(which.tolist(), rows.tolist(), strict=True):
        yield makers[number](row)


def _stretches(pieces: Sequence[Piece], run: Run, when: float) -> Iterator[LogDict]:
    """Make batches of what one call logged in a row, and else single entries, in order."""
    makers = [_maker(piece, run, when) for piece in pieces]
    for number, rows in _in_a_row(pieces):
        for first in range(0, len(rows), MANY):
            some = rows[first : first + MANY]
            if len(some) < FEW:
                yield from map(makers[number], some.tolist())
            else:
                yield _stack(_part(pieces[number], some), run, when)


def _in_a_row(pieces: Sequence[Piece]) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Of all entries in order: which piece those are in that follow each other, and their rows."""
    which, rows = _in_order(pieces)
    for some in np.split(rows, np.flatnonzero(np.diff(which)) + 1):
        if len(some):
            yield int(which[0]), some
            which = which[len(some) :]


def _in_order(pieces: Sequence[Piece]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Of all entries in order, the piece that each is in, and its row there."""
    counts = [len(piece.order) for piece in pieces]
    order = np.concatenate([np.zeros(0, np.int64), *(piece.order for piece in pieces)])
    sort = np.argsort(order, kind="stable")
    which = np.repeat(np.arange(len(pieces)), counts)
    rows = np.arange(len(order)) - np.repeat(np.cumsum([0, *counts])[:-1], counts)
    return which[sort], rows[sort]


def _part(piece: Piece, rows: np.ndarray[Any, Any]) -> Piece:
    """Some of the entries of a piece."""

    def cut(x: Any) -> Any:
        return x[rows]

    return piece._replace(
        order=cut(piece.order),
        iterations=cut(piece.iterations),
        data=by_name(cut, piece.data),
        steps=by_name(cut, piece.steps),
        mask=None if piece.mask is None else cut(piece.mask),
    )


def _maker(piece: Piece, run: Run, when: float) -> Callable[[int], LogDict]:
    """Return a function that makes a LogDict of an entry. Every entry pays for this."""
    lanes = len(piece.meta.lanes)
    axes = {key: (lanes, _own(value, lanes)) for key, value in piece.data.items()}
    data = [(key, _picker(value)) for key, value in piece.data.items()]
    steps = [(name, _picker(value)) for name, value in piece.steps.items()]
    keys = tuple(piece.data)
    marks = _marks(piece, piece.meta.lanes)

    def make(row: int) -> LogDict:
        logs = LogDict.__new__(LogDict)
        for key, pick in data:
            dict.__setitem__(logs, key, pick(row))
        logs.__dict__ = {
            "steps": {name: dict.fromkeys(keys, pick(row)) for name, pick in steps},
            "stacked": frozenset(),
            "_valid": {} if piece.mask is None else dict.fromkeys(keys, piece.mask[row].copy()),
            "_dropped": {},
            "_backward": dict(marks),
            "_axes": axes,
            "_origin": functools.partial(_origin, piece, row, run, when),
        }
        return logs

    return make


def _marks(piece: Piece, shape: tuple[int, ...]) -> dict[str, Any]:
    return dict.fromkeys(piece.data, np.ones(shape, bool)) if piece.meta.backward else {}


def _own(value: Any, lanes: int) -> int:
    return len(jax.tree.leaves(value)[0].shape) - 1 - lanes


def _picker(value: Any) -> Callable[[int], Any]:
    if isinstance(value, np.ndarray):
        if value.ndim == 1:
            return value.__getitem__
        return lambda row: value[row].copy()  # A view would keep all of the chunk.
    if isinstance(value, KeyData):
        return lambda row: value[row].key()
    leaves, tree = jax.tree.flatten(value)
    pickers = [_picker(leaf) for leaf in leaves]
    return lambda row: jax.tree.unflatten(tree, [pick(row) for pick in pickers])


def _origin(piece: Piece, row: int | slice, run: Run, when: float) -> Origin:
    iteration = piece.iterations[row]
    meta = piece.meta
    return Origin(
        path=piece.path,
        iteration=tuple(iteration.tolist()) if isinstance(row, int) else iteration,
        lanes=meta.lanes,
        device=run.device if meta.devices is None else meta.devices.names or None,
        coordinates=meta.devices.coordinates if meta.devices else (),
        time=when,
        tags=meta.tags,
        site=meta.site,
        process=processes.index(),
        backward=meta.backward,
    )


def _batches(pieces: Sequence[Piece], run: Run, when: float) -> Iterator[LogDict]:
    """Make a LogDict for every set of keys that are always logged by the same calls."""
    calls: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces):
        for key in piece.data:
            calls.setdefault(key, []).append(number)
    together: dict[tuple[int, ...], list[str]] = {}
    for key, where in calls.items():
        together.setdefault(tuple(where), []).append(key)
    for numbers, keys in together.items():
        chosen = [
            pieces[i]._replace(data={key: pieces[i].data[key] for key in keys}) for i in numbers
        ]
        merged = [_merged(group) for group in _compatible(chosen)]
        if len(merged) == 1:
            yield _stack(merged[0], run, when)
        else:  # The entries of a key stay in order, also of those that no array could hold.
            for number, rows in _in_a_row(merged):
                yield _stack(_part(merged[number], rows), run, when)


def _compatible(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Separate pieces that cannot be in one array."""
    groups: dict[Any, list[Piece]] = {}
    for piece in pieces:
        leaves, tree = jax.tree.flatten((piece.data, piece.steps))
        types = ((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        kind = (tree, *types, piece.meta.lanes, piece.meta.backward)
        groups.setdefault(kind, []).append(piece)
    return list(groups.values())


def _merged(pieces: Sequence[Piece]) -> Piece:
    """Make one piece of several, in order."""
    order = np.concatenate([piece.order for piece in pieces])
    if len(pieces) == 1 and (order[:-1] <= order[1:]).all():
        return pieces[0]
    sort = np.argsort(order, kind="stable")
    masks = None
    if any(piece.mask is not None for piece in pieces):
        masks = np.concatenate(
            [
                np.ones((len(p.order), *p.meta.lanes), bool) if p.mask is None else p.mask
                for p in pieces
            ]
        )[sort]

    def join(*xs: Any) -> Any:
        if isinstance(xs[0], KeyData):
            return KeyData(np.concatenate([x.data for x in xs])[sort], xs[0].dtype)
        return np.concatenate(xs)[sort]

    data = by_name(join, *(piece.data for piece in pieces))
    steps = by_name(join, *(piece.steps for piece in pieces))
    path = {piece.path for piece in pieces}
    depth = max(piece.iterations.shape[1] for piece in pieces)
    iterations = np.concatenate(
        [
            np.pad(p.iterations, ((0, 0), (0, depth - p.iterations.shape[1])), constant_values=-1)
            for p in pieces
        ]
    )
    return Piece(
        " ".join(sorted(path)), pieces[0].meta, order[sort], iterations[sort], data, steps, masks
    )


def _stack(piece: Piece, run: Run, when: float) -> LogDict:
    """Make one LogDict of all entries of a piece, with an axis of entries in front."""

    def whole(x: Any) -> Any:
        return x.key() if isinstance(x, KeyData) else np.ascontiguousarray(x)

    lanes, keys = len(piece.meta.lanes), tuple(piece.data)
    data, steps = by_name(whole, piece.data), by_name(whole, piece.steps)
    logs = LogDict(
        data,
        steps={name: dict.fromkeys(keys, at) for name, at in steps.items()},
        valid={} if piece.mask is None else dict.fromkeys(keys, piece.mask),
        backward=_marks(piece, (len(piece.order), *piece.meta.lanes)),
        stacked=keys,
    )
    logs._axes = {key: (lanes, _own(value, lanes)) for key, value in piece.data.items()}
    logs._origin = functools.partial(_origin, piece, slice(None), run, when)
    return logs
