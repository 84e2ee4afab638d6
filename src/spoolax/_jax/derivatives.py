"""Derivatives of functions, with zeros that are known to be zero kept apart from numbers.

`jax.jvp` and `jax.vjp` turn them into arrays of zeros, but derivative rules may ask for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.interpreters import ad
from jax.custom_derivatives import SymbolicZero


def zero_tangents(tree: Any) -> Any:
    """Return tangents for values that do not depend on anything."""
    return jax.tree.map(lambda x: SymbolicZero(jax.typeof(x).to_tangent_aval()), tree)


def jvp(
    function: Callable[..., list[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the results of a function and their tangents, as `jax.jvp` does.

    A tangent that is a `SymbolicZero`, given or returned, stands for one.
    """
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not SymbolicZero]
    zero: list[bool] = []

    @jax.custom_jvp
    def look(*outs: Any) -> tuple[Any, ...]:
        return outs

    def see(outs: Any, tangents: Any) -> tuple[Any, Any]:
        zero[:] = [type(tangent) is SymbolicZero for tangent in tangents]
        return outs, tangents

    look.defjvp(see, symbolic_zeros=True)

    def moved(*given: Any) -> tuple[Any, ...]:
        return look(*function(*_filled(primals, moving, given)))  # type: ignore[no-any-return]

    outs, out_tangents = jax.jvp(moved, [primals[i] for i in moving], [tangents[i] for i in moving])
    is_zero = zero or [True] * len(outs)  # Nobody looks if all of them are.
    return list(outs), [
        zero_tangents(out) if z else tangent
        for out, tangent, z in zip(outs, out_tangents, is_zero, strict=True)
    ]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PullBack:
    """What `jax.vjp` returns, for some of the arguments of a function."""

    vjp: Any
    moving: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    types: tuple[Any, ...] = dataclasses.field(metadata={"static": True})  # Of all arguments.

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        """Return a cotangent for each argument. None, and a given `SymbolicZero`, are zero."""
        given = [ad.Zero(ct.aval) if type(ct) is SymbolicZero else ct for ct in cotangents]
        types = [self.types[i].to_tangent_aval() for i in self.moving]
        if jax.__version_info__ >= (0, 10, 2):
            sums = [ad.ValAccum(aval.to_ct_aval()) for aval in types]
            self.vjp.with_refs(*sums)(given)
        else:  # It takes arrays only, but what it calls takes zeros.
            sums = list(map(ad.ValAccum, types))
            bound = self.vjp.with_refs(*sums)
            _, _, known, jaxpr, _ = bound.func.args
            given = [ct for ct, is_known in zip(given, known, strict=True) if not is_known]
            ad.backward_pass3(jaxpr, True, bound.args[0], sums, given)
        found = [None if type(ct := one.freeze()) is ad.Zero else ct for one in sums]
        return _filled([None] * len(self.types), self.moving, found)


def vjp(
    function: Callable[..., list[Any]], args: Sequence[Any], perturbed: Sequence[bool]
) -> tuple[list[Any], PullBack]:
    """Return the results of a function, and its derivative by the arguments that are perturbed."""
    moving = tuple(i for i, is_perturbed in enumerate(perturbed) if is_perturbed)
    outs, pull_back = jax.vjp(
        lambda *given: function(*_filled(args, moving, given)), *(args[i] for i in moving)
    )
    return outs, PullBack(pull_back, moving, tuple(map(jax.typeof, args)))


def without_zeros(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """List the arrays of a pytree that is to cross a trace, where zeros would become arrays.

    Returns them, and a function that puts the pytree together from others in their place.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: type(x) is SymbolicZero)
    places = [i for i, leaf in enumerate(leaves) if type(leaf) is not SymbolicZero]
    arrays = [leaves[i] for i in places]
    return arrays, lambda given: jax.tree.unflatten(structure, _filled(leaves, places, given))


def _filled(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Put new values in some places of a list."""
    _filled = list(values)
    for place, value in zip(places, new, strict=True):
        _filled[place] = value
    return _filled
