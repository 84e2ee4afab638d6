"""The primitives of JAX that have programs inside, and the few types that jaxprs are made of.

Not by way of `jax.extend`, which takes longer to import than all of spoolax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax._src import ad_checkpoint, core, custom_derivatives, dispatch, hijax, pjit
from jax._src.core import Literal as Literal
from jax._src.core import Primitive as Primitive
from jax._src.custom_batching import custom_vmap_p as custom_vmap_p
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.shard_map import shard_map_p as shard_map_p

Jaxpr = Any
JaxprEqn = Any

scan_p = loops.scan_p
while_p = loops.while_p
cond_p = conditionals.cond_p
linear_solve_p = solves.linear_solve_p
remat_p = ad_checkpoint.remat_p
custom_jvp_call_p = custom_derivatives.custom_jvp_call_p
custom_vjp_call_p = custom_derivatives.custom_vjp_call_p
jit_p = pjit.jit_p
hi_primitive_p = hijax.call_hi_primitive_p


# A plain call of a jaxpr; its name changed between the supported versions.
call_primitives: tuple[Primitive, ...] = tuple(
    getattr(core, name)
    for name in ("closed_call_p", "call_p", "eval_jaxpr_p")
    if hasattr(core, name)
)


def lower_by_device(primitive: Any) -> None:
    """Have JAX say on which devices a program will run when it lowers a primitive."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """Return the jaxpr proper and its constants, whichever kind of jaxpr is given."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def static_arguments(f: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the positions and names of the arguments that are static to a jitted function."""
    jitted = getattr(f, "jitted_fn", f)  # What `nnx.jit` returns has it inside.
    info = getattr(jitted, "_jit_info", None)
    if info is None:
        return (), ()
    return tuple(info.static_argnums), tuple(info.static_argnames)


class equation(NamedTuple):
    """As much of an equation as a rule looks at."""

    primitive: Primitive
    params: dict[str, Any]


def split(values: Sequence[Any], *lengths: int) -> list[list[Any]]:
    """Cut a list into parts of the given lengths, and what is left."""
    parts, start = [], 0
    for length in lengths:
        parts.append(list(values[start : start + length]))
        start += length
    return [*parts, list(values[start:])]
