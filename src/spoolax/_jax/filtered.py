"""Primitives of equinox, such as lineax's `linear_solve`, with functions in their parameters.

JAX has traced these functions for their types only, so there is no program to look into. One is
traced while somebody listens, and kept if there is something in it to hear.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .anatomy import Call, add_kind, anatomy, programs_in
from .primitives import Jaxpr, JaxprEqn, Primitive, open_jaxpr
from .tracing import passes, trace


@dataclasses.dataclass(eq=False, repr=False)
class Filtered(Call):
    """Such a primitive, and what it computes."""


def trace_filtered_if(when: Callable[[], Any], wants: Callable[[Jaxpr], Any]) -> None:
    """Have equations that are `Filtered` traced `when` that is true, for programs it `wants`."""
    _tracing.append((when, wants))


def trace_filtered(jaxpr: Jaxpr) -> None:
    """Trace the functions of `Filtered` equations of a program, now that somebody listens.

    The backward pass uses the same functions, which do not count there.
    """
    found = list(_filtered_in(jaxpr))
    forward = [_key(eqn) for eqn, backward in found if not backward]
    for eqn, backward in found:
        if backward and not any(_key(eqn) is one for one in forward):
            _ignored.add(_key(eqn))
        anatomy(eqn)


def ignore_filtered(jaxpr: Jaxpr, start: int = 0) -> None:
    """Have `Filtered` equations, from number `start` on, count as equations without programs."""
    for eqn, _ in list(_filtered_in(jaxpr))[start:]:
        _ignored.add(_key(eqn))


def _filtered_in(jaxpr: Jaxpr, backward: bool = False) -> Iterator[tuple[JaxprEqn, bool]]:
    """List the `Filtered` equations of a program, and whether they are in a backward pass."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        there = backward or "b" in passes(eqn)
        if _key(eqn) is not None:
            yield eqn, there
        else:
            for program in programs_in(eqn):
                yield from _filtered_in(program, there)


def _key(eqn: JaxprEqn) -> Any:
    """An object that an equation has to itself if it is `Filtered`; None for other equations."""
    params, primitive = eqn.params, eqn.primitive
    while "prim" in params and "params" in params:  # Under `vmap`.
        params, primitive = dict(params["params"]), params["prim"]
    key = params.get("flatten")
    return key if key is not None and primitive in _implementations() else None


def filtered_primitives() -> list[Primitive]:
    """List the primitives of equations that are `Filtered`."""
    return list(_implementations())


def _take_apart(eqn: JaxprEqn) -> Filtered | None:
    key = _key(eqn)
    if key in _ignored:
        return None
    types = tuple(atom.aval for atom in eqn.invars)
    known = _traced.setdefault(key, {})
    kind = (eqn.primitive, types, str(eqn.params.get("__batch_axes")))
    for when, wants in _tracing:
        if kind not in known and when():
            compiled = _implementations()[eqn.primitive]
            program = trace(lambda *args: list(compiled(*args, **eqn.params)), types)
            known[kind] = Filtered((program,)) if wants(program) else None
    return known.get(kind)


def _implementations() -> dict[Any, Callable[..., Any]]:
    """What primitives are compiled as, by equinox; their `impl` may refuse to be transformed."""
    module: Any = sys.modules.get("equinox.internal._primitive")
    return getattr(module, "_vprim_impl_registry", {})


_tracing: list[tuple[Callable[[], Any], Callable[[Jaxpr], Any]]] = []
_ignored: weakref.WeakSet[Any] = weakref.WeakSet()
_traced: weakref.WeakKeyDictionary[Any, dict[Any, Filtered | None]] = weakref.WeakKeyDictionary()

add_kind(lambda eqn: _key(eqn) is not None, _take_apart)
