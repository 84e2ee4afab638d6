"""How long a program may take, by its equations: a guess, to within a few orders of magnitude."""

from __future__ import annotations

import math
import weakref
from typing import Any

from .._jax import platforms
from .._jax.anatomy import Cond, Scan, anatomy, contracted
from .._jax.primitives import Jaxpr, JaxprEqn, open_jaxpr

_known: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def seconds(jaxpr: Jaxpr) -> float:
    """Guess how long a program takes. Loops whose length is not known count as one iteration."""
    jaxpr, _ = open_jaxpr(jaxpr)
    if jaxpr not in _known:
        _known[jaxpr] = sum(map(_seconds, jaxpr.eqns))
    return _known[jaxpr]


def _seconds(eqn: JaxprEqn) -> float:
    found = anatomy(eqn)
    if found is not None:
        parts = [seconds(program) for program in found.programs]
        if isinstance(found, Scan) and isinstance(found.length, int):
            return found.length * parts[0]
        return max(parts) if isinstance(found, Cond) else sum(parts)
    types = [var.aval for var in eqn.outvars if hasattr(var.aval, "shape")]
    numbers: int = sum(math.prod(aval.shape) for aval in types)
    operations = numbers * contracted(eqn) * platforms.SECONDS_PER_OPERATION
    return platforms.SECONDS_PER_KERNEL + operations + 4 * numbers * platforms.SECONDS_PER_BYTE
