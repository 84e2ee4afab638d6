"""Steps that keep to bounds: Coleman and Li's scaling, and reflection at a bound.

Close to a bound that the gradient leads to, the variables are stretched, so that the region of
trust becomes flat there. A step that would leave is reflected, shortened, or replaced by one along
the gradient, whichever promises most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp


class Bounds(NamedTuple):
    """Where the parameters have to stay."""

    low: Any
    high: Any

    def inside(self, x: Any, margin: float = 1e-10) -> Any:
        """The closest point that is strictly inside."""
        near_low = jnp.nextafter(self.low, self.high)
        near_high = jnp.nextafter(self.high, self.low)
        if margin:
            near_low = self.low + margin * jnp.maximum(1, jnp.abs(self.low))
            near_high = self.high - margin * jnp.maximum(1, jnp.abs(self.high))
        moved = jnp.where(x <= self.low, near_low, jnp.where(x >= self.high, near_high, x))
        middle = 0.5 * (self.low + self.high)
        ok = (moved > self.low) & (moved < self.high)
        return jnp.where(ok, moved, middle)

    def distance(self, x: Any, gradient: Any) -> tuple[Any, Any]:
        """How far the bound is that the gradient leads to (1 if there is none), and its slope."""
        up = (gradient < 0) & jnp.isfinite(self.high)
        down = (gradient > 0) & jnp.isfinite(self.low)
        far = jnp.where(up, self.high - x, jnp.where(down, x - self.low, 1))
        slope = jnp.where(up, -1, jnp.where(down, 1, 0)).astype(x.dtype)
        return far, slope

    def reach(self, x: Any, p: Any) -> tuple[Any, Any]:
        """How many times p one can go before a bound is hit, and which ones are."""
        moving = jnp.where(p != 0, p, 1)
        times = jnp.maximum((self.low - x) / moving, (self.high - x) / moving)
        times = jnp.where(p != 0, times, jnp.inf)
        least = jnp.min(times)
        return least, (times == least) & (p != 0)


class Quadratic(NamedTuple):
    """What the cost is expected to change by: p g + (|R p|^2 + p C p) / 2."""

    r: Any
    gradient: Any
    curvature: Any

    def at(self, p: Any) -> Any:
        """Its value."""
        return p @ self.gradient + 0.5 * self._square(p, p)

    def least_along(self, p: Any, start: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """The times p to go from a start, between two bounds, for the least value; and that."""
        a = 0.5 * self._square(p, p)
        b = p @ self.gradient + self._square(p, start)
        bottom = jnp.clip(jnp.where(a > 0, -0.5 * b / jnp.where(a > 0, a, 1), low), low, high)
        times = jnp.stack([jnp.asarray(low, p.dtype), jnp.asarray(high, p.dtype), bottom])
        values = times * (a * times + b) + self.at(start)
        best = jnp.argmin(values)
        return times[best], values[best]

    def _square(self, p: Any, q: Any) -> Any:
        return (self.r @ p) @ (self.r @ q) + p @ (self.curvature * q)


def step_inside(
    p: Any, stretch: Any, x: Any, bounds: Bounds, radius: Any, model: Quadratic, theta: Any
) -> Any:
    """A step in stretched variables that keeps to the bounds, given one that might not."""
    reach, hit = bounds.reach(x, p * stretch)
    straight = p * jnp.minimum(reach, 1)
    margin = (1 - theta) * jnp.minimum(reach, 1)
    other = jnp.where(hit, -p, p)
    turned = _reflected(straight, other, stretch, x, bounds, radius, model, margin)
    shorter = theta * straight
    steepest = -model.gradient
    size = jnp.linalg.norm(steepest)
    to_bound, _ = bounds.reach(x, steepest * stretch)
    to_end = radius / jnp.where(size > 0, size, 1)
    along, value = model.least_along(
        steepest, jnp.zeros_like(p), 0.0, jnp.where(to_bound < to_end, theta * to_bound, to_end)
    )
    steps = jnp.stack([turned[0], shorter, along * steepest])
    values = jnp.stack([turned[1], model.at(shorter), value])
    best = steps[jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))]
    return jnp.where(reach > 1, p, best)


def _reflected(
    p: Any,
    turned: Any,
    stretch: Any,
    x: Any,
    bounds: Bounds,
    radius: Any,
    model: Quadratic,
    margin: Any,
) -> tuple[Any, Any]:
    """Go on from a bound in another direction, and what that promises."""
    a, b = turned @ turned, p @ turned
    c = jnp.minimum(p @ p - radius**2, 0)
    root = jnp.sqrt(jnp.maximum(b * b - a * c, 0))
    to_end = jnp.where(a > 0, (root - b) / jnp.where(a > 0, a, 1), 0)
    to_bound, _ = bounds.reach(x + p * stretch, turned * stretch)
    most = jnp.minimum(to_bound, to_end)
    low = jnp.where(most > 0, margin / jnp.where(most > 0, most, 1), 0)
    high = jnp.where(to_bound < to_end, (1 - margin) * to_bound, to_end)
    possible = (most > 0) & (low <= high)
    times, value = model.least_along(turned, p, jnp.where(possible, low, 0), jnp.maximum(high, 0))
    return p + times * turned, jnp.where(possible, value, jnp.inf)
