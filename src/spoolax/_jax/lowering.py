"""Compiling whole programs in another way than JAX would."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax._src.interpreters import mlir, pxla

from ..errors import UnsupportedError
from .executables import Around, Watched, wrap_calls
from .platforms import Target, compiling_for
from .primitives import Jaxpr
from .tracing import trace


def wrap_programs(
    wants: Callable[[Jaxpr], Any],
    evaluate: Callable[[Jaxpr, Sequence[Any]], list[Any]],
    effect: Any,
) -> None:
    """Compile programs that are wanted as `evaluate(jaxpr, args)`, which returns their results.

    Programs with effects are started by Python, which takes far longer. So one that runs on one
    device, and that nobody watches, does not have the effect any more; it has ended when another
    has that the same thread starts on the same device after it. All others have it.
    """
    lower, lower_cached = mlir.lower_jaxpr_to_module, pxla._cached_lowering_to_hlo

    @functools.wraps(lower)
    def wrapped(name: str, jaxpr: Jaxpr, **about: Any) -> Any:
        if not wants(jaxpr):
            return lower(name, jaxpr, **about)
        if about["lowering_parameters"].for_export:
            raise UnsupportedError(
                "A program that is made with `jax.export` may run anywhere, so it cannot call the "
                "host while it runs, as `tap`, `watch` and `progress` do. Export the function "
                "without them, or collect what it logs: "
                "`jax.export.export(jax.jit(spoolax.spool(f)))`."
            )
        token = _watched.set([])
        try:
            with compiling_for(Target(about["platforms"], about["num_partitions"])):
                evaluated = trace(lambda *args: evaluate(jaxpr, args), jaxpr.in_avals)
            watched = _watched.get()
        finally:
            _watched.reset(token)
        lowered = lower(name, evaluated, **about)
        kind = _LOUD if watched or about["num_partitions"] > 1 else _QUIET
        return lowered._replace(keepalive=[*(lowered.keepalive or ()), *watched, kind])

    @functools.wraps(lower_cached)
    def wrapped_cached(jaxpr: Jaxpr, *args: Any, **about: Any) -> Any:
        _, keepalive, _, unordered, *_ = lowered = lower_cached(jaxpr, *args, **about)
        kinds = [one for one in keepalive or () if isinstance(one, str)]
        if _QUIET in kinds and effect in unordered:
            unordered.remove(effect)
        elif _LOUD in kinds and effect not in unordered:
            unordered.append(effect)
        return lowered

    mlir.lower_jaxpr_to_module = wrapped
    pxla._cached_lowering_to_hlo = wrapped_cached


_QUIET, _LOUD = "quiet", "loud"  # Kept by programs that are wanted, without and with the effect.
_watched: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("watched")


def watch_executions(part: Any, around: Around) -> None:
    """Have `around(part, execute)` called to execute the program that is being evaluated.

    It returns what `execute()` does.
    """
    wrap_calls()
    _watched.get().append(Watched(part, around))
