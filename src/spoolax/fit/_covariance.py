"""Covariances of the parameters, from the triangular factor of the Jacobian."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def covariance_of(r: Any, rows: int) -> tuple[Any, list[int]]:
    """Return the inverse of R^T R, and which parameters the data do not determine."""
    inverse, regular = regular_covariance_of(r, rows)
    if regular:
        return inverse, []
    norms = _norms(r)
    _, s, vt = np.linalg.svd(r / norms)
    kept = s > np.finfo(r.dtype).eps * rows * s[0]
    free = np.abs(vt[~kept]).max(0) if not kept.all() else np.zeros(len(s))
    inverse = (vt[kept].T / s[kept] ** 2) @ vt[kept]
    return inverse / np.outer(norms, norms), [int(i) for i in np.flatnonzero(free > 1e-3)]


def regular_covariance_of(r: Any, rows: Any) -> tuple[Any, Any]:
    """Return the inverse of R^T R, and whether R is regular, or else it is wrong; or of many R."""
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
