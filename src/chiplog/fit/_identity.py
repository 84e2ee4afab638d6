"""What makes two functions the same, so that an equal one need not be compiled again.

Everything that a function can see counts: its code, what it encloses, and the global variables that
it names, by their values. So a changed constant is noticed, and a fresh but equal lambda is not.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import jax
import numpy as np


def identity(value: Any, _seen: tuple[int, ...] = ()) -> Any:
    """Something hashable that is equal for values that are the same, as far as is known."""
    if value is None or isinstance(value, types.ModuleType):
        return value
    if id(value) in _seen:  # A function that calls itself.
        return "itself", _seen.index(id(value))
    inner = functools.partial(identity, _seen=(*_seen, id(value)))
    if isinstance(value, types.FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        named = [value.__globals__.get(name) for name in _names(value.__code__)]
        kept = (value.__defaults__, value.__kwdefaults__, *cells, *named)
        return "function", _code(value.__code__), *map(inner, kept)
    if isinstance(value, functools.partial):
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, types.MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, (list, tuple)):
        return type(value), *map(inner, value)
    if isinstance(value, dict):
        return type(value), *((key, inner(one)) for key, one in value.items())
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        array = np.ascontiguousarray(value)
        if array.dtype != object:
            return "array", array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value), repr(value)  # 0.0 and -0.0 are equal, but not the same.
    return _Object(value)


class _Object:
    """An object that is the same as itself only, or as those that it says it is equal to."""

    def __init__(self, value: Any) -> None:
        self._value = value
        try:
            self._hash = hash(value)
        except TypeError:
            self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Object) or self._hash != other._hash:
            return False
        if self._value is other._value:
            return True
        try:
            return type(self._value) is type(other._value) and bool(self._value == other._value)
        except Exception:  # Such as arrays inside of it, which compare one by one.
            return False


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It has not been set yet.
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code looks up, in its inner functions as well."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return (*code.co_names, *(name for one in inner for name in _names(one)))


@functools.lru_cache(maxsize=1024)
def _code(code: types.CodeType) -> Any:
    """What code does, wherever it stands."""
    constants = [
        _code(one) if isinstance(one, types.CodeType) else (type(one), repr(one))
        for one in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_code, tuple(constants), names, code.co_argcount, code.co_flags
