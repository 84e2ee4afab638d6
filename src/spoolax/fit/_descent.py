"""The way down: what one iteration proposes, and what becomes of it.

A problem is a function that takes the parameters and returns the cost and a triangle: the factor R
of the Jacobian, with the residuals as its last column. However much data there is, and however they
are gone through, that is all that is seen of them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._log.primitive import log
from ._bounds import Bounds, Quadratic, step_inside
from ._trust import stacked, step_within

Problem = Callable[[Any], tuple[Any, Any]]
Entries = dict[str, Any]
POLISH = 10  # Steps after it has converged, as long as they help: they cost little, and add digits.
LOOSE = 1e-7  # A tolerance above this says that digits do not matter.
RUNNING, BAD, MAXIMUM, GRADIENT, COST, STEP, BOTH = -2, -1, 0, 1, 2, 3, 4  # As in SciPy.


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


class State(NamedTuple):
    """Where it is, and how far to trust the linear model there."""

    x: Any
    cost: Any
    r: Any
    scale: Any  # Of the parameters: how much the residuals depend on them, at most so far.
    radius: Any
    optimality: Any
    nfev: Any
    nit: Any
    status: Any
    polishing: Any  # For how many steps.


class Proposal(NamedTuple):
    """Where to go, how long that is in scaled variables, and what it promises."""

    x: Any
    length: Any
    promised: Any


class Descent(NamedTuple):
    """How to go down. `fixed` scales the parameters; None lets the Jacobian do it."""

    bounds: Bounds | None
    fixed: Any
    until: Tolerances

    def start(self, x0: Any) -> State:
        """Nothing is known yet, and so the first proposal is the start itself."""
        x = x0 if self.bounds is None else self.bounds.inside(x0)
        one, none = jnp.ones_like(x), jnp.zeros(x.shape[:-1], jnp.int32)
        flat = jnp.diag(jnp.concatenate([one, jnp.zeros((1,), x.dtype)]))
        far = jnp.asarray(jnp.inf, x.dtype)
        return State(x, far, flat, one, jnp.ones_like(far), far, none, none, none + RUNNING, none)

    def running(self, now: State) -> Any:
        return (now.status == RUNNING) & (now.nfev < self.until.max_nfev)

    def proposed(self, now: State) -> Proposal:
        stretch, r, q = 1 / now.scale, now.r[:-1, :-1], now.r[:-1, -1]
        gradient = r.T @ q
        if self.bounds is None:
            p = step_within(r * stretch[None], q, now.radius)
            change = r @ (stretch * p)
            promised = -(change @ q + 0.5 * change @ change)
            return Proposal(now.x + p * stretch, jnp.linalg.norm(p), promised)
        far, slope = self.bounds.distance(now.x, gradient)
        far = jnp.where(slope != 0, far * now.scale, far)
        stretch = jnp.sqrt(far) * stretch
        curvature = gradient * slope / now.scale
        model = Quadratic(r * stretch[None], gradient * stretch, curvature)
        whole = stacked(model.r, q, jnp.sqrt(curvature))
        p = step_within(whole[:-1, :-1], whole[:-1, -1], now.radius)
        theta = jnp.maximum(0.995, 1 - optimality(now.r, now.x, self.bounds))
        p = step_inside(p, stretch, now.x, self.bounds, now.radius, model, theta)
        x = self.bounds.inside(now.x + p * stretch, margin=0)
        return Proposal(x, jnp.linalg.norm(p), -model.at(p))

    def judged(self, now: State, proposal: Proposal, cost: Any, r: Any) -> tuple[State, Entries]:
        """Go there if it is better; and what there is to tell."""
        until, eps = self.until, jnp.finfo(now.x.dtype).eps
        first = now.nfev == 0
        ok = jnp.isfinite(cost) & jnp.all(jnp.isfinite(r))
        cost = jnp.where(ok, cost, jnp.inf)
        gain = jnp.where(ok, now.cost - cost, -jnp.inf)
        better = gain > 0
        x, length, promised = proposal
        ratio = jnp.where(promised > 0, gain / jnp.where(promised > 0, promised, 1), 0)
        moved, size = jnp.linalg.norm(now.scale * (x - now.x)), jnp.linalg.norm(now.scale * now.x)
        trust = jnp.where(
            ratio < 0.25,
            0.25 * length,
            jnp.where((ratio > 0.75) & (length > 0.95 * now.radius), 2 * now.radius, now.radius),
        )
        by_cost = (gain < until.ftol * now.cost) & (ratio > 0.25)
        by_step = ~first & (moved < until.xtol * size)
        still = (jnp.abs(gain) <= 4 * eps * now.cost) & (promised <= 4 * eps * now.cost)
        exact = ~first & ((moved <= 8 * eps * size) | still)

        x, r = jnp.where(better, x, now.x), jnp.where(better, r, now.r)
        slope = optimality(r, x, self.bounds)
        by_gradient = slope <= until.gtol
        converged = by_cost | by_step | by_gradient
        polishing = jnp.where((now.polishing > 0) | converged, now.polishing + 1, 0)
        enough = exact | (slope <= 0) | ((polishing > 1) & ~better) | (polishing > POLISH)
        enough |= jnp.max(jnp.stack([until.ftol, until.xtol, until.gtol])) > LOOSE
        reason = jnp.where(by_cost, jnp.where(by_step, BOTH, COST), STEP)
        reason = jnp.where(by_gradient, GRADIENT, reason)
        status = jnp.where((polishing > 0) & enough, reason, RUNNING)

        scale = jnp.where(better, self._rescaled(r, jnp.where(first, 0, now.scale)), now.scale)
        after = State(
            x,
            jnp.where(better, cost, now.cost),
            r,
            jnp.where(scale > 0, scale, 1),
            trust,
            slope,
            now.nfev + 1,
            now.nit + (better & ~first).astype(jnp.int32),
            jnp.where(first & ~ok, BAD, status).astype(jnp.int32),
            polishing,
        )
        entries = {
            "cost": after.cost,
            "reduction": jnp.where(better & ~first, gain, 0),
            "step_norm": jnp.where(better, jnp.linalg.norm(x - now.x), 0),
            "optimality": slope,
            "nfev": after.nfev,
        }
        radius = jnp.where(first, self._first_radius(after), trust)
        return after._replace(radius=radius), entries

    def _rescaled(self, r: Any, scale: Any) -> Any:
        return self.fixed if self.fixed is not None else jnp.maximum(scale, _norms(r)[:-1])

    def _first_radius(self, now: State) -> Any:
        """The length of the start itself, in scaled variables."""
        far = jnp.ones_like(now.x)
        if self.bounds is not None:
            far, slope = self.bounds.distance(now.x, now.r[:-1, :-1].T @ now.r[:-1, -1])
            far = jnp.sqrt(jnp.where(slope != 0, far * now.scale, far))
        radius = jnp.linalg.norm(now.scale * now.x / far)
        return jnp.where(radius > 0, radius, 1)

    def solution(self, now: State) -> Solution:
        status = jnp.where(now.status == RUNNING, MAXIMUM, now.status)
        return Solution(now.x, now.cost, now.r, now.optimality, now.nfev, now.nit, status)


def descend(problem: Problem, x0: Any, how: Descent, final: Problem | None = None) -> Solution:
    """Go down from x0, in one loop. `final` makes the triangle of the result."""

    def step(now: State) -> State:
        proposal = how.proposed(now)
        return logged(*how.judged(now, proposal, *problem(proposal.x)))

    found = how.solution(lax.while_loop(how.running, step, how.start(x0)))
    return found if final is None else found._replace(r=final(found.x)[1])


def logged(now: State, entries: Entries) -> State:
    """Log an iteration."""
    log(entries, step=now.nit, tags=("fit",))
    return now


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
