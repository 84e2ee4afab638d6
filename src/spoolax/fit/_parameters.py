"""Parameters: one by one, as SciPy has them, or in any structure of the user's."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LogTypeError, LogValueError


class Structure(NamedTuple):
    """How the user's parameters are made of one array. It can be hashed."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    made: Any  # A dataclass that JAX does not know, or None.

    def unflatten(self, p: Any) -> Any:
        """The user's parameters, of an array or of as many numbers."""
        leaves, begin = [], 0
        for shape in self.shapes:
            end = begin + int(np.prod(shape))
            part = p[begin:end]
            if not shape:
                leaves.append(part[0])
            else:
                leaves.append((jnp.stack(part) if isinstance(part, list) else part).reshape(shape))
            begin = end
        tree = jax.tree.unflatten(self.tree, leaves)
        return tree if self.made is None else self.made(**dict(tree))

    def flatten(self, tree: Any, name: str) -> Any:
        """Numbers in the same arrangement, as one array."""
        if self.made is not None and isinstance(tree, self.made):
            tree = _fields(tree)
        if jax.tree.structure(tree) != self.tree:
            raise LogValueError(f"`{name}` are numbers, lists of them, or arranged as `p0` is.")
        return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


class Parameters(NamedTuple):
    """Their names, where to begin (None if that is not known), and how they are arranged."""

    names: tuple[str, ...]
    start: Any
    structure: Structure | None  # None: one by one.


def parameters_of(f: Callable[..., Any] | None, p0: Any, dtype: Any) -> Parameters:
    """The parameters of a model, or of any function for None."""
    if p0 is None and not callable(f):
        raise LogTypeError(f"The model is a function of x and of parameters, not {f!r}.")
    if p0 is None and f is not None:
        return Parameters(tuple(parameter_names(f)), None, None)
    if isinstance(p0, str):
        raise LogTypeError(f"`p0` are numbers to begin with, not {p0!r}.")
    one_by_one = (list, tuple, np.ndarray, jax.Array, float, int, np.number)
    if isinstance(p0, one_by_one) and not hasattr(p0, "_fields"):
        return _one_by_one(f, p0, dtype)
    tree, made = p0, None
    if dataclasses.is_dataclass(p0) and _is_leaf(p0):  # Unknown to JAX.
        tree, made = _fields(p0), type(p0)
    if _is_leaf(tree) and hasattr(p0, "__array__"):  # Such as a pandas Series.
        return _one_by_one(f, p0, dtype)
    names, shapes = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        shapes.append(np.shape(leaf))
        names += [name + "".join(f"/{i}" for i in index) for index in np.ndindex(*shapes[-1])]
    try:
        flat = [np.ravel(np.asarray(leaf, dtype)) for leaf in jax.tree.leaves(tree)]
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`p0` must be made of numbers: {error}") from error
    if f is not None:
        see_count(f, 1, "a pytree `p0` is one argument")
    if not names:
        raise LogValueError("`p0` is empty: there is nothing to fit.")
    structure = Structure(jax.tree.structure(tree), tuple(shapes), made)
    return Parameters(tuple(names), np.concatenate(flat), structure)


def _fields(value: Any) -> Any:
    """The fields of a dataclass, in their order."""
    fields = dataclasses.fields(value)
    return collections.OrderedDict((one.name, getattr(value, one.name)) for one in fields)


def _is_leaf(tree: Any) -> bool:
    return bool(jax.tree_util.treedef_is_leaf(jax.tree.structure(tree)))


def _one_by_one(f: Callable[..., Any] | None, p0: Any, dtype: Any) -> Parameters:
    try:
        start = np.atleast_1d(np.asarray(p0, dtype))
    except (TypeError, ValueError) as error:
        raise LogTypeError(f"`p0` must be made of numbers: {error}") from error
    if start.ndim > 1 or not start.size:
        raise LogValueError(f"`p0` has the shape {start.shape}; it is a list of numbers.")
    names = []
    if f is not None:
        see_count(f, len(start), f"`p0` has {len(start)}")
        with contextlib.suppress(LogValueError):
            names = parameter_names(f)[: len(start)]
    if len(names) != len(start):
        names = [f"p{i}" for i in range(len(start))]
    return Parameters(tuple(names), start, None)


def parameter_names(model: Callable[..., Any]) -> list[str]:
    """The names of the parameters, which come after x."""
    names, _, several = _signature(model)
    if several:
        raise LogValueError(
            "The model takes any number of parameters (`*args`), so `p0` must say how many."
        )
    if not names:
        raise LogValueError("The model is a function of x and of parameters: f(x, a, b, ...).")
    return names


def see_count(model: Callable[..., Any], count: int, what: str) -> None:
    """See that a model takes as many parameters as there are, if that is known."""
    try:
        names, required, several = _signature(model)
    except LogValueError:
        return
    if count < required or (count > len(names) and not several):
        raise LogTypeError(
            f"The model takes {len(names)} parameters after x ({', '.join(names)}), but {what}. "
            "Several parameters in one argument, f(x, p), are given as `p0={'p': [...]}` or any "
            "other pytree."
        )


def _signature(model: Callable[..., Any]) -> tuple[list[str], int, bool]:
    """The names after x, how many of them are needed, and whether any number is taken."""
    if type(model) is types.FunctionType and not hasattr(model, "__wrapped__"):
        code = model.__code__  # As `inspect` does, which takes longer than many a fit.
        names = list(code.co_varnames[: code.co_argcount])
        optional, several = len(model.__defaults__ or ()), bool(code.co_flags & 4)
    else:
        try:
            given = list(inspect.signature(model).parameters.values())
        except (TypeError, ValueError) as error:
            raise LogValueError("The signature of the model is not known: give `p0`.") from error
        some = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names, optional = [p.name for p in some], sum(p.default is not p.empty for p in some)
        several = any(p.kind is p.VAR_POSITIONAL for p in given)
    return names[1:], max(0, len(names) - optional - 1), several
