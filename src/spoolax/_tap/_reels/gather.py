"""What the devices of a `shard_map` have logged, put together.

Every device has rows of its own. Those of the same `log` call, in the same iterations of the loops
around it, are one entry: with an axis of devices in front if it differs between them, and else that
of one device. Devices that did not get there (their loop had ended, or they took another branch)
are marked as such.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..._log.entry import Devices
from .pieces import Part, Piece, by_name
from .reel import Group, KeyData


class Spread(NamedTuple):
    """How an entry is spread over the devices of a mesh."""

    devices: tuple[int, ...]  # By number: those that may differ, or one of those that do not.
    along: Devices | None  # What is known of them, if there is one entry on each.


class ShardGroup:
    """The reels that each device of a `shard_map` has, and leaves to be returned."""

    path: tuple[str, ...] = ()  # That of the `shard_map`, which is in no loop.
    counted = False
    is_rare = holds_up = False

    def __init__(self, groups: Sequence[Group], spreads: Sequence[Sequence[Spread]], devices: int):
        self.groups, self.spreads, self.devices = groups, spreads, devices
        self.listeners = frozenset(one for group in groups for one in group.listeners)
        self.size = self.devices * sum(group.size for group in groups)
        # By group, its place in the program: loops, and it itself, by number among its siblings.
        paths = [group.path for group in groups]
        self.places = [
            [
                next(i for i, other in enumerate(paths) if other[: depth + 1] == path[: depth + 1])
                for depth in range(len(path))
            ]
            + [number]
            for number, path in enumerate(paths)
        ]

    @property
    def arrays(self) -> int:
        """How many arrays come with it: numbers of every device, and those of its reels."""
        return 1 + sum(group.arrays for group in self.groups)


class Gathered(NamedTuple):
    """Rows of all devices."""

    group: ShardGroup
    parts: Mapping[int, Sequence[Arrived]]  # By device.
    number: int = 0  # Of all that comes from the `shard_map`, in the order of the program.

    @property
    def entries(self) -> int:
        """How many entries there are, about."""
        return max(sum(part.entries for part in parts) for parts in self.parts.values())

    @property
    def size(self) -> int:
        """How many bytes it keeps."""
        return sum(part.size for parts in self.parts.values() for part in parts)

    def pieces(self) -> list[Piece]:
        """Put together what each `log` call has logged on all devices."""
        found: dict[tuple[int, int], dict[int, list[Piece]]] = {}
        for device, parts in self.parts.items():
            for part in parts:
                number = self.group.groups.index(part.group)
                for call, piece in enumerate(part.pieces()):
                    found.setdefault((number, call), {}).setdefault(device, []).append(piece)
        merged = []
        for (number, call), by_device in sorted(found.items()):
            spread = self.group.spreads[number][call]
            mine = {device: by_device[device] for device in spread.devices if device in by_device}
            if mine:
                merged.append((number, *_merged(mine, spread)))
        return self._ordered(merged)

    def _ordered(self, merged: Sequence[tuple[int, Piece, Any]]) -> list[Piece]:
        """Number the entries of several pieces in the order of the program.

        Of each, there are its group, by number, and where in its row every entry was.
        """
        if not merged:
            return []
        if len(merged) == 1:  # It is in order.
            ((_, piece, offsets),) = merged
            return [piece._replace(order=(self.number << 32) + np.arange(len(offsets)))]
        places = [self._places(*one) for one in merged]
        width = max(one.shape[1] for one in places)
        padded = [
            np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=-1) for one in places
        ]
        rank = np.argsort(np.lexsort(np.concatenate(padded).T[::-1]))
        ends = np.cumsum([len(one) for one in places])[:-1]
        return [
            piece._replace(order=(self.number << 32) + mine)
            for (_, piece, _), mine in zip(merged, np.split(rank, ends), strict=True)
        ]

    def _places(self, number: int, piece: Piece, offsets: Any) -> Any:
        """Where in the program each entry of a piece is: one row of whole numbers for each."""
        static = self.group.places[number]
        columns = [np.full(len(offsets), static[0])]
        for depth, place in enumerate(static[1:]):
            columns += [piece.iterations[:, depth], np.full(len(offsets), place)]
        return np.stack([*columns, offsets], 1)


Arrived: TypeAlias = Part | Gathered


def arrived(
    groups: Sequence[Group | ShardGroup], numbers: Iterator[int], arrays: Iterator[Any]
) -> list[Arrived]:
    """Take the rows out of reels. For each, there are some numbers, and then its arrays."""
    parts: list[Arrived] = []
    for group in groups:
        count = next(numbers)
        mine = [next(arrays) for _ in range(group.arrays)]
        if isinstance(group, ShardGroup):
            if count:
                parts.append(_of_devices(group, *mine))
        else:
            iteration = number = 0
            if group.counted:
                iteration, count, number = count, wrapped(next(numbers) - count), next(numbers)
            if count:
                rows = group.layout.taken(count, mine[0], mine[1:])
                parts.append(Part(group, rows, number, iteration))
    return parts


def wrapped(number: int) -> int:
    """A number as 32 bits have it: loops may make more iterations than that."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _of_devices(group: ShardGroup, numbers: Any, *arrays: Any) -> Gathered:
    """Take the rows out of the reels that all devices have left."""
    parts = {
        device: arrived(group.groups, iter(row[1:]), iter([x[device] for x in arrays]))
        for device, row in enumerate(numbers.tolist())
    }
    return Gathered(group, parts, int(numbers[0, 0]))


def _merged(pieces: Mapping[int, Sequence[Piece]], spread: Spread) -> tuple[Piece, Any]:
    """Put together what one call logged on several devices, and say where in its row it was."""
    mine = {device: _joined(several) for device, several in pieces.items()}
    first, *others = mine.values()
    offsets = first.order & 0xFFFFFFFF
    if spread.along is None:
        return first, offsets
    lanes = (len(spread.devices), *first.meta.lanes)
    meta = dataclasses.replace(first.meta, lanes=lanes, devices=spread.along)
    if len(mine) == len(spread.devices) and all(
        np.array_equal(first.iterations, other.iterations) for other in others
    ):

        def stack(*xs: Any) -> Any:
            return _with_raw(lambda *xs: np.stack(xs, 1), *xs)

        data, steps = (
            by_name(stack, *each)
            for each in zip(*((one.data, one.steps) for one in mine.values()), strict=True)
        )
        mask = None
        if any(one.mask is not None for one in mine.values()):
            mask = np.stack([_mask(one) for one in mine.values()], 1)
        return first._replace(meta=meta, data=data, steps=steps, mask=mask), offsets

    every = np.concatenate([one.iterations for one in mine.values()])
    iterations, firsts, where = np.unique(every, axis=0, return_index=True, return_inverse=True)
    rows = np.split(where.reshape(-1), np.cumsum([len(one.order) for one in mine.values()])[:-1])
    columns = [spread.devices.index(device) for device in mine]

    def scatter(*xs: Any) -> Any:
        return _with_raw(fill, *xs)

    def fill(*xs: Any) -> Any:
        room = np.zeros((len(iterations), len(spread.devices), *xs[0].shape[1:]), xs[0].dtype)
        for x, row, column in zip(xs, rows, columns, strict=True):
            room[row, column] = x
        return room

    data, steps = (
        by_name(scatter, *each)
        for each in zip(*((one.data, one.steps) for one in mine.values()), strict=True)
    )
    offsets = np.concatenate([one.order & 0xFFFFFFFF for one in mine.values()])[firsts]
    mask = fill(*map(_mask, mine.values()))
    return Piece(first.path, meta, offsets, iterations, data, steps, mask), offsets


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Make one piece of several that followed each other."""
    if len(pieces) == 1:
        return pieces[0]

    def join(*xs: Any) -> Any:
        return _with_raw(lambda *xs: np.concatenate(xs), *xs)

    return pieces[0]._replace(
        order=join(*(piece.order for piece in pieces)),
        iterations=join(*(piece.iterations for piece in pieces)),
        data=by_name(join, *(piece.data for piece in pieces)),
        steps=by_name(join, *(piece.steps for piece in pieces)),
        mask=join(*map(_mask, pieces)),
    )


def _mask(piece: Piece) -> Any:
    if piece.mask is not None:
        return piece.mask
    return np.ones((len(piece.order), *piece.meta.lanes), bool)


def _with_raw(change: Callable[..., Any], *xs: Any) -> Any:
    """Apply a function to arrays, or to the numbers behind random keys."""
    if isinstance(xs[0], KeyData):
        return KeyData(change(*(x.data for x in xs)), xs[0].dtype)
    return change(*xs)
