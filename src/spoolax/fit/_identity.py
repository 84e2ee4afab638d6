"""What makes two functions the same, so that an equal one need not be compiled again.

Everything that a function can see counts: its code, what it encloses, and the global variables that
it names, by their values; of objects, classes and modules, the attributes. So a changed constant is
noticed, and a fresh but equal lambda is not. Only the insides of large libraries are not looked at.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import jax
import numpy as np

GIVEN = frozenset(("jax", "jaxlib", "numpy", "scipy", "math", "builtins", "functools", "spoolax"))
MOST = 10_000  # Values to look at.
PLAIN = (bool, int, float, complex, str, bytes)


def identity(value: Any) -> Any:
    """Something hashable that is equal for values that are the same, as far as is known."""
    try:
        return _Look().at(value, ())
    except RecursionError:  # What is too large to look into is the same as itself only.
        return _Object(value)


class _Look:
    """One look at a value. What has been seen before is only referred to."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def at(self, value: Any, names: tuple[str, ...]) -> Any:
        """A value, and those of its attributes that are named by the code that uses it."""
        if value is None:
            return None
        if isinstance(value, PLAIN):
            return type(value), repr(value)  # 0.0 and -0.0 are equal, but not the same.
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        if isinstance(value, types.ModuleType):
            return self._module(value, names)
        if _is_given(value):
            return _Object(value)
        self._seen[id(value)] = len(self._seen)
        if len(self._seen) > MOST:
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
            return type(value), frozenset(_Look().at(one, names) for one in value)
        if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
            return _array(value)
        if isinstance(value, type):
            return self._class(value, names)
        if hasattr(value, "__array__") and not isinstance(value, jax.core.Tracer):
            return type(value), _array(value)  # Such as a table of pandas.
        return self._object(value, names)

    def _all(self, values: Any, names: tuple[str, ...]) -> Any:
        return tuple([self.at(value, names) for value in values])

    def _named(self, value: Any, names: tuple[str, ...]) -> Any:
        given = [getattr(value, name, None) for name in names]
        return self._all(given, names)

    def _module(self, module: types.ModuleType, names: tuple[str, ...]) -> Any:
        if module.__name__.partition(".")[0] in GIVEN:
            return module
        self._seen[id(module)] = len(self._seen)
        return module, self._named(module, names)

    def _function(self, f: types.FunctionType) -> Any:
        names = _names(f.__code__)
        cells = [_content(cell) for cell in f.__closure__ or ()]
        named = [f.__globals__.get(name) for name in names]
        kept = (f.__defaults__, f.__kwdefaults__, f.__dict__ or None, *cells, *named)
        return "function", _code(f.__code__), self._all(kept, names)

    def _object(self, value: Any, names: tuple[str, ...]) -> Any:
        """An object of a class of the user's: its class, and its own attributes."""
        classes = [c for c in type(value).__mro__ if not _is_given(c)]
        slots = [name for c in classes for name in np.atleast_1d(vars(c).get("__slots__", ()))]
        own = [getattr(value, str(name), None) for name in slots]
        own.append(getattr(value, "__dict__", None))
        if not classes:  # It cannot be looked into.
            return _Object(value)
        return "object", self.at(type(value), names), self._all(own, names)

    def _class(self, value: type, names: tuple[str, ...]) -> Any:
        kept = [
            one
            for c in value.__mro__
            if not _is_given(c)
            for name, one in vars(c).items()
            if name == "__call__" or not name.startswith("__")
        ]
        return _Object(value), self._all(kept, names)


def _is_given(value: Any) -> bool:
    """Whether something is a part of a library that is taken as it is."""
    module = getattr(value, "__module__", None)
    if isinstance(value, (np.ndarray, jax.Array)) or not isinstance(module, str):
        return False
    return module.partition(".")[0] in GIVEN and not isinstance(
        value, (functools.partial, types.MethodType)
    )


def _array(value: Any) -> Any:
    array = np.ascontiguousarray(np.asarray(value))
    if array.dtype == object:
        return _Object(value)
    return "array", array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()


class _Object:
    """An object that is the same as itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self._value is other._value


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
