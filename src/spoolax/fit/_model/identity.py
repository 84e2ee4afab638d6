"""What makes two functions equal, so that the second need not be compiled again.

Everything that a function can see counts: its code, its closure, and the global variables that it
names, by their values; of objects, classes and modules, the attributes. So a changed constant is
noticed, and a new but equal lambda is recognized. Only the insides of large libraries are skipped.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import jax
import numpy as np

LIBRARIES = frozenset(
    ("jax", "jaxlib", "numpy", "scipy", "math", "builtins", "functools", "spoolax")
)
MAX_VALUES = 10_000  # To look at, of one function.
PLAIN = (bool, int, float, complex, str, bytes)


def identity(value: Any) -> Any:
    """Return something hashable that is equal for values that are known to be equal."""
    try:
        return _Visitor().visit(value, ())
    except RecursionError:  # What is too large to look into is equal to itself only.
        return _ById(value)


class _Visitor:
    """Visits a value and all that it refers to; what was visited before is only referred to."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def visit(self, value: Any, names: tuple[str, ...]) -> Any:
        """Visit a value, and those of its attributes that are named by the code that uses it."""
        if value is None:
            return None
        if isinstance(value, PLAIN):
            return type(value), repr(value)  # 0.0 and -0.0 are equal, but not the same.
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        if isinstance(value, types.ModuleType):
            return self._module(value, names)
        if _is_from_library(value):
            return _ById(value)
        self._seen[id(value)] = len(self._seen)
        if len(self._seen) > MAX_VALUES:
            raise RecursionError
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return "partial", self._all((value.func, value.args, value.keywords), names)
        if isinstance(value, types.MethodType):
            return "method", self._all((value.__func__, value.__self__), names)
        if isinstance(value, (list, tuple)):
            return type(value), self._all(value, names)
        if isinstance(value, dict):
            return type(value), self._all((*value.keys(), *value.values()), names)
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(_Visitor().visit(one, names) for one in value)
        if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
            return _array(value)
        if isinstance(value, type):
            return self._class(value, names)
        if hasattr(value, "__array__") and not isinstance(value, jax.core.Tracer):
            return type(value), _array(value)  # Such as a DataFrame of pandas.
        return self._object(value, names)

    def _all(self, values: Any, names: tuple[str, ...]) -> Any:
        return tuple([self.visit(value, names) for value in values])

    def _module(self, module: types.ModuleType, names: tuple[str, ...]) -> Any:
        if module.__name__.partition(".")[0] in LIBRARIES:
            return module
        self._seen[id(module)] = len(self._seen)
        return module, self._all([getattr(module, name, None) for name in names], names)

    def _function(self, f: types.FunctionType) -> Any:
        names = _names(f.__code__)
        cells = [_content(cell) for cell in f.__closure__ or ()]
        named = [f.__globals__.get(name) for name in names]
        kept = (f.__defaults__, f.__kwdefaults__, f.__dict__ or None, *cells, *named)
        return "function", _code(f.__code__), self._all(kept, names)

    def _object(self, value: Any, names: tuple[str, ...]) -> Any:
        """Visit an object of a class of the user's: its class, and its own attributes."""
        classes = [c for c in type(value).__mro__ if not _is_from_library(c)]
        slots = [name for c in classes for name in np.atleast_1d(vars(c).get("__slots__", ()))]
        own = [getattr(value, str(name), None) for name in slots]
        own.append(getattr(value, "__dict__", None))
        if not classes:  # It cannot be looked into.
            return _ById(value)
        return "object", self.visit(type(value), names), self._all(own, names)

    def _class(self, value: type, names: tuple[str, ...]) -> Any:
        kept = [
            one
            for c in value.__mro__
            if not _is_from_library(c)
            for name, one in vars(c).items()
            if name == "__call__" or not name.startswith("__")
        ]
        return _ById(value), self._all(kept, names)


def _is_from_library(value: Any) -> bool:
    """Return whether something belongs to a library that is not looked into."""
    module = getattr(value, "__module__", None)
    if isinstance(value, (np.ndarray, jax.Array)) or not isinstance(module, str):
        return False
    return module.partition(".")[0] in LIBRARIES and not isinstance(
        value, (functools.partial, types.MethodType)
    )


def _array(value: Any) -> Any:
    array = np.ascontiguousarray(np.asarray(value))
    if array.dtype == object:
        return _ById(value)
    return "array", array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()


class _ById:
    """An object that is equal to itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self._value is other._value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It has not been set yet.
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code looks up, in its inner functions as well."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return (*code.co_names, *(name for one in inner for name in _names(one)))


@functools.lru_cache(maxsize=1024)
def _code(code: types.CodeType) -> Any:
    """Return what code does, wherever it was written."""
    constants = [
        _code(one) if isinstance(one, types.CodeType) else (type(one), repr(one))
        for one in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_code, tuple(constants), names, code.co_argcount, code.co_flags
