"""Tracing, and running single equations, with their source lines kept."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax._src import core, pjit, source_info_util
from jax._src.source_info_util import Transform
from jax.interpreters import partial_eval

from .primitives import Jaxpr, JaxprEqn

# Our own lines are never where the user did something.
source_info_util.register_exclusion(str(pathlib.Path(__file__).parent.parent))

trace_is_clean: Callable[[], bool] = core.trace_ctx.is_top_level
flatten: Callable[[Any], tuple[list[Any], Any]] = jax.tree_util.default_registry.flatten


def is_ahead_of_time(frame: FrameType | None) -> bool:
    """Say whether the code in a frame is traced by `f.lower(x)` or `f.trace(x)`."""
    while frame is not None:
        if frame.f_code.co_name == "jit_trace" and frame.f_globals["__name__"] == pjit.__name__:
            return True
        frame = frame.f_back
    return False


def bind(eqn: JaxprEqn, invals: Sequence[Any]) -> list[Any]:
    """Run one equation as it is, with its source line and name scope kept."""
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    with at_source(eqn), eqn.ctx.manager:
        if trace_is_clean():  # Primitives that are run, not traced, may expect JAX's arrays.
            invals = [jax.numpy.asarray(x) if _is_on_host(x) else x for x in invals]
        out = eqn.primitive.bind(*invals, **bind_params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _is_on_host(x: Any) -> bool:
    """Say whether something is a number or array of Python or NumPy, as literals are."""
    is_host = isinstance(x, (np.ndarray, np.generic, bool, int, float, complex))
    return is_host and getattr(x, "dtype", None) != jax.dtypes.float0


def at_source(eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
    """Attribute what is traced in this context to the source line of `eqn`."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return source_info_util.user_context(  # type: ignore[no-any-return]
        eqn.source_info.traceback, name_stack=name_stack
    )


def source_line(eqn: JaxprEqn) -> str:
    """Say where in the user's code an equation was made."""
    return str(source_info_util.summarize(eqn.source_info))


def passes(eqn: JaxprEqn) -> str:
    """Say in which passes of derivatives an equation was made, the outermost first.

    "f" is a forward pass, "b" a backward pass. Where it is inside another equation, those that
    the other was made in are left out.
    """
    stack = eqn.source_info.name_stack.stack
    names = (one.name for one in stack if isinstance(one, Transform))
    return "".join({"jvp": "f", "transpose": "b"}.get(name, "") for name in names)


def trace(function: Callable[..., Any], avals: Sequence[Any]) -> Jaxpr:
    """Trace a function of arrays of the given types."""
    return jax.make_jaxpr(function)(*avals)


def with_parent_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Trace on the level below `trace`."""
    return core.set_current_trace(trace.parent_trace)  # type: ignore[no-any-return]


def with_trace(trace: Any) -> contextlib.AbstractContextManager[Any]:
    """Trace on the level of `trace`."""
    return core.set_current_trace(trace)  # type: ignore[no-any-return]


def wrap_rehearsals(around: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Enter `around()` while flax traces the body of a loop only to see what it depends on.

    `nn.scan` of linen does that before the loop itself is traced. It is the only user of this
    name, by which JAX itself does not call the function.
    """
    trace = partial_eval.trace_to_jaxpr_dynamic

    def rehearse(*args: Any, **kwargs: Any) -> Any:
        with around():
            return trace(*args, **kwargs)

    partial_eval.trace_to_jaxpr_dynamic = functools.wraps(trace)(rehearse)
