"""Warnings that point at the user's own line, however deep in JAX and in us they are issued."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

NOT_THE_USER = {
    *("spoolax", "jax", "contextlib", "functools"),
    *("blackjax", "diffrax", "equinox", "flax", "lineax", "numpyro", "optax", "optimistix"),
}


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning. As usual, Python shows it once for a line."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and not is_users(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def is_users(frame: FrameType) -> bool:
    """Say whether code is the user's, and not ours or that of a library that calls functions."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THE_USER
