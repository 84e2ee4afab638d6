"""What constructs with programs inside are made of: one table for everything that looks into them.

Every parameter of a JAX primitive that spoolax reads is read here. To teach spoolax another
construct, add its anatomy to the table, and a rule to `_walk`. For a construct that is not in
the table, only its programs are known.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from .primitives import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    call_primitives,
    cond_p,
    custom_jvp_call_p,
    custom_vjp_call_p,
    custom_vmap_p,
    hi_primitive_p,
    jit_p,
    linear_solve_p,
    open_jaxpr,
    remat_p,
    scan_p,
    shard_map_p,
    while_p,
)
from .tracing import trace


@dataclasses.dataclass(eq=False, repr=False)
class Anatomy:
    """The programs of a construct: those that run with it, in order, and the others."""

    programs: tuple[Jaxpr, ...]
    idle: tuple[Jaxpr, ...] = dataclasses.field(default=(), kw_only=True)

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Self:
        """Take apart an equation that is of this kind."""
        found = anatomy(eqn)
        assert isinstance(found, cls)
        return found


@dataclasses.dataclass(eq=False, repr=False)
class Call(Anatomy):
    """A call of one function, which can be looked into."""

    @property
    def function(self) -> Jaxpr:
        """What is called."""
        return self.programs[0]


@dataclasses.dataclass(eq=False, repr=False)
class Jit(Call):
    """`jax.jit`."""

    name: str
    inline: bool
    donated: Sequence[bool]
    in_shardings: Sequence[Any]
    out_shardings: Sequence[Any]


@dataclasses.dataclass(eq=False, repr=False)
class Checkpoint(Call):
    """`jax.checkpoint`; `is_repeated` in the backward pass, where it runs a second time."""

    is_repeated: bool
    prevent_cse: Any
    policy: Any


@dataclasses.dataclass(eq=False, repr=False)
class Loop(Anatomy):
    """A construct that runs its last program again and again."""

    @property
    def body(self) -> Jaxpr:
        """What runs in every iteration."""
        return self.programs[-1]


@dataclasses.dataclass(eq=False, repr=False)
class Scan(Loop):
    """`jax.lax.scan`: how many inputs are constants, how many are carried, and the rest of it."""

    consts: int
    carry: int
    length: int  # How many iterations it makes: a number, or symbolic under `jax.export`.
    options: dict[str, Any]  # What else `jax.lax.scan` is to be called with again.

    @property
    def reverse(self) -> bool:
        """Whether it runs backwards."""
        return self.options["reverse"]  # type: ignore[no-any-return]

    @property
    def unroll(self) -> int:
        """How many iterations the user wants as one."""
        return self.options["unroll"]  # type: ignore[no-any-return]


@dataclasses.dataclass(eq=False, repr=False)
class While(Loop):
    """`jax.lax.while_loop`: how many of its inputs are constants of the test, and of the body."""

    test_consts: int
    body_consts: int

    @property
    def test(self) -> Jaxpr:
        """What says whether to go on."""
        return self.programs[0]

    @property
    def is_batched(self) -> bool:
        """Whether the test has an answer for each lane, as under `vmap`."""
        return bool(open_jaxpr(self.test)[0].outvars[0].aval.shape)

    @property
    def selection(self) -> tuple[int, Primitive] | None:
        """How the body itself says which lanes go on, if it does.

        So do the loops of equinox: under `vmap`, their test is the same for all lanes, and what the
        body changes is `select_if_vmap(flag, new, old)`, which selects just if lanes differ.
        Returns the number of the carried value that is the flag, and that primitive.
        """
        jaxpr, _ = open_jaxpr(self.body)
        carried = {var: i for i, var in enumerate(jaxpr.invars[self.body_consts :])}
        for eqn in jaxpr.eqns:
            first = eqn.invars[0] if eqn.invars else None
            if isinstance(first, Literal) or first not in carried:
                continue
            if eqn.primitive.name == "select_if_vmap":
                return carried[first], eqn.primitive
            if eqn.primitive.name == "copy":
                carried[eqn.outvars[0]] = carried[first]
        return None

    def params(self) -> dict[str, Any]:
        """The parameters of such a loop, for JAX's own rules."""
        return {
            "cond_nconsts": self.test_consts,
            "cond_jaxpr": self.test,
            "body_nconsts": self.body_consts,
            "body_jaxpr": self.body,
        }


@dataclasses.dataclass(eq=False, repr=False)
class Cond(Anatomy):
    """`jax.lax.cond` and `switch`: one of the programs runs. Which may depend on the platform."""

    by_platform: bool

    @staticmethod
    def with_branches(params: dict[str, Any], branches: Sequence[Jaxpr]) -> dict[str, Any]:
        """The parameters of a conditional with other branches, for JAX's own rules."""
        return {**params, "branches": tuple(branches)}


@dataclasses.dataclass(eq=False, repr=False)
class LinearSolve(Anatomy):
    """`jax.lax.custom_linear_solve`: only the solver runs."""

    jaxprs: Any
    const_lengths: Any


@dataclasses.dataclass(eq=False, repr=False)
class ShardMap(Anatomy):
    """`jax.shard_map`."""

    mesh: Any
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    axes: frozenset[str]
    check_vma: bool


def anatomy(eqn: JaxprEqn) -> Anatomy | None:
    """Take an equation apart. None: there is no program inside it."""
    if eqn.primitive in _ANATOMIES:
        return _ANATOMIES[eqn.primitive](eqn)
    for is_one, take_apart in _KINDS:
        if is_one(eqn):
            return take_apart(eqn)
    programs = tuple(_jaxprs_in(eqn.params))
    return Anatomy(programs) if programs else None


def add_kind(
    is_one: Callable[[JaxprEqn], bool], take_apart: Callable[[JaxprEqn], Anatomy | None]
) -> None:
    """Add a kind of equations that are not known by their primitive, but by a test."""
    _KINDS.append((is_one, take_apart))


def programs_in(eqn: JaxprEqn) -> tuple[Jaxpr, ...]:
    """List every program inside an equation, whether it runs or not."""
    found = anatomy(eqn)
    return () if found is None else (*found.programs, *found.idle)


def contracted(eqn: JaxprEqn) -> int:
    """How many products are summed for each number that an equation returns."""
    if eqn.primitive.name != "dot_general":
        return 1
    (axes, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in axes)


def _jaxprs_in(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns"):
                yield item


def _scan(eqn: JaxprEqn) -> Scan:
    params = eqn.params
    if "ft_in" in params:  # Since 0.11.
        consts, carry, _ = (len(list(part)) for part in params["ft_in"].unpack())
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    names = ("reverse", "unroll", "_split_transpose")
    options = {name: params[name] for name in names if name in params}
    length = params["length"]
    length = int(length) if isinstance(length, np.integer) else length
    return Scan((params["jaxpr"],), consts, carry, length, options)


def _while(eqn: JaxprEqn) -> While:
    params = eqn.params
    programs = params["cond_jaxpr"], params["body_jaxpr"]
    return While(programs, params["cond_nconsts"], params["body_nconsts"])


def _cond(eqn: JaxprEqn) -> Cond:
    return Cond(tuple(eqn.params["branches"]), "branches_platforms" in eqn.params)


def _jit(eqn: JaxprEqn) -> Jit:
    names = ("name", "inline", "donated_invars", "in_shardings", "out_shardings")
    return Jit((eqn.params["jaxpr"],), *(eqn.params[name] for name in names))


def _checkpoint(eqn: JaxprEqn) -> Checkpoint:
    names = ("differentiated", "prevent_cse", "policy")
    return Checkpoint((eqn.params["jaxpr"],), *(eqn.params[name] for name in names))


def _call(eqn: JaxprEqn) -> Call:
    return Call((eqn.params["call_jaxpr"],))


def _custom_vmap(eqn: JaxprEqn) -> Anatomy:
    return Anatomy((eqn.params["call"],))


def _linear_solve(eqn: JaxprEqn) -> LinearSolve:
    jaxprs = eqn.params["jaxprs"]
    idle = tuple(one for one in jaxprs if one is not None and one is not jaxprs.solve)
    return LinearSolve((jaxprs.solve,), jaxprs, eqn.params["const_lengths"], idle=idle)


def _shard_map(eqn: JaxprEqn) -> ShardMap:
    params = eqn.params
    axes = params["manual_axes" if "manual_axes" in params else "newly_manual_axes"]  # 0.10.1
    specs = tuple(params["in_specs"]), tuple(params["out_specs"])
    return ShardMap(
        (params["jaxpr"],), params["mesh"], *specs, frozenset(axes), params["check_vma"]
    )


def _high_level(eqn: JaxprEqn) -> Anatomy | None:
    """What a high-level primitive of JAX computes (`custom_root` is one since 0.12)."""
    if not eqn.effects:
        return None
    primitive = eqn.params["_prim"]
    if primitive not in _expanded:

        def flat(*args: Any) -> list[Any]:
            out = primitive.expand(*jax.tree.unflatten(primitive.in_tree, args))
            return jax.tree.leaves(out)  # type: ignore[no-any-return]

        _expanded[primitive] = trace(flat, [atom.aval for atom in eqn.invars])
    return Anatomy((_expanded[primitive],))


_expanded: weakref.WeakKeyDictionary[Any, Jaxpr] = weakref.WeakKeyDictionary()


_KINDS: list[tuple[Callable[[JaxprEqn], bool], Callable[[JaxprEqn], Anatomy | None]]] = []
_ANATOMIES: dict[Primitive, Callable[[JaxprEqn], Anatomy | None]] = {
    scan_p: _scan,
    while_p: _while,
    cond_p: _cond,
    jit_p: _jit,
    remat_p: _checkpoint,
    custom_jvp_call_p: _call,
    custom_vjp_call_p: _call,
    **dict.fromkeys(call_primitives, _call),
    custom_vmap_p: _custom_vmap,
    linear_solve_p: _linear_solve,
    shard_map_p: _shard_map,
    hi_primitive_p: _high_level,
}
