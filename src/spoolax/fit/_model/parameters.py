"""Parameters: one by one as in SciPy, or in any pytree or dataclass of the user's."""

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

from ...errors import LogTypeError, LogValueError


class Structure(NamedTuple):
    """How the user's parameters are made from one array. It can be hashed."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dataclass: Any  # One that is not registered with JAX, or None.

    def unflatten(self, p: Any) -> Any:
        """Return the user's parameters, from an array or from a list of numbers."""
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
        return tree if self.dataclass is None else self.dataclass(**dict(tree))

    def flatten(self, tree: Any, name: str) -> Any:
        """Return a tree of numbers with the same structure as one array."""
        if self.dataclass is not None and isinstance(tree, self.dataclass):
            tree = _fields(tree)
        if jax.tree.structure(tree) != self.tree:
            raise LogValueError(
                f"`{name}` must be numbers, lists of them, or have the structure of `p0`."
            )
        return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


class Parameters(NamedTuple):
    """The names of the parameters, their start (None if it was not given), and their structure."""

    names: tuple[str, ...]
    start: Any
    structure: Structure | None  # None: one by one.


def parameters_of(f: Callable[..., Any] | None, p0: Any, dtype: Any) -> Parameters:
    """Return the parameters of a model, or of residuals if that is None."""
    if p0 is None and not callable(f):
        raise LogTypeError(f"The model must be a function of x and of parameters, not {f!r}.")
    if p0 is None and f is not None:
        return Parameters(tuple(parameter_names(f)), None, None)
    if isinstance(p0, str):
        raise LogTypeError(f"`p0` must be numbers to start from, not {p0!r}.")
    one_by_one = (list, tuple, np.ndarray, jax.Array, float, int, np.number)
    if isinstance(p0, one_by_one) and not hasattr(p0, "_fields"):
        return _one_by_one(f, p0, dtype)
    tree, dataclass = p0, None
    if dataclasses.is_dataclass(p0) and _is_leaf(p0):  # Not registered with JAX.
        tree, dataclass = _fields(p0), type(p0)
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
        check_count(f, 1, "a pytree `p0` is one argument")
    if not names:
        raise LogValueError("`p0` is empty: there is nothing to fit.")
    structure = Structure(jax.tree.structure(tree), tuple(shapes), dataclass)
    return Parameters(tuple(names), np.concatenate(flat), structure)


def _fields(value: Any) -> Any:
    """Return the fields of a dataclass in their order."""
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
        raise LogValueError(f"`p0` has shape {start.shape}, but it must be a list of numbers.")
    names = []
    if f is not None:
        check_count(f, len(start), f"`p0` has {len(start)}")
        with contextlib.suppress(LogValueError):
            names = parameter_names(f)[: len(start)]
    if len(names) != len(start):
        names = [f"p{i}" for i in range(len(start))]
    return Parameters(tuple(names), start, None)


def parameter_names(model: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters: the arguments after x."""
    names, _, several = _signature(model)
    if several:
        raise LogValueError(
            "The model takes any number of parameters (`*args`), so `p0` must say how many."
        )
    if not names:
        raise LogValueError("The model must be a function of x and of parameters: f(x, a, b, ...).")
    return names


def check_count(model: Callable[..., Any], count: int, what: str) -> None:
    """Check that a model takes as many parameters as there are, if that is known."""
    try:
        names, required, several = _signature(model)
    except LogValueError:
        return
    if count < required or (count > len(names) and not several):
        raise LogTypeError(
            f"The model takes {len(names)} parameters after x ({', '.join(names)}), but {what}. "
            "For several parameters in one argument, f(x, p), give `p0={'p': [...]}` or any other "
            "pytree."
        )


def _signature(model: Callable[..., Any]) -> tuple[list[str], int, bool]:
    """Return the names after x, how many of them are required, and whether there are `*args`."""
    if type(model) is types.FunctionType and not hasattr(model, "__wrapped__"):
        code = model.__code__  # `inspect` says the same, but takes longer than many a fit.
        names = list(code.co_varnames[: code.co_argcount])
        optional, several = len(model.__defaults__ or ()), bool(code.co_flags & 4)
    else:
        try:
            given = list(inspect.signature(model).parameters.values())
        except (TypeError, ValueError) as error:
            raise LogValueError("The signature of the model is unknown: give `p0`.") from error
        some = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names, optional = [p.name for p in some], sum(p.default is not p.empty for p in some)
        several = any(p.kind is p.VAR_POSITIONAL for p in given)
    return names[1:], max(0, len(names) - optional - 1), several
