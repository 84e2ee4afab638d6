"""What a fit returns: a pair, as in SciPy, that also knows everything else about the fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ..errors import LogValueError
from ._descent import BAD, MAXIMUM, Solution
from ._parameters import Parameters

MESSAGES = {
    -1: "Residuals are not finite in the initial point.",
    0: "The maximum number of function evaluations is exceeded.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
    4: "Both `ftol` and `xtol` termination conditions are satisfied.",
}


class Pair(tuple[Any, ...]):
    """A tuple that has attributes, which go with it into copies."""

    def __new__(cls, values: tuple[Any, ...], **about: Any) -> Self:
        self = super().__new__(cls, values)
        vars(self).update(about)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (tuple(self),)


class Fit(Pair):
    """`(popt, pcov)`, and more: `x`, `cost`, `fun`, `jac`, `grad`, `perr`, `rsquared`, ...

    `fun` and `jac` are computed when somebody asks for them, since they are as long as the data.

    Examples:
        >>> import spoolax, numpy as np
        >>> x = np.arange(5.0)
        >>> y = 2 * x + 1 + 0.1 * np.cos(9 * x)
        >>> fit = spoolax.fit.curve_fit(lambda x, a, b: a * x + b, x, y)
        >>> popt, pcov = fit
        >>> fit
        Fit: 5 points, 2 parameters, 1 iterations (`gtol` termination condition is satisfied.)
          a  1.9836306       +- 0.02632
          b  1.0393204       +- 0.06447
        cost 0.0103914, R^2 0.999472
        >>> fit.fun.round(3).tolist()
        [-0.061, 0.114, -0.059, 0.019, -0.013]
    """

    names: tuple[str, ...]
    points: int
    counted: str  # "points" or "residuals".
    x: Any
    cost: float
    fun: Any
    jac: Any
    grad: Any
    optimality: float
    active_mask: Any
    nfev: int
    njev: int
    nit: int
    status: int
    rsquared: float
    history: Any

    def __getattr__(self, name: str) -> Any:
        later = vars(self).get("_later", {})
        if name not in later:
            why = (
                ": it is not kept for data in blocks, or in copies"
                if name in ("fun", "jac")
                else ""
            )
            raise AttributeError(f"A fit has no `{name}`{why}.")
        vars(self)[name] = later[name]()
        return vars(self)[name]

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rsquared": self.rsquared, "_later": {}}  # Functions stay here.

    @property
    def perr(self) -> Any:
        """The standard errors of the parameters."""
        return np.sqrt(np.diag(self[1]))

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
            f"Fit: {self.points} {self.counted}, {len(self.names)} parameters, "
            f"{self.nit} iterations ({self.message})"
        )
        width = max(map(len, self.names), default=0)
        rows = [
            f"  {name:<{width}}  {value:<14.8g}  +- {error:.4g}"
            for name, value, error in zip(self.names, self.x, self.perr, strict=True)
        ]
        fits = "" if np.isnan(self.rsquared) else f", R^2 {self.rsquared:.6g}"
        return "\n".join([head, *rows, f"cost {self.cost:.6g}{fits}"])


def result_of(
    found: Solution,
    parameters: Parameters,
    points: int,
    absolute: bool,
    history: Any,
    later: dict[str, Callable[[], Any]],
    limits: tuple[Any, Any],
    counted: str = "points",
) -> Fit:
    """The result of a fit; `absolute` says that the errors of the data are known."""
    n, status = len(found.x), int(found.status)
    if status == BAD:
        raise LogValueError(
            f"{MESSAGES[BAD]} The model, or its derivative, is inf or NaN at "
            + ", ".join(f"{a}={x:.6g}" for a, x in zip(parameters.names, found.x, strict=True))
        )
    r, q = found.r[:n, :n], found.r[:n, n]
    covariance, loose = covariance_of(r, max(points, n))
    if not absolute and not loose:
        covariance = covariance * (2 * found.cost / (points - n) if points > n else np.inf)
    if status != MAXIMUM and (loose or (points <= n and not absolute)):
        which = ", ".join(parameters.names[i] for i in loose)
        warn_of_covariance(f": the data do not determine {which}" if loose else "", 4)
        covariance = np.full((n, n), np.inf)
    structure = parameters.structure
    return Fit(
        (found.x if structure is None else structure.unflatten(found.x), covariance),
        names=parameters.names,
        points=points,
        counted=counted,
        x=found.x,
        cost=float(found.cost),
        grad=r.T @ q,
        optimality=float(found.optimality),
        active_mask=_active(found.x, *limits),
        nfev=int(found.nfev),
        njev=int(found.nfev),
        nit=int(found.nit),
        status=status,
        history=history,
        qtf=q,
        r=r,
        _later=later,
    )


def _active(x: Any, low: Any, high: Any) -> Any:
    """Which parameters are at a bound: -1 at the lower, 1 at the upper one."""
    mask = np.zeros(len(x), int)
    if low is not None:
        near = 1e-8 * np.maximum(1, np.abs(x))
        mask[x - low < near] = -1
        mask[high - x < near] = 1
    return mask


def covariance_of(r: Any, rows: int) -> tuple[Any, list[int]]:
    """The inverse of R^T R, and which parameters it leaves undetermined."""
    quick, regular = regular_covariance_of(r, rows)
    if regular:
        return quick, []
    norms = _norms(r)
    _, s, vt = np.linalg.svd(r / norms)
    kept = s > np.finfo(r.dtype).eps * rows * s[0]
    free = np.abs(vt[~kept]).max(0) if not kept.all() else np.zeros(len(s))
    inverse = (vt[kept].T / s[kept] ** 2) @ vt[kept]
    return inverse / np.outer(norms, norms), [int(i) for i in np.flatnonzero(free > 1e-3)]


def regular_covariance_of(r: Any, rows: Any) -> tuple[Any, Any]:
    """The inverse of R^T R, and whether R is far from singular, so that it is right; or of many."""
    norms, n = _norms(r), r.shape[-1]
    scaled = r / norms[..., None, :]  # So that units do not matter.
    regular = np.asarray(np.diagonal(scaled, axis1=-2, axis2=-1).all(-1))
    inverse = np.linalg.inv(np.where(regular[..., None, None], scaled, np.eye(n, dtype=r.dtype)))
    size = np.sqrt(n * (inverse * inverse).sum((-2, -1)))
    regular = regular & (size * np.finfo(r.dtype).eps * rows < 0.01)
    inverse /= norms[..., :, None]
    return inverse @ np.swapaxes(inverse, -2, -1), regular


def _norms(r: Any) -> Any:
    norms = np.sqrt((r * r).sum(-2))
    norms[norms == 0] = 1
    return norms


def warn_of_covariance(what: str, stacklevel: int) -> None:
    """Warn as SciPy does."""
    from scipy.optimize import OptimizeWarning  # It takes a while to import.

    message = f"Covariance of the parameters could not be estimated{what}."
    warnings.warn(message, OptimizeWarning, stacklevel=stacklevel)
