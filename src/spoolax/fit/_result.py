"""What a fit returns: a pair, as in SciPy, that also knows everything else about the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np

from .._show import html
from .._show.curves import svg_curve
from ..errors import LogValueError
from ._covariance import covariance_of, regular_covariance_of, warn_of_covariance
from ._model.parameters import Parameters, Structure
from ._solver.bounds import Bounds
from ._solver.solver import MAX_NFEV, NOT_FINITE, Solution

Lazy = dict[str, Callable[[], Any]]  # Attributes that are computed when they are asked for.

MESSAGES = {
    -1: "Residuals are not finite in the initial point.",
    0: "The maximum number of function evaluations is exceeded.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
    4: "Both `ftol` and `xtol` termination conditions are satisfied.",
}


class TupleWithAttributes(tuple[Any, ...]):
    """A tuple that also has attributes, which are kept in copies."""

    def __new__(cls, values: tuple[Any, ...], **about: Any) -> Self:
        self = super().__new__(cls, values)
        vars(self).update(about)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (tuple(self),)


class Fit(TupleWithAttributes):
    """`(popt, pcov)`, and more: `x`, `cost`, `fun`, `jac`, `grad`, `perr`, `rsquared`, ...

    `fun` and `jac` are computed when they are asked for, as they are as long as the data.

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
        lazy: Lazy = vars(self).get("_lazy", {})
        if name not in lazy:
            why = (
                ": it is not kept for data in blocks, or in copies"
                if name in ("fun", "jac")
                else ""
            )
            raise AttributeError(f"This fit has no `{name}`{why}.")
        vars(self)[name] = lazy[name]()
        return vars(self)[name]

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rsquared": self.rsquared, "_lazy": {}}  # Functions are not copied.

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
        return "\n".join([head, *rows, self._quality()])

    def _quality(self) -> str:
        fits = "" if np.isnan(self.rsquared) else f", R^2 {self.rsquared:.6g}"
        return f"cost {self.cost:.6g}{fits}"

    def _repr_html_(self) -> str:
        values = zip(self.names, self.x, self.perr, strict=True)
        rows = [[name, f"{value:.8g}", f"± {error:.3g}"] for name, value, error in values]
        about = f"{self.points} {self.counted}, {self.nit} iterations: {self.message}"
        table = html.table(rows, ["parameter", "value", "error"], numbers=(1, 2))
        history = getattr(self, "history", None)
        costs = [] if history is None else np.asarray(history["cost"]).tolist()
        curve = f"<div>cost {svg_curve(costs)} {self._quality()}</div>" if costs else ""
        return html.titled("Fit", about, table + (curve or f"<div>{self._quality()}</div>"))


class BatchFit(TupleWithAttributes):
    """`(popt, pcov)` of many fits along the first axis; also `cost`, `status`, `success`, ...

    Examples:
        >>> import spoolax, numpy as np
        >>> x = np.arange(5.0)
        >>> ys = np.array([[2.0], [3.0]]) * x
        >>> spoolax.fit.curve_fit_batch(lambda x, a: a * x, x, ys)
        BatchFit: 2 fits of 5 points and 1 parameters, 2 converged, at most 3 evaluations
    """

    names: tuple[str, ...]
    points: Any
    x: Any
    cost: Any
    optimality: Any
    nfev: Any
    nit: Any
    status: Any
    history: Any

    @property
    def success(self) -> Any:
        """Which fits have converged."""
        return self.status > 0

    @property
    def message(self) -> list[str]:
        """Why each fit ended."""
        few = "There are fewer points than parameters."
        pairs = zip(self.status, self.points, strict=True)
        least = len(self.names)
        return [few if s < 0 and n < least else MESSAGES[int(s)] for s, n in pairs]

    @property
    def perr(self) -> Any:
        """The standard errors of the parameters."""
        return np.sqrt(np.diagonal(self[1], axis1=1, axis2=2))

    def __repr__(self) -> str:
        least, most = np.min(self.points), np.max(self.points)
        points = f"{most}" if least == most else f"{least} to {most}"
        return (
            f"BatchFit: {len(self.x)} fits of {points} points and {len(self.names)} parameters, "
            f"{int(np.sum(self.success))} converged, at most {int(np.max(self.nfev))} evaluations"
        )

    def _repr_html_(self) -> str:
        rows = []
        for name, values, errors in zip(self.names, self.x.T, self.perr.T, strict=True):
            good = values[np.isfinite(values)]
            middle, error = (np.median(x) if x.size else np.nan for x in (good, errors))
            curve = html.Markup(svg_curve(np.asarray(values, float).tolist()))
            rows.append([name, f"{middle:.6g}", f"± {error:.3g}", curve])
        header = ["parameter", "median", "median error", "fit by fit"]
        _, _, about = repr(self).partition(": ")
        return html.titled("BatchFit", about, html.table(rows, header, numbers=(1, 2)))


def fit_result(
    found: Solution,
    parameters: Parameters,
    points: int,
    absolute: bool,
    history: Any,
    lazy: Lazy,
    bounds: Bounds | None,
    counted: str = "points",
) -> Fit:
    """Return the result of a fit; `absolute` says that the errors of the data are known."""
    n, status = len(found.x), int(found.status)
    if status == NOT_FINITE:
        raise LogValueError(
            f"{MESSAGES[NOT_FINITE]} The model, or its derivative, is inf or NaN at "
            + ", ".join(f"{a}={x:.6g}" for a, x in zip(parameters.names, found.x, strict=True))
        )
    r, q = found.r[:n, :n], found.r[:n, n]
    covariance, undetermined = covariance_of(r, max(points, n))
    if not absolute and not undetermined:
        covariance = covariance * (2 * found.cost / (points - n) if points > n else np.inf)
    if status != MAX_NFEV and (undetermined or (points <= n and not absolute)):
        which = ", ".join(parameters.names[i] for i in undetermined)
        warn_of_covariance(f": the data do not determine {which}" if undetermined else "", 4)
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
        active_mask=_active_mask(found.x, bounds),
        nfev=int(found.nfev),
        njev=int(found.nfev),
        nit=int(found.nit),
        status=status,
        history=history,
        qtf=q,
        r=r,
        _lazy=lazy,
    )


def _active_mask(x: Any, bounds: Bounds | None) -> Any:
    """Return -1 for parameters at their lower bound, 1 for those at the upper one, else 0."""
    mask = np.zeros(len(x), int)
    if bounds is not None:
        near = 1e-8 * np.maximum(1, np.abs(x))
        mask[x - bounds.low < near] = -1
        mask[bounds.high - x < near] = 1
    return mask


def batch_result(
    found: Solution, parameters: Parameters, points: Any, method: str, absolute: bool, history: Any
) -> BatchFit:
    """Return the result of many fits, of which each has its own number of points."""
    least = len(parameters.names) if method == "lm" else 1
    found = found._replace(status=np.where(points < least, NOT_FINITE, found.status))
    structure = parameters.structure
    return BatchFit(
        (
            found.x if structure is None else _unflatten_all(structure, found.x),
            _covariances(found, points, absolute),
        ),
        names=parameters.names,
        points=points,
        x=found.x,
        cost=found.cost,
        optimality=found.optimality,
        nfev=found.nfev,
        nit=found.nit,
        status=found.status,
        history=history,
    )


def _unflatten_all(structure: Structure, x: Any) -> Any:
    """Return the user's parameters of all fits, along a new first axis of each leaf."""
    each = [structure.unflatten(row) for row in x]
    leaves = [jax.tree.leaves(one) for one in each]
    return jax.tree.unflatten(
        jax.tree.structure(each[0]), [np.stack(a) for a in zip(*leaves, strict=True)]
    )


def _covariances(found: Solution, points: Any, absolute: bool) -> Any:
    """Return the covariance of each fit; inf where the data do not determine all parameters."""
    n = found.x.shape[1]
    r = found.r[:, :n, :n]
    covariance, regular = regular_covariance_of(r, np.maximum(points, n))
    failed = found.status < 0
    undetermined = 0
    for i in np.flatnonzero(~regular & ~failed):
        covariance[i], free = covariance_of(r[i], max(points[i], n))
        if free:
            covariance[i], undetermined = np.inf, undetermined + 1
    if not absolute:
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = 2 * found.cost / np.maximum(points - n, 1)
            covariance *= factor[:, None, None]
        failed |= points <= n
    covariance[failed] = np.inf
    if undetermined:
        warn_of_covariance(f" for {undetermined} of the fits", 5)
    return covariance
