"""What constructs with programs inside are made of."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import jax

from .primitives import Jaxpr, JaxprEqn, hi_primitive_p, open_jaxpr
from .tracing import trace


def expanded(eqn: JaxprEqn) -> Jaxpr:
    """Return what a high-level primitive of JAX computes (`custom_root` is one since 0.12)."""
    primitive = eqn.params["_prim"]
    if primitive not in _expanded:

        def flat(*args: Any) -> list[Any]:
            out = primitive.expand(*jax.tree.unflatten(primitive.in_tree, args))
            return jax.tree.leaves(out)  # type: ignore[no-any-return]

        _expanded[primitive] = trace(flat, [atom.aval for atom in eqn.invars])
    return _expanded[primitive]


_expanded: weakref.WeakKeyDictionary[Any, Jaxpr] = weakref.WeakKeyDictionary()


def subjaxprs(eqn: JaxprEqn) -> Iterator[Any]:
    """Yield every jaxpr among the parameters of `eqn`."""
    if eqn.primitive is not hi_primitive_p:
        yield from jaxprs_in(eqn.params)
    elif eqn.effects:
        yield expanded(eqn)


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """Yield every jaxpr among the parameters of a primitive."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns"):
                yield item


def calls_host(eqn: JaxprEqn) -> bool:
    """Say whether an equation calls Python functions when it runs."""
    if str(eqn.primitive) in ("pure_callback", "io_callback", "debug_callback", "debug_print"):
        return True
    return any(calls_host(inner) for sub in subjaxprs(eqn) for inner in open_jaxpr(sub)[0].eqns)


def scan_parts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many of a scan's inputs are constants, and how many are carried."""
    if "ft_in" in params:  # Since 0.11.
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    return params["num_consts"], params["num_carry"]


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` is over."""
    name = "manual_axes" if "manual_axes" in params else "newly_manual_axes"  # Since 0.10.1.
    return frozenset(params[name])
