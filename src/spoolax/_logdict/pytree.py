"""How JAX takes a `LogDict` apart and puts it together again, also when it is exported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from .logdict import LogDict


def register(cls: type[LogDict]) -> None:
    """Make the class a pytree."""

    def unflatten(aux: Any, children: tuple[Any, ...]) -> LogDict:
        # Not through __init__: this runs on every call of a spooled function.
        keys, names, stacked, axes = aux
        logs = cls.__new__(cls)
        dict.update(logs, zip(keys, children))  # noqa: B905 (the rest follows)
        steps, valid, dropped, backward = children[-4:]
        logs.__dict__ = {
            "steps": dict(zip(names, steps)) if names else {},  # noqa: B905 (they are as many)
            "stacked": stacked,
            "_valid": valid,
            "_dropped": dropped,
            "_backward": backward,
            "_axes": axes.axes,
        }
        return logs

    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, unflatten, _flatten)
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name="spoolax.LogDict",
        serialize_auxdata=_aux_to_bytes,
        deserialize_auxdata=_aux_from_bytes,
    )


def _flatten(logs: LogDict) -> tuple[tuple[Any, ...], Any]:
    # Keys and steps keep their order, which JAX would lose with dictionaries.
    more = (tuple(logs.steps.values()), logs._valid, logs._dropped, logs._backward)
    axes = logs._axes
    if len(axes) < len(logs):  # Before `vmap` adds axes, as nobody could tell them apart later.
        axes = {key: one.axes for key, one in logs._all().items()}
    return (*logs.values(), *more), (tuple(logs), tuple(logs.steps), logs.stacked, _Axes(axes))


def _flatten_with_keys(logs: LogDict) -> tuple[list[tuple[Any, Any]], Any]:
    children, aux = _flatten(logs)
    names = [
        *map(jax.tree_util.DictKey, logs),
        *map(jax.tree_util.GetAttrKey, ("steps", "valid", "dropped", "backward")),
    ]
    return list(zip(names, children, strict=True)), aux


class _Axes:
    """How to read the axes of a LogDict, as a part of its type."""

    def __init__(self, axes: dict[str, tuple[int, int | None]]) -> None:
        self.axes = axes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Axes) and self.axes == other.axes

    def __hash__(self) -> int:
        return 0  # The keys, which stand beside it, tell enough.

    def __repr__(self) -> str:
        return f"lanes and axes of an entry: {self.axes}"


def _aux_to_bytes(aux: Any) -> bytes:
    keys, names, stacked, axes = aux
    return json.dumps([keys, names, sorted(stacked), axes.axes]).encode()


def _aux_from_bytes(data: bytes) -> Any:
    keys, names, stacked, axes = json.loads(data)
    known = _Axes({key: (lanes, own) for key, (lanes, own) in axes.items()})
    return tuple(keys), tuple(names), frozenset(stacked), known
