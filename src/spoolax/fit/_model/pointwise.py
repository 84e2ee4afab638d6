"""Whether a model looks at each point by itself, so that data can be padded and cut into blocks.

It has to be proved, or it is not assumed. The model is traced for two lengths of the data, and the
two jaxprs are walked side by side. A value is *along* the data if its last axis is theirs and each
of its elements depends on one point only. Operations that keep it so are listed by name; nothing
else may depend on the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..._jax.anatomy import Scan, programs_in
from ..._jax.primitives import Literal, open_jaxpr

# fmt: off
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p",
    "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "igamma", "igammac", "integer_pow", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or",
    "polygamma", "polynomial", "pow", "regularized_incomplete_beta", "rem", "round", "rsqrt",
    "select_n", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh",
    "xor", "zeta",
))
# fmt: on
CALLS = frozenset(("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"))
REDUCTIONS = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
)


def is_pointwise(model: Callable[[Any, Any], Any], x: Any, p: Any) -> bool:
    """Return whether the value of a model at a point certainly does not depend on other points."""

    def traced(more: int) -> Any:
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((*a.shape[:-1], a.shape[-1] + more), p.dtype), x
        )
        return jax.make_jaxpr(model)(shapes, p)

    one = traced(0)  # If the model cannot be called with these data, the user gets that error.
    along = [i < len(jax.tree.leaves(x)) for i in range(len(one.jaxpr.invars))]
    try:
        other = traced(1)
        if not _equal(one.consts, other.consts):
            return False
        return _along_outputs(one.jaxpr, other.jaxpr, along)[0]
    except Exception:  # The data cannot have another length, or an operation is not listed.
        return False


class _NotProvedError(Exception):
    """An operation might mix points."""


def _along_outputs(jaxpr: Any, other: Any, inputs: Sequence[bool]) -> list[bool]:
    """Return which outputs are along the data, given which inputs are."""
    along = dict(zip(jaxpr.invars, inputs, strict=True))

    def is_along(atom: Any) -> bool:
        return not isinstance(atom, Literal) and along.get(atom, False)

    for eqn, twin in zip(jaxpr.eqns, other.eqns, strict=True):
        ins = [is_along(atom) for atom in eqn.invars]
        name = eqn.primitive.name
        if name != twin.primitive.name or not _equal(_literals(eqn), _literals(twin)):
            raise _NotProvedError
        if name in CALLS:
            inner = [open_jaxpr(programs_in(one)[0]) for one in (eqn, twin)]
            if not _equal(inner[0][1], inner[1][1]):
                raise _NotProvedError
            outs = _along_outputs(inner[0][0], inner[1][0], ins)
        elif name == "scan":
            outs = _along_scan_outputs(eqn, twin, ins)
        elif name == "broadcast_in_dim":
            outs = [_broadcast_is_along(eqn, twin, ins[0])]
        elif any(ins):
            if not _output_is_along(eqn, twin, ins):
                raise _NotProvedError
            outs = [True] * len(eqn.outvars)
        elif _equal(eqn.params, twin.params):
            outs = [False] * len(eqn.outvars)
        else:
            raise _NotProvedError
        along.update(zip(eqn.outvars, outs, strict=True))
    outs = [is_along(atom) for atom in jaxpr.outvars]
    same = _equal(_literals(jaxpr, "outvars"), _literals(other, "outvars"))
    return outs if same else [False] * len(outs)


def _along_scan_outputs(eqn: Any, twin: Any, ins: Sequence[bool]) -> list[bool]:
    """Do the same for a loop: each part of its carry is along the data throughout, or never."""
    scan, other_scan = Scan.of(eqn), Scan.of(twin)
    body, other = open_jaxpr(scan.body), open_jaxpr(other_scan.body)
    consts, carry = scan.consts, scan.carry
    flat = [a.aval.ndim < 2 for a in eqn.invars[consts + carry :]]
    along_axis = any(one and few for one, few in zip(ins[consts + carry :], flat, strict=True))
    if scan.length != other_scan.length or along_axis:
        raise _NotProvedError
    outs = _along_outputs(body[0], other[0], ins)
    if not _equal(body[1], other[1]) or outs[:carry] != list(ins[consts : consts + carry]):
        raise _NotProvedError
    return outs


def _literals(eqn: Any, name: str = "invars") -> list[Any]:
    return [a.val if isinstance(a, Literal) else None for a in getattr(eqn, name)]


def _equal(one: Any, other: Any) -> bool:
    """Return whether constants or parameters of an operation are the same."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if hasattr(one, "dtype"):
        return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)
    return bool(one == other)


def _output_is_along(eqn: Any, twin: Any, ins: Sequence[bool]) -> bool:
    """Return whether the output of an operation is along the data, if some of its inputs are."""
    name, params = eqn.primitive.name, eqn.params
    shape = eqn.invars[0].aval.shape
    last = len(shape) - 1
    if name in ELEMENTWISE:
        pairs = zip(eqn.invars, ins, strict=True)
        all_along = all(one or not atom.aval.shape for atom, one in pairs)
        return all_along and _equal(params, twin.params)
    if name == "slice":
        whole = params["start_indices"][last] == 0 and params["limit_indices"][last] == shape[last]
        before = params["limit_indices"][:last] == twin.params["limit_indices"][:last]
        return whole and before and (params["strides"] is None or params["strides"][last] == 1)
    if name == "squeeze":
        return last not in params["dimensions"]
    if name in REDUCTIONS:
        return last not in params["axes"]
    if name == "dot_general":
        (_, right), (_, right_batch) = params["dimension_numbers"]
        last = eqn.invars[1].aval.ndim - 1
        return list(ins) == [False, True] and last not in (*right, *right_batch)
    if name == "concatenate":
        return params["dimension"] != last and all(ins)
    if name in ("unstack", "split"):
        return bool(params["axis"] != last)
    if name == "stack":
        return params["axis"] <= last and all(ins)
    return False


def _broadcast_is_along(eqn: Any, twin: Any, along: bool) -> bool:
    dims, shape = eqn.params["broadcast_dimensions"], eqn.params["shape"]
    other = twin.params["shape"]
    if not along and shape == other:
        return False
    # What is the same for all points is along the data as well.
    kept = dims and dims[-1] == len(shape) - 1 if along else len(shape) - 1 not in dims
    if not kept or shape[:-1] != other[:-1]:
        raise _NotProvedError
    return True
