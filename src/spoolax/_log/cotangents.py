"""`log_grad`: log the cotangent of a value in the backward pass.

It is the identity, as a primitive: it is linear, so JAX transposes it in the backward pass, and
its transpose logs what it gets. Nothing is bound unless somebody listens.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .._jax import rule_tables
from .._jax.primitives import Primitive
from ..errors import LogTypeError
from .arguments import check_step, checked_data, checked_tags
from .entry import Entry, Meta
from .primitive import emit, listening

T = TypeVar("T")

mark_p = Primitive("log_grad")
mark_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class _Note:
    """What will be logged about a number of arrays."""

    name: str
    tree: Any
    steps: tuple[str, ...]
    meta: Meta
    masked: bool = False  # After the steps comes a flag: whether, and in which lanes, it happens.


def log_grad(
    name: str, x: T, *, tags: str | Iterable[str] = (), explicit: bool = False, **steps: Any
) -> T:
    """Return `x` unchanged, and log its cotangent in the backward pass.

    `spool` or `tap` has to be outside `grad`: `tap(jax.grad(f))`. In loops, the entries come in the
    order of the backward pass, the last iteration first.

    Args:
        name: The key to log the cotangent under.
        x: An array of floating-point or complex numbers, or a pytree of them.
        tags: As in `log`.
        explicit: As in `log`.
        **steps: Named steps, as in `log`, with their values in the forward pass.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     x = spoolax.log_grad("dx", x)
        ...     return x**3
        >>> slope, logs = spoolax.spool(jax.grad(f))(2.0)
        >>> float(slope), float(logs["dx"])
        (12.0, 12.0)
    """
    if not isinstance(name, str):
        raise LogTypeError(
            "`log_grad` takes a name, and then the value: `x = spoolax.log_grad('dx', x)`."
        )
    checked_data({name: x}, "")
    for step, value in steps.items():
        check_step(step, value)
    given = checked_tags(tags)
    leaves, tree = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise LogTypeError(
                f"`log_grad({name!r}, ...)` got an array of {leaf.dtype}, which has no derivative. "
                "Give it floating-point numbers only."
            )
    if not listening.value or not leaves:
        return x
    frame = sys._getframe(1)
    code = frame.f_code
    call = (code, frame.f_lasti)
    meta = Meta(given, bool(explicit), site=f"{code.co_filename}:{frame.f_lineno}", call=call)
    note = _Note(name, tree, tuple(steps), meta)
    rule_tables.register_jet(mark_p, _jet)
    outs = mark_p.bind(*leaves, *map(jnp.asarray, steps.values()), note=note)
    return jax.tree.unflatten(tree, outs)  # type: ignore[no-any-return]


def only_if(flag: Any, values: Sequence[Any], note: _Note) -> list[Any]:
    """Mark values whose cotangents are to be logged only if a flag is true."""
    if note.masked:
        *values, before = values
        flag = flag & before
    return mark_p.bind(*values, flag, note=dataclasses.replace(note, masked=True))  # type: ignore[no-any-return]


def _identity(*values: Any, note: _Note) -> list[Any]:
    return list(values[: note.tree.num_leaves])


def _batch(axis_data: Any, values: Sequence[Any], axes: Sequence[Any], *, note: _Note) -> Any:
    # As for `log`: a batch is one entry, with one more axis of lanes in front.
    size = axis_data.size
    front = [
        jnp.broadcast_to(x, (size, *jnp.shape(x))) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(values, axes, strict=True)
    ]
    meta = dataclasses.replace(note.meta, lanes=(size, *note.meta.lanes))
    outs = mark_p.bind(*front, note=dataclasses.replace(note, meta=meta))
    return outs, [0] * len(outs)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, note: _Note) -> Any:
    count = note.tree.num_leaves
    outs, steps = list(primals[:count]), primals[count:]
    if all(map(rule_tables.is_zero, tangents[:count])):
        return outs, list(tangents[:count])
    given = [rule_tables.instantiate(t) for t in tangents[:count]]
    return outs, mark_p.bind(*given, *steps, note=note)


def _jet(primals: Sequence[Any], series: Sequence[Any], *, note: _Note) -> Any:
    return mark_p.bind(*primals, note=note), list(series[: note.tree.num_leaves])


def _transpose(cotangents: Sequence[Any], *values: Any, note: _Note) -> list[Any]:
    count = note.tree.num_leaves
    given = [rule_tables.instantiate(ct) for ct in cotangents]
    if listening.value:
        steps = dict(zip(note.steps, values[count:], strict=False))
        value = jax.tree.unflatten(note.tree, given)
        mask = values[-1] if note.masked else None
        emit((Entry({note.name: value}, steps, mask, note.meta),))
    return [*given, *[None] * (len(values) - count)]


mark_p.def_impl(_identity)
mark_p.def_abstract_eval(_identity)
rule_tables.register(
    mark_p, batch=_batch, jvp=_jvp, transpose=_transpose, lower=rule_tables.lowered(_identity)
)
