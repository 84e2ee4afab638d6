"""Pytrees and their structures: how one is taken apart, and put together again.

Reading a structure makes dictionaries, tuples and lists again; instances of classes become a
`Namespace`, unless the reader is given the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ...errors import LogTypeError, StorageError
from .structures import MAX_DEPTH, Json, encode_name


class Namespace(dict[str, Any]):
    """Values by name, as attributes and items.

    Examples:
        >>> state = Namespace(energy=1.0)
        >>> state.energy, state["energy"]
        (1.0, 1.0)
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "nothing"
            raise AttributeError(f"There is no {name!r} here, only {known}.") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


jax.tree_util.register_pytree_with_keys(
    Namespace,
    lambda node: ([(jax.tree_util.DictKey(k), v) for k, v in node.items()], tuple(node)),
    lambda names, children: Namespace(zip(names, children, strict=True)),
)


def structure_of(tree: Any, is_leaf: Callable[[Any], bool], path: tuple[str, ...] = ()) -> Json:
    """The structure of a tree. Leaves are named by their path: "positions/0"."""
    if is_leaf(tree):
        if len(path) >= MAX_DEPTH:
            raise StorageError(
                f"Trees can be up to {MAX_DEPTH} levels deep, and this one is deeper."
            )
        return {"leaf": "/".join(map(encode_name, path)) or "value"}
    if tree is None:
        return {"kind": "none"}
    kind, children = _kind_and_children(tree, path)
    if len({encode_name(name) for name, _ in children}) != len(children):
        raise StorageError(f"Two parts of {'/'.join(path) or 'the tree'} have the same name.")
    return {
        "kind": kind,
        "children": [
            [name, structure_of(child, is_leaf, (*path, name))] for name, child in children
        ],
    }


def leaves(tree: Any, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """The leaves of a tree, in the order of its structure."""
    if is_leaf(tree):
        return [tree]
    if tree is None:
        return []
    _, children = _kind_and_children(tree, ())
    return [leaf for _, child in children for leaf in leaves(child, is_leaf)]


def _kind_and_children(tree: Any, path: tuple[str, ...]) -> tuple[str, list[tuple[str, Any]]]:
    """The kind of a node, and its children by name."""
    if isinstance(tree, Mapping):
        kind = "dict" if type(tree) is not Namespace else "namespace"
        return kind, [(str(name), child) for name, child in tree.items()]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return f"class {type(tree).__name__}", list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, (tuple, list)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return kind, [(str(i), child) for i, child in enumerate(tree)]
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        if all(path and isinstance(path[0], jax.tree_util.GetAttrKey) for path, _ in children):
            # JAX knows which fields are data. The others are a part of its structure.
            data = {path[0].name for path, _ in children}
            names = [name for name in names if name in data]
        return f"class {type(tree).__name__}", [(name, getattr(tree, name)) for name in names]
    if len(children) == 1 and children[0][1] is tree:
        where = f"{'/'.join(path)!r} is " if path else ""
        raise StorageError(
            f"{where}{tree!r}, of type {type(tree).__name__}, which is neither an array nor a "
            "pytree of arrays. Leave it out, or convert it."
        )
    named = [(jax.tree_util.keystr(p, simple=True, separator="."), x) for p, x in children]
    return f"class {type(tree).__name__}", named


def rebuild(
    node: Json, value: Callable[[str], Any], classes: Mapping[str, Any], depth: int = 0
) -> Any:
    """A tree with this structure; `value` returns the value of a leaf, given its name."""
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        raise StorageError("The structure that is stored in the file is not valid.")
    if "leaf" in node:
        return value(str(node["leaf"]))
    kind, children = node.get("kind"), node.get("children", [])
    if kind == "none":
        return None
    named = {str(name): rebuild(child, value, classes, depth + 1) for name, child in children}
    if kind == "dict":
        return named
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(named.values())
    cls = classes.get(str(kind).removeprefix("class "))
    if cls is None:
        return Namespace(named)
    try:
        return cls(**named)
    except Exception as error:
        raise LogTypeError(
            f"{cls!r}, which `classes` has for {kind!r}, does not take {', '.join(named)}: {error}"
        ) from error
