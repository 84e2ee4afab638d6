"""What to say when a run does not have a key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any


def no_such_key(name: str, known: Mapping[str, Any], where: str) -> str:
    """Say that a key is missing, and which was meant."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [
        key for key in known if difflib.get_close_matches(name, key.split("/"), cutoff=0.6)
    ]
    if near:
        return f"{where} has no {name!r}. Did you mean {' or '.join(map(repr, near[:3]))}?"
    return f"{where} has no {name!r}, only {', '.join(map(repr, known)) or 'nothing at all'}."
