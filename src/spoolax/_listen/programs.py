"""Calls of a transformed function, compiled once per structure and shape, as `jax.jit` does.

Arguments are flattened and split into arrays, which are traced, and everything else, which is
static. Each combination of structure and static values is a `Program` of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .._jax import tracing
from .._jax.anatomy import Jit, anatomy
from .._jax.filtered import trace_filtered
from .._jax.primitives import Jaxpr, open_jaxpr, static_arguments
from .._log.primitive import listening
from .._walk.transformations import wrap_filtered
from .._weak_cache import WeakCache
from ..errors import LogTypeError
from . import in_place

DYNAMIC = (jax.Array, jax.Ref, jax.core.Tracer, np.ndarray, np.generic, int, float, complex)


class Program:
    """A function with a given structure and given static arguments, ready to be called.

    Subclasses say what the traced function means, in `interpret`. Calls have `extra` arrays at the
    end that are not arguments of the function.
    """

    extra = 0

    def __init__(
        self,
        f: Callable[..., Any],
        tree: Any,
        static: dict[int, Any],
        traced: bool,
        apart: bool,
    ) -> None:
        self.traced, self._apart = traced, apart  # Objects among the arguments are taken apart.
        self._f, self._tree, self._static = f, tree, static  # `f` is a weak reference.
        self._jitted: Any = None
        self._donated: dict[Any, tuple[int, ...]] = {}
        self._variants: dict[tuple[int, ...], Any] = {}
        self._ready = False  # It has run before, and returns what the user gets.
        self._pending: tuple[Any, Any, Any] | None = None
        self._plain_outputs = True  # They are what the user gets.

    @property
    def function(self) -> Callable[..., Any]:
        """What the user wants to be listened to."""
        return self._f()  # type: ignore[no-any-return]

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the outputs of the traced function, and what else there is to return."""
        raise NotImplementedError

    def run(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Run the compiled program. What it changed in place is for `applied`."""
        try:
            out, more = (self._jitted or self._variant(leaves))(*leaves)
        except _DonatesOtherwiseError:  # Which buffers are donated may depend on the shapes.
            self._jitted = None
            out, more = self._variant(leaves)(*leaves)
        except RetryError:
            raise
        except Exception:
            self._pending = None  # Another attempt traces anew.
            raise
        if self._ready:  # Asked after the call, which may have traced something else.
            return out, more
        self._pending = None
        if self._plain_outputs:
            self._ready = True
            return out, more
        return jax.tree.map(_Static.unwrap, out, is_leaf=_Static.is_one), more

    @staticmethod
    def applied(out: Any) -> Any:
        """Change the user's objects as the program did, and return what the user gets."""
        return out.apply() if isinstance(out, in_place.Changed) else out

    def _variant(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        """Find or make the jitted function that donates what these arguments should."""
        types = tuple(self._types(leaves))
        if types not in self._donated:
            pending = (types, *self._trace(leaves))
            self._donated[types] = () if self.traced else _donated(pending[1])
            self._pending = pending
        donated = self._donated[types]
        if donated not in self._variants:
            body = functools.partial(self._body, donated)
            self._variants[donated] = jax.jit(body, donate_argnums=donated)
            if len(self._variants) == 1:  # The usual case: this one does for all shapes.
                self._jitted = self._variants[donated]
        variant: Callable[..., Any] = self._variants[donated]
        return variant

    def _body(self, donated: tuple[int, ...], *leaves: Any) -> Any:
        pending = self._pending  # Another thread may be done with it at any time.
        if pending is not None and pending[0] == tuple(self._types(leaves)):
            _, closed, out_tree = pending
        else:
            closed, out_tree = self._trace(leaves)
            if not self.traced and _donated(closed) != donated:
                raise _DonatesOtherwiseError
        outs, more = self.interpret(closed, leaves)
        return jax.tree.unflatten(out_tree, outs), more

    def argument_names(self) -> list[str]:
        """What the arrays that the function is given are called in the user's code."""
        numbers = [n for n in range(self._tree.num_leaves) if n not in self._static]
        try:
            args, kwargs = jax.tree.unflatten(self._tree, range(self._tree.num_leaves))
            given = inspect.signature(self._f()).bind(*args, **kwargs).arguments
            paths = jax.tree_util.tree_leaves_with_path(dict(given))
        except Exception:  # A class of the user's that takes arrays only, or no signature.
            return [f"argument {i}" for i in range(len(numbers))]
        names = {n: f"{path[0].key}{jax.tree_util.keystr(path[1:])}" for path, n in paths}
        return [names[n] for n in numbers]

    def _types(self, leaves: Sequence[Any]) -> list[Any]:
        return [jax.typeof(leaf) for leaf in leaves]

    def _trace(self, leaves: Sequence[Any]) -> tuple[Jaxpr, Any]:
        out_tree, f = None, self._f()

        leaves = leaves[: len(leaves) - self.extra]

        def flat(*dynamic: Any) -> list[Any]:
            nonlocal out_tree
            rest = iter(dynamic)
            total = len(dynamic) + len(self._static)
            full = [self._static[i] if i in self._static else next(rest) for i in range(total)]
            args, kwargs = jax.tree.map(
                _Static.unwrap, jax.tree.unflatten(self._tree, full), is_leaf=_Static.is_one
            )
            if self._apart:
                args, kwargs = in_place.put_together((args, kwargs))
            watched = in_place.Watched(f, args, kwargs)
            out = f(*args, **kwargs)
            watched.warn_of_changes(out)
            if self._apart or in_place.has_objects(out):
                out = in_place.Changed.by((args, kwargs), out, self._apart)
                self._plain_outputs, self._ready = False, False
            outs: list[Any]
            outs, out_tree = jax.tree.flatten(jax.tree.map(self._wrap_output, out))
            return outs

        flat.__name__ = flat.__qualname__ = getattr(f, "__name__", "spoolax")
        try:
            closed, _ = trace_listening(flat, *leaves)
            return closed, out_tree
        except (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerIntegerConversionError,
        ) as error:
            error.add_note(
                "spoolax traces every argument that is an array or a number, as `jax.jit` does. To "
                "make a number static, bind it before: `functools.partial(f, n=3)`."
            )
            raise

    def _wrap_output(self, leaf: Any) -> Any:
        if isinstance(leaf, (*DYNAMIC, bool)):
            return leaf
        self._plain_outputs, self._ready = False, False
        return _Static(leaf)


def trace_listening(f: Callable[..., Any], *args: Any) -> tuple[Jaxpr, Any]:
    """Trace a function for somebody who listens. Returns its jaxpr, and the types of its output."""
    with listening(True):
        wrap_filtered()
        closed, out = jax.make_jaxpr(f, return_shape=True)(*args)
        trace_filtered(closed)
    return closed, out


class RetryError(Exception):
    """Raised by `interpret` if the program is to be compiled in another way, at once."""


def trace_call(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Jaxpr:
    """Trace a function as it would be for a call with these arguments."""
    program, leaves = Programs(lambda: f, _Traced).find(args, kwargs)
    return program.call(leaves)


class _Traced(Program):
    """A program that is not run."""

    def call(self, leaves: Sequence[Any]) -> Jaxpr:
        return self._trace(leaves)[0]


class _DonatesOtherwiseError(Exception):
    """The function donates other arguments for these shapes than for those seen before."""


class Programs:
    """All programs of one function."""

    def __init__(self, f: Callable[[], Any], make: Callable[..., Program]) -> None:
        self.source, self._make = f, make
        self._static_numbers, self._static_names = static_arguments(f())
        self._kinds: dict[Any, _Kind] = {}
        self._flat: dict[tuple[type, ...], Program] = {}

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
        """Return the program for a call, and the arrays to give it."""
        # Every call pays for this, so it is kept short. Arrays that are arguments by
        # themselves need no flattening.
        program = None if kwargs else self._flat.get(tuple(map(type, args)))
        if program is not None and tracing.trace_is_clean():
            return program, args
        if self._static_numbers or self._static_names:
            args, kwargs = self._mark_static(args, kwargs)
        if any(map(in_place.is_object, (*args, *kwargs.values()))):
            return self._in_place((args, kwargs)), ()
        return self._find((args, kwargs))

    def _in_place(self, arguments: Any) -> in_place.Call:
        return in_place.Call(functools.partial(self._find, apart=True), arguments)

    def _find(self, arguments: Any, *, apart: bool = False) -> tuple[Any, Sequence[Any]]:
        """The same, for arguments of any structure; objects of nnx may have been taken apart."""
        leaves, tree = tracing.flatten(arguments)
        signature = (tree, *map(type, leaves))
        kind = self._kinds.get(signature)
        if kind is None:
            has_objects = not apart and in_place.has_objects(arguments)
            kind = self._kinds[signature] = _Kind(signature[1:], has_objects)
        if kind.has_objects:
            return self._in_place(arguments), ()
        static = _checked_hashable(tuple(leaves[i] for i in kind.static))
        traced = kind.traced or not tracing.trace_is_clean()
        program = kind.programs.get((static, traced))
        if program is None:
            given = dict(zip(kind.static, static, strict=True))
            program = self._make(self.source, tree, given, traced, apart)
            kind.programs[static, traced] = program
            args, kwargs = arguments
            if not (kwargs or static or traced) and list(map(id, leaves)) == list(map(id, args)):
                self._flat[signature[1:]] = program
        if static:
            leaves = [leaf for i, leaf in enumerate(leaves) if i not in kind.static]
        return program, leaves

    def _mark_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap the arguments that are static to the jitted function itself."""
        numbers = [i % len(args) for i in self._static_numbers if -len(args) <= i < len(args)]
        return (
            tuple(_Static(arg) if i in numbers else arg for i, arg in enumerate(args)),
            {k: _Static(arg) if k in self._static_names else arg for k, arg in kwargs.items()},
        )


def programs_of(
    f: Callable[..., Any], options: Any, make: Callable[..., Program]
) -> Programs | _Bound:
    """Return the programs of a function, the same ones for the same function and options.

    So `spool(f)(x)` in a loop compiles once, as `jax.jit(f)(x)` does.
    """
    if not callable(f):
        raise LogTypeError(f"spoolax can listen to functions only, not to {f!r}.")
    function, bound = in_place.unbound(f)
    if in_place.has_objects(bound):
        return _Bound(f, programs_of(function, options, make), *_mark_numbers_static(bound))
    return _programs.get(f, options, lambda reference: Programs(reference, make))


_programs: WeakCache[Programs] = WeakCache(methods=True)


class _Bound:
    """The programs of a method or partial, called with the objects that are bound to it.

    Were those part of the function, their values would be constants of its programs.
    """

    def __init__(
        self, f: Callable[..., Any], programs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.source = lambda: f
        self._programs, self._args, self._kwargs = programs, args, kwargs

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
        return self._programs.find((*self._args, *args), {**self._kwargs, **kwargs})  # type: ignore[no-any-return]


def _mark_numbers_static(bound: Any) -> Any:
    def mark(leaf: Any) -> Any:
        is_array = isinstance(leaf, (jax.Array, jax.Ref, np.ndarray, np.generic))
        return leaf if is_array or in_place.is_object(leaf) else _Static(leaf)

    return jax.tree.map(mark, bound, is_leaf=in_place.is_object)


class _Kind:
    """Calls with arguments of the same structure and Python types."""

    def __init__(self, types: tuple[type, ...], has_objects: bool) -> None:
        self.has_objects = has_objects
        self.static = tuple(
            i for i, t in enumerate(types) if not issubclass(t, DYNAMIC) or issubclass(t, bool)
        )
        self.traced = any(issubclass(t, jax.core.Tracer) for t in types)
        self.programs: dict[Any, Program] = {}


def _checked_hashable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        try:
            hash(value)
        except TypeError as error:
            raise LogTypeError(
                f"An argument of type {type(value).__name__} is neither an array nor hashable, so "
                "it can be neither traced nor static. Bind it with `functools.partial` before, or "
                "register its type as a pytree."
            ) from error
    return values


@jax.tree_util.register_pytree_node_class
class _Static:
    """An argument or output that is not an array: it travels in the structure around the arrays."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], _Static]:
        return (), self

    @classmethod
    def tree_unflatten(cls, static: _Static, children: Any) -> _Static:
        del children
        return static

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    @staticmethod
    def is_one(leaf: Any) -> bool:
        return isinstance(leaf, _Static)

    @staticmethod
    def unwrap(leaf: Any) -> Any:
        return leaf.value if isinstance(leaf, _Static) else leaf


def _donated(closed: Jaxpr) -> tuple[int, ...]:
    """Which inputs the function itself donates, by passing them to a jitted function that does."""
    jaxpr, _ = open_jaxpr(closed)
    given: list[int] = []
    for number, var in enumerate(jaxpr.invars):
        uses = [(eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.invars) if v is var]
        if len(uses) == 1 and not any(v is var for v in jaxpr.outvars):
            eqn, i = uses[0]
            construct = anatomy(eqn)
            if isinstance(construct, Jit) and construct.donated[i]:
                given.append(number)
    return tuple(given)
