"""Histograms of finite numbers, however large or alike they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

BINS = 64
LARGEST = np.finfo(np.float64).max


class Histogram(NamedTuple):
    """How many numbers lie between the edges, and a summary of all of them."""

    counts: list[int]
    edges: list[float]
    low: float
    high: float
    total: float
    squares: float  # The sum of squares.


def histogram(numbers: Any) -> Histogram:
    """Count finite numbers."""
    low, high = float(numbers.min()), float(numbers.max())
    largest = max(-low, high)
    scale = largest if largest > 1e100 else 1.0  # Else `high - low` might overflow.
    first, last = low / scale, high / scale
    margin = BINS * 1e-9 * max(abs(first), abs(last), 1e-30)  # Else equal numbers have no bins.
    limits = (first, last) if last - first > margin else (first - margin, last + margin)
    counts, edges = np.histogram(numbers / scale, BINS, limits)
    with np.errstate(over="ignore", invalid="ignore"):
        total, squares = float(numbers.sum()), float(np.square(numbers).sum())
        edges = np.clip(scale * edges, -LARGEST, LARGEST)
    return Histogram(counts.tolist(), edges.tolist(), low, high, total, squares)
