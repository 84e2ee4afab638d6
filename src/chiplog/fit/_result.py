"""What a fit returns: a pair, as in SciPy, that also knows everything else about the fit."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

MESSAGES = {
    0: "The maximum number of function evaluations is exceeded.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
    4: "Both `ftol` and `xtol` termination conditions are satisfied.",
}


class Fit(tuple[Any, ...]):
    """`(popt, pcov)`, and more: `x`, `cost`, `fun`, `jac`, `grad`, `perr`, `rsquared`, ...

    Examples:
        >>> import chiplog, numpy as np
        >>> x = np.arange(5.0)
        >>> y = 2 * x + 1 + 0.1 * np.cos(9 * x)
        >>> fit = chiplog.fit.curve_fit(lambda x, a, b: a * x + b, x, y)
        >>> popt, pcov = fit
        >>> fit
        Fit: 5 points, 2 parameters, 2 iterations (`gtol` termination condition is satisfied.)
          a  1.9836306  +- 0.02632
          b  1.0393204  +- 0.06447
        cost 0.0103914, R^2 0.999472
    """

    names: tuple[str, ...]
    points: int
    x: Any
    cost: float
    optimality: float
    nfev: int
    njev: int
    nit: int
    status: int
    perr: Any
    rsquared: float
    history: Any

    def __new__(cls, values: tuple[Any, ...], **about: Any) -> Self:
        self = super().__new__(cls, values)
        vars(self).update(about)
        return self

    @property
    def message(self) -> str:
        """Why it ended."""
        return MESSAGES[self.status]

    @property
    def success(self) -> bool:
        """Whether it has converged."""
        return self.status > 0

    def __repr__(self) -> str:
        head = (
            f"Fit: {self.points} points, {len(self.names)} parameters, {self.nit} iterations "
            f"({self.message})"
        )
        width = max(map(len, self.names), default=0)
        values, errors = np.ravel(self.x), np.ravel(self.perr)
        rows = [
            f"  {name:<{width}}  {value:<14.8g}  +- {error:.4g}"
            for name, value, error in zip(self.names, values, errors, strict=True)
        ]
        return "\n".join([head, *rows, f"cost {self.cost:.6g}, R^2 {self.rsquared:.6g}"])


def covariance_of(r: Any, rows: int) -> tuple[Any, list[int]]:
    """The inverse of R^T R, and which parameters it leaves undetermined."""
    norms = np.sqrt(np.sum(r**2, 0))
    scale = np.where(norms > 0, norms, 1)
    _, s, vt = np.linalg.svd(r / scale)  # So that units do not matter.
    kept = s > np.finfo(r.dtype).eps * rows * s[0]
    free = np.abs(vt[~kept]).max(0) if not kept.all() else np.zeros(len(s))
    inverse = (vt[kept].T / s[kept] ** 2) @ vt[kept]
    return inverse / np.outer(scale, scale), [int(i) for i in np.flatnonzero(free > 1e-3)]


def warn_of_covariance(names: tuple[str, ...], loose: list[int]) -> None:
    from scipy.optimize import OptimizeWarning  # It takes a while to import.

    which = f": the data do not determine {', '.join(names[i] for i in loose)}" if loose else ""
    warnings.warn(
        f"Covariance of the parameters could not be estimated{which}.",
        OptimizeWarning,
        stacklevel=4,
    )
