"""The problem of fitting a model to data, which are worked on block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._data.points import Data
from .._solver.losses import Loss, as_least_squares, linear
from .._solver.residuals import value_and_derivatives, value_and_unrolled_derivatives
from .._solver.solver import Problem
from .._solver.triangular import MAX_UNROLLED, triangular_factor


class Curve(NamedTuple):
    """A model of x and of all parameters in one array, with its Jacobian and loss."""

    model: Callable[[Any, Any], Any]
    jacobian: Callable[[Any, Any], Any] | None
    loss: Loss
    exact: bool = False  # As in `as_least_squares`.

    @property
    def final(self) -> Curve | None:
        """The curve that computes the triangular factor of the result, if that is another one."""
        return None if self.loss is linear else self._replace(exact=True)

    def problem(self, data: Data) -> Problem:
        """Return the problem of data that are all on the device."""
        blocks = data.cut()
        if blocks is None:
            return lambda p: self._at_once(p, data)

        def problem(p: Any) -> tuple[Any, Any]:
            def add(total: Any, block: Any) -> tuple[Any, None]:
                x, y, weights, points = block
                here = Data(x, y, weights, points, data.cholesky, data.f_scale)
                return self.add(p, total, here), None

            return lax.scan(add, self.zero(p), blocks[:4])[0]  # type: ignore[no-any-return]

        return problem

    def zero(self, p: Any) -> tuple[Any, Any]:
        """Return the cost and the triangular factor of no data."""
        return jnp.zeros((), p.dtype), jnp.zeros((len(p) + 1, len(p) + 1), p.dtype)

    def add(self, p: Any, total: tuple[Any, Any], data: Data) -> tuple[Any, Any]:
        """Return the cost and the triangular factor of more data and of those before."""
        cost, r = self.problem(data)(p)
        return total[0] + cost, triangular_factor(jnp.concatenate([total[1].T, r.T], 1))

    def residuals_and_jacobian(self, p: Any, data: Data) -> tuple[Any, Any]:
        """Return all residuals, and the Jacobian of the least-squares problem."""
        f, derivatives = self._residuals(p, data)
        columns = as_least_squares(self.loss, f, derivatives, data.f_scale, exact=True)[1]
        return f, columns[:-1].T

    def _at_once(self, p: Any, data: Data) -> tuple[Any, Any]:
        f, derivatives = self._residuals(p, data)
        costs, columns = as_least_squares(self.loss, f, derivatives, data.f_scale, self.exact)
        return jnp.sum(jnp.where(data.is_real, costs, 0)), triangular_factor(columns)

    def _residuals(self, p: Any, data: Data) -> tuple[Any, Any]:
        """Return the weighted residuals, and their derivatives with a row for each parameter."""
        weights = data.is_real.astype(p.dtype)
        if data.weights is not None:
            weights *= data.weights

        def weighted(a: Any) -> Any:
            if data.cholesky is None:
                return a * weights if a.ndim == 1 else a * weights[None]
            return jax.scipy.linalg.solve_triangular(data.cholesky, a.T, lower=True).T

        def residuals(p: Any) -> Any:
            return weighted(self.model(data.x, p) - data.y)

        jacobian = self.jacobian
        if jacobian is None and len(p) <= min(MAX_UNROLLED, len(data.y)):
            return value_and_unrolled_derivatives(residuals, list(p))
        jac = None if jacobian is None else lambda p: weighted(jacobian(data.x, p).T).T
        return value_and_derivatives(residuals, jac, p)
