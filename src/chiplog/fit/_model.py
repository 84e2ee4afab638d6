"""Models: their parameters' names, what makes two of them the same, and whether data are apart."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LogTypeError, LogValueError

SOME = 32  # Points that tell whether a model looks at each of them by itself.


def parameter_names(model: Callable[..., Any]) -> list[str]:
    """The names of the parameters, which come after x."""
    try:
        given = list(inspect.signature(model).parameters.values())
    except (TypeError, ValueError) as error:
        raise LogValueError("The signature of the model is not known: give `p0`.") from error
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        raise LogValueError(
            "The model takes any number of parameters (`*args`), so `p0` must say how many."
        )
    names = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(names) < 2:
        raise LogValueError("The model is a function of x and of parameters: f(x, a, b, ...).")
    return names[1:]


def identity(f: Any) -> Any:
    """Something that is equal for functions that do the same, as far as that can be known."""
    if not isinstance(f, types.FunctionType):
        return f
    cells = [cell.cell_contents for cell in f.__closure__ or ()]
    about = (_code(f.__code__), f.__defaults__, tuple(map(identity, cells)), id(f.__globals__))
    try:
        hash(about)
    except TypeError:  # It has arrays in it: then only the function itself is the same.
        return f
    return about


def _code(code: types.CodeType) -> Any:
    """What code does, wherever it stands."""
    constants = [
        _code(one) if isinstance(one, types.CodeType) else (type(one), one)
        for one in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_code, tuple(constants), names, code.co_argcount, code.co_flags


def checked_model(model: Callable[[Any, Any], Any], x: Any, p: Any, shape: tuple[int, ...]) -> None:
    """See that a model can be traced, and returns what it should."""
    try:
        out = jax.eval_shape(model, x, p)
    except jax.errors.TracerArrayConversionError as error:
        raise LogTypeError(
            "The model uses NumPy (or something else that is not JAX) on its arguments, and so it "
            "cannot be compiled or differentiated. Write it with `jax.numpy` instead of `numpy`."
        ) from error
    except jax.errors.ConcretizationTypeError as error:
        raise LogTypeError(
            "The model decides something by the values of its arguments (`if x > 0`), which are "
            "not known while it is compiled. Use `jax.numpy.where` instead."
        ) from error
    if out.shape != shape:
        raise LogValueError(
            f"The model returns an array of shape {out.shape}, but there are {shape[0]} points."
        )


def is_pointwise(model: Callable[[Any, Any], Any], x: Any, p: Any) -> bool:
    """Whether a model gives the same for some of the data as for these among others."""
    some = jax.tree.map(lambda a: a[..., :SOME], x)
    half = jax.tree.map(lambda a: a[..., : (a.shape[-1] + 1) // 2], some)

    def both(some: Any, half: Any, p: Any) -> tuple[Any, Any]:
        return model(some, p), model(half, p)

    try:
        one, other = map(np.asarray, jax.jit(both)(some, half, p))
    except Exception:
        return False
    return bool(np.allclose(one[: len(other)], other, rtol=1e-9, atol=0, equal_nan=True))


def as_flat(model: Callable[..., Any], structure: Any) -> Callable[[Any, Any], Any]:
    """A model of x and of all parameters in one array."""

    def flat(x: Any, p: Any) -> Any:
        args = (*p,) if structure is None else (jax.tree.unflatten(structure, list(p)),)
        out = jnp.asarray(model(x, *args))
        length = jax.tree.leaves(x)[0].shape[-1]
        return jnp.broadcast_to(out, (length,)) if out.ndim == 0 else jnp.ravel(out)

    return flat


def as_flat_jacobian(jac: Callable[..., Any], structure: Any) -> Callable[[Any, Any], Any]:
    """The Jacobian of a model, of x and of all parameters in one array."""
    if structure is not None:
        raise LogValueError("`jac` is for parameters that are given one by one.")
    return lambda x, p: jnp.asarray(jac(x, *p))
