"""The `log` primitive, and what each of JAX's transformations does to it.

It only marks values. Nothing is bound at all unless somebody listens: `spool` and `tap` trace the
user's function in the `listening` context, which is part of every cache key of JAX, and interpret
the marks that they find.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax.primitives import JaxprEqn, Primitive, lower_by_device
from .._jax.rule_tables import register, register_jet
from .._jax.tracing import trace_is_clean
from .._logdict.logdict import LogDict
from .arguments import check_step, checked_data, checked_tags
from .entry import Entry, Listener, Loop, Meta, Node, Nodes, calls, entries
from .unheard import nobody_listens

# True while a function is traced for somebody who listens, and `Around` in blocks that do. False
# while it is only rehearsed: what is traced then will be traced again, and no entry may be left in
# it.
listening = jax.make_user_context(default_value=None)
# The `log` calls of a function whose backward rule is running. Of those, it is a repetition.
repeating = jax.make_user_context(default_value=frozenset())


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
    if listening.value is None:
        nobody_listens(sys._getframe(1))
    elif listening.value and named:
        frame = sys._getframe(1)
        code, line = frame.f_code, frame.f_lineno
        call = (code, frame.f_lasti)
        meta = Meta(tags, bool(explicit), site=f"{code.co_filename}:{line}", call=call)
        entry = Entry(named, steps, None, meta)
        if isinstance(listening.value, Around) and trace_is_clean():
            listening.value.heard(entry)
            return LogDict(named, steps=_by_key(steps, named))
        entry = jax.tree.map(jnp.asarray, entry)
        if repeating.value:
            new = [key for key, call in calls(entry).items() if call not in repeating.value]
            entry = entry.replace(data={key: entry.data[key] for key in new})
        if entry.data:
            emit((entry,))
    return LogDict(named, steps=_by_key(steps, named))


def _by_key(steps: Mapping[str, Any], keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {name: dict.fromkeys(keys, at) for name, at in steps.items()}


class Around(NamedTuple):
    """The listeners of the blocks around some code, the innermost first."""

    listeners: tuple[Listener, ...]

    def heard(self, entry: Entry) -> None:
        """Something was logged outside of programs."""
        nodes: Nodes = (entry,)
        for listener in self.listeners:
            nodes = listener.claimed(nodes)
        for listener in dict.fromkeys(listeners_of(nodes)):
            listener.heard(nodes)


def around_here() -> tuple[Listener, ...]:
    """The listeners of the blocks around this code, if nobody nearer listens."""
    around = listening.value
    return around.listeners if isinstance(around, Around) else ()


def nearer() -> contextlib.AbstractContextManager[Any]:
    """What is logged in this context is for somebody inside of the blocks around it."""
    return listening(True) if isinstance(listening.value, Around) else contextlib.nullcontext()


def emit(nodes: Sequence[Node]) -> None:
    """Bind entries, single or stacked, for the listeners around this code."""
    if nodes and listening.value is not False:
        register_jet(log_p, _jvp)
        nodes = tuple(nodes)
        for listener in around_here():
            nodes = listener.claimed(nodes)
        leaves, tree = jax.tree.flatten(nodes)
        log_p.bind(*leaves, tree=tree)


def logged(eqn: JaxprEqn, values: Sequence[Any] | None = None) -> Nodes:
    """Return the entries that an equation of `log_p` stands for: their types, or these values."""
    if values is None:
        values = [atom.aval for atom in eqn.invars]
    nodes: Nodes = jax.tree.unflatten(eqn.params["tree"], values)
    return nodes


def listeners_of(nodes: Nodes) -> list[Listener]:
    """List the listeners that claimed entries while they were traced."""
    return [one for entry in entries(nodes) for one in entry.meta.listeners]


def _abstract_eval(*avals: Any, tree: Any) -> tuple[list[Any], set[LogEffect]]:
    del avals, tree
    return [], {log_effect}


def _batch(axis_data: Any, values: Sequence[Any], axes: Sequence[Any], *, tree: Any) -> Any:
    # A batch is one entry with one more lane axis. A call that does not depend on the lane
    # is logged once, as in the forward pass under `jacfwd`, which maps over tangents only.
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

    def anywhere(self) -> Any:
        return self.value if self.axis is None else self.value.any(self.axis)


def _batched(node: Node, size: int) -> Node:
    if isinstance(node, Loop):
        body = tuple(_batched(child, size) for child in node.body)
        # Lanes take their steps together: an iteration is one that any of them makes.
        return dataclasses.replace(node, body=body, ran=node.ran and node.ran.anywhere())
    times, lanes = node.meta.times, node.meta.lanes
    outer = 1 if node.meta.devices else 0  # Devices stay outside of lanes.
    place = len(times) + outer

    def lane_there(pair: _Pair) -> Any:
        if pair.axis is not None:
            return jnp.moveaxis(pair.value, pair.axis, place)
        shape = jnp.shape(pair.value)
        widened = jnp.expand_dims(pair.value, place)
        return jnp.broadcast_to(widened, (*shape[:place], size, *shape[place:]))

    meta = dataclasses.replace(node.meta, lanes=(*lanes[:outer], size, *lanes[outer:]))
    return jax.tree.map(lane_there, node).replace(meta=meta)  # type: ignore[no-any-return]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any) -> Any:
    del tangents  # We log what the program computed, not its derivative.
    log_p.bind(*primals, tree=tree)
    return [], []


def _transpose(cotangents: Any, *values: Any, tree: Any) -> Any:
    # The transpose of a linear function never computes the values that the function would log.
    del cotangents, tree
    return [None] * len(values)


def _run(*values: Any, tree: Any) -> list[Any]:
    """Outside any trace: in Python, or when a loop with a tap in it is differentiated there."""
    nodes = jax.tree.unflatten(tree, values)
    listeners = dict.fromkeys(listeners_of(nodes))
    is_plain = not any(entry.meta.times or entry.meta.lanes for entry in entries(nodes))
    if listeners and is_plain and all(one.listens_to_python for one in listeners):
        for listener in listeners:
            listener.heard(nodes)
    elif listeners:
        with jax.disable_jit(False):
            jax.jit(lambda *values: log_p.bind(*values, tree=tree))(*values)
    return []


def _lower(ctx: Any, *operands: Any, tree: Any) -> Any:
    # Nothing is left of an entry that nobody has claimed. Others are gone by now.
    del ctx, operands, tree
    return []


log_p.def_impl(_run)
log_p.def_effectful_abstract_eval(_abstract_eval)
register(log_p, batch=_batch, jvp=_jvp, transpose=_transpose, lower=_lower)
lower_by_device(log_p)  # A call to the host may take its place.
