"""The settings of a run, by their full names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat_settings(settings: Any) -> dict[str, Any]:
    """Settings that may be inside of each other by their full names: "optimizer.rate"."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        return {"config": settings}
    made: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            made |= {f"{name}.{inner}": one for inner, one in flat_settings(value).items()}
        else:
            made[str(name)] = value
    return made
