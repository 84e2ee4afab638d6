"""Whether a model looks at each point by itself, so that data can be padded and cut into blocks.

Each value in the model's jaxpr is followed: it is *along* the data if its last axis is theirs, and
each of its elements depends on one point only. Operations that keep that are known by their names;
with any other, the model is tried out instead, on some of the data and on fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _jax_compat as compat

SOME = 32  # Points to try it out on.
# fmt: off
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p",
    "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "igamma", "igammac", "integer_pow", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or",
    "polygamma", "pow", "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n",
    "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
))
# fmt: on
CALLS = frozenset(("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"))
REDUCTIONS = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax")
)


def is_pointwise(model: Callable[[Any, Any], Any], x: Any, p: Any) -> bool:
    """Whether a model gives the same for points as for these among others."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, p.dtype), x)
    closed = jax.make_jaxpr(model)(shapes, p)
    leaves = len(jax.tree.leaves(x))
    given = [i < leaves for i in range(len(closed.jaxpr.invars))]
    try:
        return bool(_followed(closed.jaxpr, given)[0])
    except _UnknownError:
        return _tried(model, x, p)


class _UnknownError(Exception):
    """An operation of which is not known whether it keeps points apart."""


def _followed(jaxpr: Any, given: Sequence[bool]) -> list[bool]:
    """Which outputs are along the data, for inputs of which some are."""
    along = dict(zip(jaxpr.invars, given, strict=True))

    def is_along(atom: Any) -> bool:
        return not hasattr(atom, "val") and along.get(atom, False)

    for eqn in jaxpr.eqns:
        ins = [is_along(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            outs = _followed(compat.open_jaxpr(next(compat.subjaxprs(eqn)))[0], ins)
        elif eqn.primitive.name == "broadcast_in_dim":
            outs = [_broadcast(eqn, ins[0])]
        elif not any(ins):
            outs = [False] * len(eqn.outvars)
        elif _keeps(eqn, ins):
            outs = [True] * len(eqn.outvars)
        else:
            raise _UnknownError
        along.update(zip(eqn.outvars, outs, strict=True))
    return [is_along(atom) or not atom.aval.shape for atom in jaxpr.outvars]


def _keeps(eqn: Any, ins: Sequence[bool]) -> bool:
    """Whether an operation on what is along the data gives something that is, too."""
    name, params = eqn.primitive.name, eqn.params
    shape = eqn.invars[0].aval.shape
    last = len(shape) - 1
    if name in ELEMENTWISE:
        pairs = zip(eqn.invars, ins, strict=True)
        return all(one or not atom.aval.shape for atom, one in pairs)
    if name == "slice":
        whole = params["start_indices"][last] == 0 and params["limit_indices"][last] == shape[last]
        return whole and (params["strides"] is None or params["strides"][last] == 1)
    if name == "squeeze":
        return last not in params["dimensions"]
    if name in REDUCTIONS:
        return last not in params["axes"]
    if name == "concatenate":
        return params["dimension"] != last and all(ins)
    return False


def _broadcast(eqn: Any, along: bool) -> bool:
    dims, shape = eqn.params["broadcast_dimensions"], eqn.outvars[0].aval.shape
    if along:
        if not dims or dims[-1] != len(shape) - 1:
            raise _UnknownError
        return True
    # What is the same for all points is along them as well.
    return bool(shape) and (len(shape) - 1 not in dims or eqn.invars[0].aval.shape[-1] == 1)


def _tried(model: Callable[[Any, Any], Any], x: Any, p: Any) -> bool:
    some = jax.tree.map(lambda a: np.asarray(a[..., :SOME], p.dtype), x)
    half = jax.tree.map(lambda a: a[..., : (a.shape[-1] + 1) // 2], some)

    def both(some: Any, half: Any, p: Any) -> tuple[Any, Any]:
        return model(some, p), model(half, p)

    try:
        one, other = map(np.asarray, jax.jit(both)(some, half, p))
    except Exception:
        return False
    return bool(np.allclose(one[: len(other)], other, rtol=1e-9, atol=0, equal_nan=True))
