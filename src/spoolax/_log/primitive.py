"""The `log` primitive, and what each of JAX's transformations does to it.

It only marks values. Nothing is bound at all unless somebody listens: `spool` and `tap` trace the
user's function in the `listening` context, which is part of every cache key of JAX, and interpret
the marks that they find.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.primitives import Primitive
from .._jax.rule_tables import register
from .._logdict.logdict import LogDict
from ..errors import LogTypeError, LogValueError
from .entry import Entry, Loop, Meta, Node, Nodes

listening = jax.make_user_context(default_value=None)


class LogEffect(jax.debug.DebugEffect):  # type: ignore[misc]
    """Keeps `log` alive: an equation without results would be dropped."""

    __str__ = lambda self: "Log"  # noqa: E731


log_effect = LogEffect()
log_p = Primitive("log")
log_p.multiple_results = True  # Zero results, in fact.


def log(
    data: Mapping[str, Any],
    *,
    tags: str | Iterable[str] = (),
    prefix: str = "",
    explicit: bool = False,
    **steps: Any,
) -> LogDict:
    """Log a dictionary of arrays, numbers or pytrees from anywhere in JAX code.

    Unless a `spool` or `tap` listens, this leaves nothing in the compiled program.

    Args:
        data: The values to log, by key.
        tags: Labels by which `spool` and `tap` can select.
        prefix: A prefix for every key.
        explicit: Log only if `argnames` or `tags` of a `spool` or `tap` asks for it.
        **steps: Named steps, such as `step=i` or `epoch=e`.

    Returns:
        The logged values and steps, as a `LogDict`.

    Examples:
        >>> import spoolax
        >>> def f(x):
        ...     spoolax.log({"x": x}, step=3)
        ...     return 2 * x
        >>> y, logs = spoolax.spool(f)(1.0)
        >>> float(logs["x"]), int(logs.step["x"])
        (1.0, 3)
    """
    named = checked_data(data, prefix)
    tags = checked_tags(tags)
    for name, value in steps.items():
        check_step(name, value)
    if listening.value is not None and jax.tree.leaves(named):
        frame = sys._getframe(1)
        meta = Meta(tags, bool(explicit), site=f"{frame.f_code.co_filename}:{frame.f_lineno}")
        given = {key: value for key, value in named.items() if jax.tree.leaves(value)}
        emit((jax.tree.map(jnp.asarray, Entry(given, steps, None, meta)),))
    return LogDict(named, steps={name: dict.fromkeys(named, at) for name, at in steps.items()})


def emit(nodes: Sequence[Node]) -> None:
    """Bind entries, single ones or stacked, for whoever listens outside."""
    if nodes:
        leaves, tree = jax.tree.flatten(tuple(nodes))
        log_p.bind(*leaves, tree=tree)


def logged(eqn_or_params: Any, values: Sequence[Any]) -> Nodes:
    """Return the entries that an equation of `log_p` stands for."""
    nodes: Nodes = jax.tree.unflatten(eqn_or_params["tree"], values)
    return nodes


def checked_data(data: Any, prefix: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise LogTypeError(
            f"`spoolax.log` takes a dictionary of what to log, but got {_describe(data)}. "
            'Give it a name: `spoolax.log({"name": value})`.'
        )
    if not isinstance(prefix, str):
        raise LogTypeError(f"The `prefix` of a log must be a string, but got {_describe(prefix)}.")
    for key, value in data.items():
        if not isinstance(key, str):
            raise LogTypeError(
                f"The keys of a log must be strings, but one of them is {_describe(key)}. "
                f'Write `spoolax.log({{"{key}": ...}})`.'
            )
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda x: x is None):
            if not _is_loggable(leaf):
                where = repr(key) + jax.tree_util.keystr(path)
                raise LogTypeError(
                    f"Cannot log {where}: it is {_describe(leaf)}, and only arrays, numbers and "
                    "pytrees of them can leave a JAX program. Leave it out, or log a number that "
                    "stands for it."
                )
    return {prefix + key: value for key, value in data.items()}


def checked_tags(tags: Any) -> tuple[str, ...]:
    if not isinstance(tags, (str, Iterable)):
        raise LogTypeError(f"The `tags` of a log must be strings, not {_describe(tags)}.")
    given: tuple[Any, ...] = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in given:
        if not isinstance(tag, str):
            raise LogTypeError(f"The `tags` of a log must be strings, but one is {_describe(tag)}.")
    return given


def check_step(name: str, value: Any) -> None:
    if name in _RESERVED:
        raise LogValueError(
            f"`{name}` cannot be the name of a step, because `logs.{name}` means something else. "
            f"Choose another name, such as `{name}_step=`."
        )
    meant = difflib.get_close_matches(name, ("tags", "prefix", "explicit"), n=1, cutoff=0.8)
    if meant:
        raise LogValueError(
            f"`{name}=` would be a named step of the log. Did you mean `{meant[0]}=`? If not, "
            "choose another name for the step."
        )
    if not _is_loggable(value) or np.ndim(value) != 0:
        raise LogTypeError(
            f"The step `{name}` must be a number, but it is {_describe(value)}. "
            f'To log a value, put it into the dictionary: `spoolax.log({{"{name}": ...}})`.'
        )


_RESERVED = frozenset(dir(LogDict))


def _is_loggable(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, bool, int, float, complex)):
        return True
    if isinstance(leaf, (np.ndarray, np.generic)):
        # Also the extended floats of ml_dtypes, whose kind is "V" like that of a structured array.
        return leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, np.number)
    return False


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) < 40 else text[:37] + '...'} (of type {type(value).__name__})"


def _abstract_eval(*avals: Any, tree: Any) -> tuple[list[Any], set[LogEffect]]:
    del avals, tree
    return [], {log_effect}


def _batch(axis_data: Any, values: Sequence[Any], axes: Sequence[Any], *, tree: Any) -> Any:
    # A batch is one entry with one more lane axis. A call that does not depend on the lane at all
    # is made once: so does the forward pass under `jacfwd`, which maps over tangents only.
    if all(axis is None for axis in axes):
        log_p.bind(*values, tree=tree)
        return [], []
    # A pair is a leaf here: a value and the axis along which it is mapped.
    pairs = [_Pair(value, axis) for value, axis in zip(values, axes, strict=True)]
    nodes = jax.tree.unflatten(tree, pairs)
    emit(tuple(_batched(node, axis_data.size) for node in nodes))
    return [], []


class _Pair:
    def __init__(self, value: Any, axis: int | None) -> None:
        self.value, self.axis = value, axis


def _batched(node: Node, size: int) -> Node:
    if isinstance(node, Loop):
        return Loop(tuple(_batched(child, size) for child in node.body), node.label)
    front = len(node.meta.times)

    def lane_first(pair: _Pair) -> Any:
        if pair.axis is not None:
            return jnp.moveaxis(pair.value, pair.axis, front)
        shape = jnp.shape(pair.value)
        widened = jnp.expand_dims(pair.value, front)
        return jnp.broadcast_to(widened, (*shape[:front], size, *shape[front:]))

    meta = dataclasses.replace(node.meta, lanes=(size, *node.meta.lanes))
    return jax.tree.map(lane_first, node).replace(meta=meta)  # type: ignore[no-any-return]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any) -> Any:
    del tangents  # We log what the program computed, not its derivative.
    log_p.bind(*primals, tree=tree)
    return [], []


def _transpose(cotangents: Any, *values: Any, tree: Any) -> Any:
    # The transpose of a linear function never computes the values that the function would log.
    del cotangents, tree
    return [None] * len(values)


def _impl(*values: Any, tree: Any) -> list[Any]:
    del values, tree
    return []


log_p.def_impl(_impl)
log_p.def_effectful_abstract_eval(_abstract_eval)
register(log_p, batch=_batch, jvp=_jvp, transpose=_transpose)
