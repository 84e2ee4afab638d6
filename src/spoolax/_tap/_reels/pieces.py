"""What arrives on the host, taken apart: rows of reels, and the entries of each `log` call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..._log.entry import Entry, Meta, Node, length_of, size_of
from .reel import Group, ReelRows


class Part(NamedTuple):
    """Rows of a group."""

    group: Group
    rows: ReelRows
    # If they are counted, the number and the iteration of the first of them.
    number: int = 0
    iteration: int = 0

    @property
    def entries(self) -> int:
        """How many entries there are, at most."""
        return len(self.rows.words) * self.group.entries

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
        return self.rows.words.nbytes + sum(x.nbytes for x in self.rows.large)

    def pieces(self) -> list[Piece]:
        """Take the rows apart, by `log` call."""
        header, nodes = self.group.layout.unpack(self.rows)
        if self.group.counted:
            count = np.arange(len(self.rows.words), dtype=np.int32)
            header = np.stack([count + self.number, count + self.iteration], 1)
        # Rows are ordered by their number, and what is in a row as in `nodes`.
        order = header[:, 0].astype(np.int64) << 32
        pieces: list[Piece] = []
        _walk(nodes, self.group.path, order, header[:, 1:], pieces)
        return pieces


def ends(groups: Sequence[Any], items: Sequence[Any]) -> list[Part]:
    """Join what several executions of a program without loops have left in their reels.

    Each reel has one row at most. Of each execution, there are how many, and their arrays.
    """
    parts: list[Part] = []
    place = 0
    for number, group in enumerate(groups):
        width = group.layout.width
        filled = [(i, given) for i, (numbers, given, _) in enumerate(items) if numbers[1 + number]]
        if filled:
            words = np.stack([given[place][:width] for _, given in filled])
            # Rows are ordered by the first number of each, within their execution.
            order = words[:, 0].view(np.int32)
            order += np.array([i for i, _ in filled], np.int32) * np.int32(len(groups) + 1)
            large = (
                np.stack([given[place + 1 + i][0] for _, given in filled])
                for i in range(group.layout.large)
            )
            parts.append(Part(group, ReelRows(words, tuple(large))))
        place += group.arrays
    return parts


class Piece(NamedTuple):
    """What one `log` call of the program logged, entry by entry in the order of `order`."""

    path: str
    meta: Meta
    order: np.ndarray[Any, Any]
    iterations: np.ndarray[Any, Any]
    data: dict[str, Any]
    steps: dict[str, Any]
    mask: Any  # None: they happened in all lanes.


def _walk(
    nodes: Sequence[Node],
    path: tuple[str, ...],
    order: np.ndarray[Any, Any],
    iterations: np.ndarray[Any, Any],
    pieces: list[Piece],
) -> None:
    """Add the pieces of nodes. `order` and `iterations` have an axis of rows, and one per loop."""
    start, depth = 0, order.ndim - 1
    for node in nodes:
        if isinstance(node, Entry):
            pieces.append(_piece(node, path, order + start, iterations))
        else:
            length = length_of(node, depth)
            size = size_of(node, depth) // length if length else 0
            count = np.arange(length)
            deeper = np.broadcast_to(
                iterations[..., None, :], (*order.shape, length, iterations.shape[-1])
            )
            number = np.broadcast_to(count[:, None], (*deeper.shape[:-1], 1))
            _walk(
                node.body,
                (*path, node.label.name.rpartition(":")[2]),
                order[..., None] + start + size * count,
                np.concatenate([deeper, number], -1),
                pieces,
            )
        start += size_of(node, depth)


def _piece(
    entry: Entry,
    path: tuple[str, ...],
    order: np.ndarray[Any, Any],
    iterations: np.ndarray[Any, Any],
) -> Piece:
    axes, total = order.ndim, order.size

    def flat(x: Any) -> Any:
        return x.reshape(total, *x.shape[axes:])

    entry = jax.tree.map(flat, entry)
    order, iterations = order.reshape(total), iterations.reshape(total, iterations.shape[-1])
    data, steps, mask = entry.data, entry.steps, entry.mask
    if mask is not None:
        happened = mask.any(tuple(range(1, mask.ndim)))
        if not happened.all():
            order, iterations, mask = order[happened], iterations[happened], mask[happened]
            data, steps = (by_name(lambda x: x[happened], each) for each in (data, steps))
        if mask.all():
            mask = None
    return Piece("/".join(path), entry.meta, order, iterations, data, steps, mask)


def by_name(change: Callable[..., Any], *values: dict[str, Any]) -> dict[str, Any]:
    """Apply a function to arrays by name, in the order in which they were logged."""
    return {name: jax.tree.map(change, *(each[name] for each in values)) for name in values[0]}
