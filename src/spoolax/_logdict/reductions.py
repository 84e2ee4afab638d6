"""Reductions that fold one entry after the other, in constant memory.

A reduction is three functions: what to start from, how to take in one more value, and what to
make of it at the end. To add one, add a line to `REDUCTIONS`. The state of a reduction of values
in lanes has the lanes in front; a lane that did not log keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import LogTypeError, LogValueError

How = str | Callable[[Any, Any], Any]


class Reduction(NamedTuple):
    """A fold over single arrays. `count` is how many values have been taken in before."""

    start: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], Any]
    finish: Callable[[Any, Any, Any], Any]


class Folded(NamedTuple):
    """A reduction under way: how many values it has seen (per lane), and their fold."""

    count: Any
    state: Any


def reduction(how: How) -> Reduction:
    """Look up a reduction by its name, or make one of a function of two values."""
    if isinstance(how, str) and how in REDUCTIONS:
        return REDUCTIONS[how]
    if callable(how):
        return Reduction(_zeros, lambda state, x, count: how(state, x).astype(x.dtype), _as_is)
    raise LogValueError(
        f"`reduce={how!r}` is not known. Use one of {', '.join(map(repr, REDUCTIONS))}, "
        "or a function of two values that folds them into one."
    )


def check_function(function: Callable[[Any, Any], Any], value: Any, key: str) -> None:
    """Refuse a function that does not fold two values of a key into one of their type."""
    for x in jax.tree.leaves(value):
        try:
            out = jax.eval_shape(function, x, x)
            problem = None if out.shape == x.shape else f"makes {out.dtype}{out.shape} of them"
        except Exception as error:
            problem = f"fails with {type(error).__name__}"
        if problem:
            name = getattr(function, "__name__", repr(function))
            raise LogTypeError(
                f"`reduce={name}` cannot fold the entries of {key!r}: a function given there takes "
                f"two of them, such as the fold so far and the next entry, and returns one; given "
                f"two of {x.dtype}{x.shape}, it {problem}. Usual reductions go by name: "
                f"{', '.join(map(repr, REDUCTIONS))}."
            )


def start(how: How, value: Any, lanes: tuple[int, ...]) -> Folded:
    """Begin to fold values of the type of `value` (an array or a shape)."""
    return Folded(jnp.zeros(lanes, jnp.int32), reduction(how).start(value))


def push(how: How, folded: Folded, value: Any, mask: Any) -> Folded:
    """Take in one more value, in the lanes where `mask` is true (everywhere, if it is None)."""
    count = folded.count
    first = _widen(count == 0, value)
    stepped = reduction(how).step(folded.state, value, _widen(count, value))
    if callable(how):
        stepped = jnp.where(first, value, stepped)
    if mask is None:
        return Folded(count + 1, stepped)
    kept = jax.tree.map(
        lambda new, old: jnp.where(_widen(mask, new), new, old), stepped, folded.state
    )
    return Folded(count + mask.astype(count.dtype), kept)


def restart(how: How, folded: Folded, value: Any) -> Folded:
    """Begin anew where nothing has been counted, whatever was folded before that.

    So a window is emptied by setting its counts to zero, which costs next to nothing.
    """
    fresh = _widen(folded.count == 0, value)
    start = reduction(how).start(value)
    state = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), start, folded.state)
    return Folded(folded.count, state)


def finish(how: How, folded: Folded, value: Any) -> Any:
    """Return the reduced value, of the dtype that jax.numpy's reduction would give it."""
    return reduction(how).finish(folded.state, _widen(folded.count, value), value)


def over_rows(how: How, rows: Any, mask: Any, lanes: tuple[int, ...]) -> Any:
    """Fold the rows of an array, those where `mask` is true."""
    row = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)

    def step(folded: Folded, now: Any) -> tuple[Folded, None]:
        return push(how, folded, *now), None

    folded, _ = jax.lax.scan(step, start(how, row, lanes), (rows, mask))
    return finish(how, folded, row)


def _widen(x: Any, value: Any) -> Any:
    return jnp.reshape(x, jnp.shape(x) + (1,) * (len(value.shape) - jnp.ndim(x)))


def _accumulator(dtype: Any) -> Any:
    """Sums in half precision would lose too much."""
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return jnp.float32
    return dtype


def _summed(value: Any) -> Any:
    return jax.eval_shape(lambda x: jnp.sum(x, 0), _row(value)).dtype


def _averaged(value: Any) -> Any:
    return jax.eval_shape(lambda x: jnp.mean(x, 0), _row(value)).dtype


def _row(value: Any) -> Any:
    return jax.ShapeDtypeStruct((1, *value.shape), value.dtype)


def _zeros(value: Any, dtype: Any = None) -> Any:
    return jnp.zeros(value.shape, dtype or value.dtype)


def _as_is(state: Any, count: Any, value: Any) -> Any:
    del count, value
    return state


def _sum_start(value: Any) -> Any:
    total = _zeros(value, _accumulator(_summed(value)))
    return total, total


def _sum_step(state: Any, x: Any, count: Any) -> Any:
    # Kahan's summation: the second number is what rounding lost so far.
    del count
    total, lost = state
    addend = x.astype(total.dtype) - lost
    new = total + addend
    lost = (new - total) - addend
    if jnp.issubdtype(total.dtype, jnp.inexact):
        lost = jnp.where(jnp.isfinite(new), lost, 0)  # An infinite sum stays infinite.
    return new, lost


def _mean_start(value: Any) -> Any:
    total = _zeros(value, _accumulator(_averaged(value)))
    return total, total


def _mean_finish(state: Any, count: Any, value: Any) -> Any:
    total, _ = state
    # The mean of nothing is zero, since a NaN would look like one of the program's.
    return (total / jnp.maximum(count, 1).astype(total.real.dtype)).astype(_averaged(value))


def _std_start(value: Any) -> Any:
    mean = _zeros(value, _accumulator(_averaged(value)))
    return mean, jnp.zeros_like(mean.real)


def _std_step(state: Any, x: Any, count: Any) -> Any:
    # Welford's recurrence.
    mean, squares = state
    x = x.astype(mean.dtype)
    off = x - mean
    mean = mean + off / (count + 1).astype(squares.dtype)
    return mean, squares + (off * jnp.conj(x - mean)).real


def _std_finish(state: Any, count: Any, value: Any) -> Any:
    _, squares = state
    dtype = jnp.zeros((), _averaged(value)).real.dtype
    return jnp.sqrt(squares / jnp.maximum(count, 1).astype(squares.dtype)).astype(dtype)


def _extreme(pick: Callable[[Any, Any], Any]) -> Reduction:
    def step(state: Any, x: Any, count: Any) -> Any:
        return jnp.where(count == 0, x, pick(state, x))

    return Reduction(_zeros, step, _as_is)


REDUCTIONS: dict[str, Reduction] = {
    "mean": Reduction(_mean_start, _sum_step, _mean_finish),
    "sum": Reduction(
        _sum_start, _sum_step, lambda state, count, value: state[0].astype(_summed(value))
    ),
    "min": _extreme(jnp.minimum),
    "max": _extreme(jnp.maximum),
    "std": Reduction(_std_start, _std_step, _std_finish),
    "first": _extreme(lambda state, x: state),
    "last": _extreme(lambda state, x: x),
}
