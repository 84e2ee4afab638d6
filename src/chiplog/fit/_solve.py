"""The solver: nonlinear least squares in one loop that compiles, and logs its own iterations.

A problem is a function that takes the parameters and returns the cost and a triangle: the factor R
of the Jacobian, with the residuals as its last column. However much data there is, and however they
are gone through, that is all that the solver sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._log import log
from ._bounds import Bounds, Quadratic, step_inside
from ._loss import Loss, as_squares, checked_loss
from ._triangular import factor
from ._trust import step_within

Problem = Callable[[Any], tuple[Any, Any]]
POLISH = 10  # Steps after it has converged, as long as they help: they cost little, and add digits.
RUNNING, GRADIENT, COST, STEP, BOTH = -1, 1, 2, 3, 4  # As in SciPy; 0 is too many evaluations.


class Tolerances(NamedTuple):
    """When to stop."""

    ftol: Any = 1e-8
    xtol: Any = 1e-8
    gtol: Any = 1e-8
    max_nfev: Any = 1000


class Solution(NamedTuple):
    """What a solver returns: a pytree of arrays, which may be batched."""

    x: Any
    cost: Any
    r: Any  # The triangle at x.
    optimality: Any
    nfev: Any
    nit: Any
    status: Any

    @property
    def success(self) -> Any:
        """Whether it has converged."""
        return self.status > 0


class _Now(NamedTuple):
    x: Any
    cost: Any
    r: Any
    scale: Any  # Of the parameters: how much the residuals depend on them, at most so far.
    radius: Any
    nfev: Any
    nit: Any
    status: Any
    polishing: Any  # For how many steps.


def solve(
    fun: Callable[..., Any],
    x0: Any,
    *,
    bounds: tuple[Any, Any] | None = None,
    jac: Callable[..., Any] | None = None,
    loss: str | Loss = "linear",
    f_scale: Any = 1.0,
    x_scale: Any = "jac",
    ftol: Any = 1e-8,
    xtol: Any = 1e-8,
    gtol: Any = 1e-8,
    max_nfev: Any = 1000,
) -> Solution:
    """Minimize the sum of the squares of residuals: a traced function, for `jit` and `vmap`.

    It logs "cost", "reduction", "step_norm" and "optimality" of every iteration; `spool` or `tap`
    it to see them. The precision is that of `x0`.

    Examples:
        >>> import jax, jax.numpy as jnp, chiplog
        >>> x = jnp.linspace(0, 1, 20)
        >>> def fit(y):
        ...     return chiplog.fit.solve(lambda p: p[0] * jnp.exp(-p[1] * x) - y, jnp.ones(2))
        >>> solution = jax.jit(fit)(2 * jnp.exp(-3 * x))
        >>> [round(float(x), 3) for x in solution.x]
        [2.0, 3.0]
        >>> many = jax.vmap(fit)(jnp.stack([2 * jnp.exp(-k * x) for k in (1, 2)]))
        >>> [round(float(x), 3) for x in many.x[:, 1]]
        [1.0, 2.0]
    """
    x0 = jnp.asarray(x0)
    problem = problem_of(fun, jac, checked_loss(loss), f_scale)
    limits = None if bounds is None else Bounds(*(jnp.broadcast_to(b, x0.shape) for b in bounds))
    fixed = None if isinstance(x_scale, str) else 1 / jnp.broadcast_to(x_scale, x0.shape)
    return descend(problem, x0, limits, fixed, Tolerances(ftol, xtol, gtol, max_nfev))


def problem_of(
    fun: Callable[..., Any], jac: Callable[..., Any] | None, loss: Loss, f_scale: Any
) -> Problem:
    """The problem of a function that returns all residuals."""

    def problem(x: Any) -> tuple[Any, Any]:
        f = fun(x)
        jacobian = jac(x) if jac is not None else jacobian_of(fun, x, len(f))
        costs, rows = as_squares(loss, f, jacobian, f_scale)
        return jnp.sum(costs), factor(rows)

    return problem


def jacobian_of(fun: Callable[..., Any], x: Any, residuals: int) -> Any:
    """The Jacobian: forward if there are no more parameters than residuals, else in reverse."""
    return (jax.jacfwd if len(x) <= residuals else jax.jacrev)(fun)(x)


def descend(
    problem: Problem, x0: Any, bounds: Bounds | None, fixed: Any, until: Tolerances
) -> Solution:
    """Go down from x0. `fixed` scales the parameters; None lets the Jacobian do it."""
    eps = jnp.finfo(x0.dtype).eps

    def evaluated(x: Any) -> tuple[Any, Any]:
        cost, r = problem(x)
        ok = jnp.isfinite(cost) & jnp.all(jnp.isfinite(r))
        return jnp.where(ok, cost, jnp.inf), r

    def rescaled(r: Any, scale: Any) -> Any:
        return fixed if fixed is not None else jnp.maximum(scale, _norms(r)[:-1])

    def proposed(now: _Now) -> tuple[Any, Any, Any]:
        """The next point, the length of the step in scaled variables, and what it promises."""
        stretch, r, q = 1 / now.scale, now.r[:-1, :-1], now.r[:-1, -1]
        gradient = r.T @ q
        if bounds is None:
            p = step_within(r * stretch[None], q, now.radius)
            change = r @ (stretch * p)
            return now.x + p * stretch, jnp.linalg.norm(p), -(change @ q + 0.5 * change @ change)
        far, slope = bounds.distance(now.x, gradient)
        far = jnp.where(slope != 0, far * now.scale, far)
        stretch = jnp.sqrt(far) * stretch
        curvature = gradient * slope / now.scale
        model = Quadratic(r * stretch[None], gradient * stretch, curvature)
        corner = jnp.diag(jnp.sqrt(curvature))
        below = jnp.concatenate([corner, jnp.zeros((len(q), 1), q.dtype)], 1)
        whole = factor(jnp.concatenate([jnp.column_stack([model.r, q]), below]))
        p = step_within(whole[:-1, :-1], whole[:-1, -1], now.radius)
        theta = jnp.maximum(0.995, 1 - optimality(now.r, now.x, bounds))
        p = step_inside(p, stretch, now.x, bounds, now.radius, model, theta)
        x = bounds.inside(now.x + p * stretch, margin=0)
        return x, jnp.linalg.norm(p), -model.at(p)

    def step(now: _Now) -> _Now:
        x, length, promised = proposed(now)
        cost, r = evaluated(x)
        gain = now.cost - cost
        ratio = jnp.where(promised > 0, gain / jnp.where(promised > 0, promised, 1), 0)
        better = gain > 0
        radius = jnp.where(
            ratio < 0.25,
            0.25 * length,
            jnp.where((ratio > 0.75) & (length > 0.95 * now.radius), 2 * now.radius, now.radius),
        )
        r = jnp.where(better, r, now.r)
        moved, size = jnp.linalg.norm(now.scale * (x - now.x)), jnp.linalg.norm(now.scale * now.x)
        slope = optimality(r, jnp.where(better, x, now.x), bounds)
        by_cost = (gain < until.ftol * now.cost) & (ratio > 0.25)
        by_step = moved < until.xtol * (until.xtol + size)
        by_gradient = slope <= until.gtol
        converged = by_cost | by_step | by_gradient
        polishing = jnp.where((now.polishing > 0) | converged, now.polishing + 1, 0)
        exact = (moved <= 8 * eps * size) | (
            (jnp.abs(gain) <= 4 * eps * now.cost) & (promised <= 4 * eps * now.cost)
        )
        done = (polishing > 0) & (exact | ((polishing > 1) & ~better) | (polishing > POLISH))
        reason = jnp.where(by_cost, jnp.where(by_step, BOTH, COST), STEP)
        reason = jnp.where(by_gradient, GRADIENT, reason).astype(jnp.int32)
        nit = now.nit + better.astype(jnp.int32)
        log(
            {
                "cost": jnp.where(better, cost, now.cost),
                "reduction": jnp.where(better, gain, 0),
                "step_norm": jnp.where(better, jnp.linalg.norm(x - now.x), 0),
                "optimality": slope,
                "nfev": now.nfev + 1,
            },
            step=nit,
            tags=("fit",),
        )
        return _Now(
            jnp.where(better, x, now.x),
            jnp.where(better, cost, now.cost),
            r,
            jnp.where(better, rescaled(r, now.scale), now.scale),
            radius,
            now.nfev + 1,
            nit,
            jnp.where(done, reason, RUNNING),
            polishing,
        )

    x0 = x0 if bounds is None else bounds.inside(x0)
    cost, r = evaluated(x0)
    scale = rescaled(r, jnp.zeros_like(x0))
    scale = jnp.where(scale > 0, scale, 1)
    far = 1.0
    if bounds is not None:
        far, slope = bounds.distance(x0, r[:-1, :-1].T @ r[:-1, -1])
        far = jnp.sqrt(jnp.where(slope != 0, far * scale, far))
    radius = jnp.linalg.norm(scale * x0 / far)
    radius = jnp.where(radius > 0, radius, 1)
    at_once = optimality(r, x0, bounds) <= 0
    status = jnp.where(at_once, jnp.int32(GRADIENT), jnp.int32(RUNNING))
    one = jnp.ones_like(status)
    now = _Now(x0, cost, r, scale, radius, one, 0 * one, status, 0 * one)
    now = lax.while_loop(lambda n: (n.status == RUNNING) & (n.nfev < until.max_nfev), step, now)
    status = jnp.where(now.status != RUNNING, now.status, 0)
    slope = optimality(now.r, now.x, bounds)
    return Solution(now.x, now.cost, now.r, slope, now.nfev, now.nit, status)


def optimality(r: Any, x: Any, bounds: Bounds | None) -> Any:
    """The largest cosine between the residuals and a column of the Jacobian: it has no units."""
    norms = _norms(r)
    size = norms[:-1] * norms[-1]
    gradient = r[:-1, :-1].T @ r[:-1, -1]
    cosines = jnp.abs(gradient) / jnp.where(size > 0, size, 1)
    if bounds is not None:
        far, slope = bounds.distance(x, gradient)
        near = far / jnp.maximum(jnp.abs(x), 1)  # At a bound, the gradient may lead out.
        cosines = jnp.where(slope != 0, cosines * jnp.minimum(near, 1), cosines)
    return jnp.max(jnp.where(size > 0, cosines, 0))


def _norms(r: Any) -> Any:
    return jnp.sqrt(jnp.sum(r**2, 0))
