"""Steps within bounds: Coleman and Li's scaling, and reflection at a bound.

Near a bound that the gradient points to, the variables are scaled so that the trust region becomes
flat there. A step that would cross a bound is reflected, shortened, or replaced by one along the
gradient, whichever promises the largest decrease.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp


class Bounds(NamedTuple):
    """The lower and upper bounds of the parameters."""

    low: Any
    high: Any

    def clip_inside(self, x: Any, margin: float = 1e-10) -> Any:
        """Return the closest point that is strictly inside."""
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
        """Return the distance to the bound that the gradient points to, and its derivative by x.

        Where there is no such bound, they are 1 and 0.
        """
        up = (gradient < 0) & jnp.isfinite(self.high)
        down = (gradient > 0) & jnp.isfinite(self.low)
        distance = jnp.where(up, self.high - x, jnp.where(down, x - self.low, 1))
        derivative = jnp.where(up, -1, jnp.where(down, 1, 0)).astype(x.dtype)
        return distance, derivative

    def reach(self, x: Any, p: Any) -> tuple[Any, Any]:
        """Return the multiple of p at which a bound is hit, and which parameters hit theirs."""
        moving = jnp.where(p != 0, p, 1)
        times = jnp.maximum((self.low - x) / moving, (self.high - x) / moving)
        times = jnp.where(p != 0, times, jnp.inf)
        least = jnp.min(times)
        return least, (times == least) & (p != 0)


class Quadratic(NamedTuple):
    """The predicted change of the cost: p g + (|R p|^2 + p C p) / 2."""

    r: Any
    gradient: Any
    curvature: Any

    def at(self, p: Any) -> Any:
        """Return its value."""
        return p @ self.gradient + 0.5 * self._product(p, p)

    def minimum_along(self, p: Any, start: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """Return the multiple of p, from low to high, to add to a start for the least value.

        The value comes with it.
        """
        a = 0.5 * self._product(p, p)
        b = p @ self.gradient + self._product(p, start)
        bottom = jnp.clip(jnp.where(a > 0, -0.5 * b / jnp.where(a > 0, a, 1), low), low, high)
        times = jnp.stack([jnp.asarray(low, p.dtype), jnp.asarray(high, p.dtype), bottom])
        values = times * (a * times + b) + self.at(start)
        best = jnp.argmin(values)
        return times[best], values[best]

    def _product(self, p: Any, q: Any) -> Any:
        return (self.r @ p) @ (self.r @ q) + p @ (self.curvature * q)


def step_inside(
    p: Any, scale: Any, x: Any, bounds: Bounds, radius: Any, model: Quadratic, theta: Any
) -> Any:
    """Return a step in scaled variables that keeps to the bounds, given one that might not."""
    reach, hit = bounds.reach(x, p * scale)
    to_bound = p * jnp.minimum(reach, 1)
    margin = (1 - theta) * jnp.minimum(reach, 1)
    direction = jnp.where(hit, -p, p)
    reflected = _reflected_step(to_bound, direction, scale, x, bounds, radius, model, margin)
    shortened = theta * to_bound
    steepest = -model.gradient
    size = jnp.linalg.norm(steepest)
    times_to_bound, _ = bounds.reach(x, steepest * scale)
    times_to_radius = radius / jnp.where(size > 0, size, 1)
    furthest = jnp.where(times_to_bound < times_to_radius, theta * times_to_bound, times_to_radius)
    along, value = model.minimum_along(steepest, jnp.zeros_like(p), 0.0, furthest)
    steps = jnp.stack([reflected[0], shortened, along * steepest])
    values = jnp.stack([reflected[1], model.at(shortened), value])
    best = steps[jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))]
    return jnp.where(reach > 1, p, best)


def _reflected_step(
    p: Any,
    direction: Any,
    scale: Any,
    x: Any,
    bounds: Bounds,
    radius: Any,
    model: Quadratic,
    margin: Any,
) -> tuple[Any, Any]:
    """Go on from a bound in another direction. Return that step and its predicted change."""
    a, b = direction @ direction, p @ direction
    c = jnp.minimum(p @ p - radius**2, 0)
    root = jnp.sqrt(jnp.maximum(b * b - a * c, 0))
    to_radius = jnp.where(a > 0, (root - b) / jnp.where(a > 0, a, 1), 0)
    to_bound, _ = bounds.reach(x + p * scale, direction * scale)
    most = jnp.minimum(to_bound, to_radius)
    low = jnp.where(most > 0, margin / jnp.where(most > 0, most, 1), 0)
    high = jnp.where(to_bound < to_radius, (1 - margin) * to_bound, to_radius)
    possible = (most > 0) & (low <= high)
    lowest, highest = jnp.where(possible, low, 0), jnp.maximum(high, 0)
    times, value = model.minimum_along(direction, p, lowest, highest)
    return p + times * direction, jnp.where(possible, value, jnp.inf)
