"""Arguments that a function changes in place.

A function is traced with copies of its arguments, so changes would be made to the copies. Objects
of flax's nnx are taken apart and put together again by nnx itself, as `nnx.jit` does it, which
changes the caller's own. Other objects are left alone, as `jax.jit` does, but not in silence.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .._jax import tracing
from .._warn import warn
from ..errors import ArgumentChangedWarning
from .callables import name_of

CONTEXT = "spoolax"  # By this name nnx finds the objects of the call that is being made.


def is_object(value: Any) -> bool:
    """Say whether something is a module, a variable, ... of nnx."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def has_objects(tree: Any) -> bool:
    """Say whether there are objects of nnx anywhere in a pytree."""
    return "flax.nnx" in sys.modules and any(
        map(is_object, jax.tree.leaves(tree, is_leaf=is_object))
    )


def unbound(f: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """Return the function inside a method, a callable object or a partial, and what is bound."""
    if isinstance(f, functools.partial):
        function, (args, kwargs) = unbound(f.func)
        return function, ((*args, *f.args), {**kwargs, **f.keywords})
    if is_object(getattr(f, "__self__", None)):
        return f.__func__, ((f.__self__,), {})  # type: ignore[attr-defined]
    if is_object(f):
        return type(f).__call__, ((f,), {})
    return f, ((), {})


class Call:
    """A call with objects that the function may change. It stands in for a program."""

    def __init__(self, find: Callable[[Any], Any], arguments: Any) -> None:
        self._find, self._arguments = find, arguments

    @property
    def traced(self) -> bool:
        return not tracing.trace_is_clean()

    def call(self, leaves: Any, *how: Any) -> Any:
        del leaves  # They are in the objects.
        with sys.modules["flax.nnx"].update_context(CONTEXT):
            program, leaves = self._find(_taken_apart(self._arguments, CONTEXT))
            return program.call(leaves, *how)


def put_together(arguments: Any, context: str | None = CONTEXT, inner: bool | None = True) -> Any:
    """Make the objects that a function is traced with."""

    def merge(context: Any, path: Any, prefix: Any, leaf: Any) -> Any:
        del path, prefix
        return context.unflatten(leaf.graphdef, *leaf.states)

    nnx = sys.modules["flax.nnx"]
    return nnx.from_tree(arguments, ctxtag=context, is_inner=inner, merge_fn=merge)


def _taken_apart(tree: Any, context: str | None) -> Any:
    nnx = sys.modules["flax.nnx"]

    def split(context: Any, path: Any, prefix: Any, leaf: Any) -> Any:
        del path, prefix
        return nnx.NodeStates.from_split(*context.flatten(leaf, with_paths=False))

    return nnx.to_tree(tree, ctxtag=context, split_fn=split)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Changed:
    """What a function returned, and its arguments, with the objects in them taken apart."""

    everything: Any
    context: str | None = dataclasses.field(metadata={"static": True})

    @classmethod
    def by(cls, arguments: Any, out: Any, in_call: bool) -> Changed:
        """Take apart what a function was given, if anything, and what it returned."""
        context = CONTEXT if in_call else None
        objects = [one for one in jax.tree.leaves(arguments, is_leaf=is_object) if is_object(one)]
        return cls(_taken_apart((objects, out), context), context)

    def apply(self) -> Any:
        """Change the caller's objects, and return what the function returned."""
        inner = False if self.context else None
        return put_together(self.everything, self.context, inner)[1]


class Watched:
    """Notices which arguments a function changes in place."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._name = name_of(f)
        self._before = [
            (name, node, _contents(node))
            for name, argument in _named(f, args, kwargs)
            for node in _containers(argument)
        ]

    def warn_of_changes(self, out: Any) -> None:
        """Warn of changes that the caller will not see, neither in the argument nor in `out`."""
        returned = set(map(id, _containers(out)))
        changed = {
            name: None
            for name, node, contents in self._before
            if id(node) not in returned and not _same(contents, _contents(node))
        }
        if changed:
            names = " and ".join(f"`{name}`" for name in changed)
            warn(
                f"`{self._name}` changes its argument {names} in place, but only in a copy: "
                "spoolax traces a function with copies of its arguments, as `jax.jit` does, so "
                "yours stays as it was. Return what has changed instead. If this is what you "
                f"want, wrap `jax.jit({self._name})`, which means the same and does not warn.",
                ArgumentChangedWarning,
            )


def _named(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    try:
        yield from inspect.signature(f).bind(*args, **kwargs).arguments.items()
    except (TypeError, ValueError):  # It is not known, or does not fit, which the call will tell.
        yield from ((f"number {i}", argument) for i, argument in enumerate(args))
        yield from kwargs.items()


def _containers(tree: Any) -> list[Any]:
    """All containers in a pytree, itself included. What is inside of objects is not looked at."""
    found: list[Any] = []

    def visit(node: Any) -> bool:
        if is_object(node) or jax.tree_util.all_leaves((node,)):
            return True
        if _same(_contents(node), _contents(node)):  # Or else its parts are made when asked for.
            found.append(node)
        return False

    jax.tree.flatten(tree, is_leaf=visit)
    return found


def _contents(node: Any) -> tuple[list[Any], Any]:
    parts, structure = jax.tree.flatten(node, is_leaf=lambda part: part is not node)
    return parts, structure


def _same(one: tuple[list[Any], Any], other: tuple[list[Any], Any]) -> bool:
    return one[1] == other[1] and all(map(lambda a, b: a is b, one[0], other[0]))
