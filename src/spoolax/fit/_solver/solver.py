"""The solver: what an iteration proposes, when a proposal is accepted, and when to stop.

A problem is a function that maps the parameters to the cost and to a triangular factor: the factor
R of the Jacobian, with the residuals as its last column. However many data there are, and wherever
they are, that is all the solver sees of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ..._log.primitive import log
from .bounds import Bounds, Quadratic, step_inside
from .trust_region import factor_with_diagonal, trust_region_step

Problem = Callable[[Any], tuple[Any, Any]]
Entries = dict[str, Any]
MAX_POLISH = 10  # Steps after convergence, while they help: they cost little and add digits.
LOOSE = 1e-7  # A tolerance above this means that more digits are not wanted.
# As in SciPy; a fit that is still running has no code there.
RUNNING, NOT_FINITE, MAX_NFEV, GRADIENT, COST, STEP, COST_AND_STEP = -2, -1, 0, 1, 2, 3, 4


class Tolerances(NamedTuple):
    """When to stop."""

    ftol: Any
    xtol: Any
    gtol: Any
    max_nfev: Any


class Solution(NamedTuple):
    """What the solver returns: a pytree of arrays, which may be batched.

    Examples:
        >>> import jax.numpy as jnp, spoolax
        >>> solution = spoolax.fit.solve(lambda p: p - 3, jnp.ones(1))
        >>> float(solution.x[0]), bool(solution.success)
        (3.0, True)
    """

    x: Any
    cost: Any
    r: Any  # The triangular factor at x.
    optimality: Any
    nfev: Any
    nit: Any
    status: Any

    @property
    def success(self) -> Any:
        """Whether it has converged."""
        return self.status > 0


class SolverState(NamedTuple):
    """The best parameters so far, and the trust region around them."""

    x: Any
    cost: Any
    r: Any
    scale: Any  # Of the parameters: the largest norms of the columns of the Jacobian so far.
    radius: Any
    optimality: Any
    nfev: Any
    nit: Any
    status: Any
    polish: Any  # Steps since convergence, counted from 1.


class Proposal(NamedTuple):
    """The parameters to try next, the length of that step, and the decrease it promises."""

    x: Any
    length: Any  # In scaled variables.
    promised: Any


class Solver(NamedTuple):
    """A trust-region method: a pytree of settings, with the parts of an iteration as methods."""

    bounds: Bounds | None
    x_scale: Any  # The scales of the parameters; None takes them from the Jacobian.
    tolerances: Tolerances

    def init(self, x0: Any) -> SolverState:
        """Return the state before the first evaluation: the first proposal is x0 itself."""
        x = x0 if self.bounds is None else self.bounds.clip_inside(x0)
        one, zero = jnp.ones_like(x), jnp.zeros(x.shape[:-1], jnp.int32)
        flat = jnp.diag(jnp.concatenate([one, jnp.zeros((1,), x.dtype)]))
        inf = jnp.asarray(jnp.inf, x.dtype)
        unit = jnp.ones_like(inf)
        return SolverState(x, inf, flat, one, unit, inf, zero, zero, zero + RUNNING, zero)

    def is_running(self, state: SolverState) -> Any:
        """Return whether there is something left to do."""
        return (state.status == RUNNING) & (state.nfev < self.tolerances.max_nfev)

    def propose(self, state: SolverState) -> Proposal:
        """Return the parameters to evaluate next."""
        scale, r, q = 1 / state.scale, state.r[:-1, :-1], state.r[:-1, -1]
        gradient = r.T @ q
        if self.bounds is None:
            p = trust_region_step(r * scale[None], q, state.radius)
            change = r @ (scale * p)
            promised = -(change @ q + 0.5 * change @ change)
            return Proposal(state.x + p * scale, jnp.linalg.norm(p), promised)
        distance, derivative = self._scaled_distance(state, gradient)
        scale = jnp.sqrt(distance) * scale
        curvature = gradient * derivative / state.scale
        model = Quadratic(r * scale[None], gradient * scale, curvature)
        whole = factor_with_diagonal(model.r, q, jnp.sqrt(curvature))
        p = trust_region_step(whole[:-1, :-1], whole[:-1, -1], state.radius)
        theta = jnp.maximum(0.995, 1 - optimality(state.r, state.x, self.bounds))
        p = step_inside(p, scale, state.x, self.bounds, state.radius, model, theta)
        x = self.bounds.clip_inside(state.x + p * scale, margin=0)
        return Proposal(x, jnp.linalg.norm(p), -model.at(p))

    def update(
        self, state: SolverState, proposal: Proposal, cost: Any, r: Any
    ) -> tuple[SolverState, Entries]:
        """Accept a proposal if it lowers the cost. Return the next state, and what to log."""
        until, eps = self.tolerances, jnp.finfo(state.x.dtype).eps
        first = state.nfev == 0
        ok = jnp.isfinite(cost) & jnp.all(jnp.isfinite(r))
        cost = jnp.where(ok, cost, jnp.inf)
        gain = jnp.where(ok, state.cost - cost, -jnp.inf)
        better = gain > 0
        x, length, promised = proposal
        ratio = jnp.where(promised > 0, gain / jnp.where(promised > 0, promised, 1), 0)
        moved = jnp.linalg.norm(state.scale * (x - state.x))
        size = jnp.linalg.norm(state.scale * state.x)
        by_cost = (gain < until.ftol * state.cost) & (ratio > 0.25)
        by_step = ~first & (moved < until.xtol * size)
        still = (jnp.abs(gain) <= 4 * eps * state.cost) & (promised <= 4 * eps * state.cost)
        exact = ~first & ((moved <= 8 * eps * size) | still)

        x, r = jnp.where(better, x, state.x), jnp.where(better, r, state.r)
        cosine = optimality(r, x, self.bounds)
        by_gradient = cosine <= until.gtol
        converged = by_cost | by_step | by_gradient
        polish = jnp.where((state.polish > 0) | converged, state.polish + 1, 0)
        enough = exact | (cosine <= 0) | ((polish > 1) & ~better) | (polish > MAX_POLISH)
        enough |= jnp.max(jnp.stack([until.ftol, until.xtol, until.gtol])) > LOOSE
        reason = jnp.where(by_cost, jnp.where(by_step, COST_AND_STEP, COST), STEP)
        reason = jnp.where(by_gradient, GRADIENT, reason)
        status = jnp.where((polish > 0) & enough, reason, RUNNING)

        scale = jnp.where(better, self._scale(r, jnp.where(first, 0, state.scale)), state.scale)
        radius = _next_radius(state.radius, ratio, length)
        after = SolverState(
            x,
            jnp.where(better, cost, state.cost),
            r,
            jnp.where(scale > 0, scale, 1),
            radius,
            cosine,
            state.nfev + 1,
            state.nit + (better & ~first).astype(jnp.int32),
            jnp.where(first & ~ok, NOT_FINITE, status).astype(jnp.int32),
            polish,
        )
        entries = {
            "cost": after.cost,
            "reduction": jnp.where(better & ~first, gain, 0),
            "step_norm": jnp.where(better, jnp.linalg.norm(x - state.x), 0),
            "optimality": cosine,
            "nfev": after.nfev,
        }
        radius = jnp.where(first, self._first_radius(after), radius)
        return after._replace(radius=radius), entries

    def solution(self, state: SolverState) -> Solution:
        """Return what has been found."""
        status = jnp.where(state.status == RUNNING, MAX_NFEV, state.status)
        found = state.x, state.cost, state.r, state.optimality, state.nfev, state.nit
        return Solution(*found, status)

    def _scale(self, r: Any, scale: Any) -> Any:
        if self.x_scale is not None:
            return 1 / self.x_scale
        return jnp.maximum(scale, _norms(r)[:-1])

    def _first_radius(self, state: SolverState) -> Any:
        """Return the length of the start itself, in scaled variables."""
        distance = jnp.ones_like(state.x)
        if self.bounds is not None:
            gradient = state.r[:-1, :-1].T @ state.r[:-1, -1]
            distance = jnp.sqrt(self._scaled_distance(state, gradient)[0])
        radius = jnp.linalg.norm(state.scale * state.x / distance)
        return jnp.where(radius > 0, radius, 1)

    def _scaled_distance(self, state: SolverState, gradient: Any) -> tuple[Any, Any]:
        """Return the distances to the bounds in scaled variables, and their derivatives by x."""
        assert self.bounds is not None
        distance, derivative = self.bounds.distance(state.x, gradient)
        return jnp.where(derivative != 0, distance * state.scale, distance), derivative


def minimize(problem: Problem, x0: Any, solver: Solver, final: Problem | None = None) -> Solution:
    """Solve a problem in one loop. `final` computes the triangular factor of the result."""

    def step(state: SolverState) -> SolverState:
        proposal = solver.propose(state)
        return log_iteration(*solver.update(state, proposal, *problem(proposal.x)))

    found = solver.solution(lax.while_loop(solver.is_running, step, solver.init(x0)))
    return found if final is None else found._replace(r=final(found.x)[1])


def log_iteration(state: SolverState, entries: Entries) -> SolverState:
    """Log an iteration, and return its state."""
    log(entries, step=state.nit, tags=("fit",))
    return state


def optimality(r: Any, x: Any, bounds: Bounds | None) -> Any:
    """Return the largest cosine between the residuals and a column of the Jacobian: no units."""
    norms = _norms(r)
    size = norms[:-1] * norms[-1]
    gradient = r[:-1, :-1].T @ r[:-1, -1]
    cosines = jnp.abs(gradient) / jnp.where(size > 0, size, 1)
    if bounds is not None:
        distance, derivative = bounds.distance(x, gradient)
        near = distance / jnp.maximum(jnp.abs(x), 1)  # At a bound, the gradient may point outside.
        cosines = jnp.where(derivative != 0, cosines * jnp.minimum(near, 1), cosines)
    return jnp.max(jnp.where(size > 0, cosines, 0))


def _next_radius(radius: Any, ratio: Any, length: Any) -> Any:
    """Shrink or grow the trust region, by the ratio of the decrease to the promised one."""
    grown = jnp.where((ratio > 0.75) & (length > 0.95 * radius), 2 * radius, radius)
    return jnp.where(ratio < 0.25, 0.25 * length, grown)


def _norms(r: Any) -> Any:
    return jnp.sqrt(jnp.sum(r**2, 0))
