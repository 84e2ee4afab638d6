"""What to call something that can be called."""

from __future__ import annotations

import functools
from typing import Any

_NAMELESS = ("", "<unnamed function>")  # The second is what JAX calls a wrapped object.


def name_of(f: Any) -> str:
    """The name of a function, of what is wrapped in an object without one, or else of its class.

    Examples:
        >>> name_of(functools.partial(functools.partial(max, 3), default=1))
        'max'
    """
    name = getattr(f, "__name__", "")
    if name not in _NAMELESS:
        return str(name)
    inner = f.func if isinstance(f, functools.partial) else getattr(f, "__wrapped__", None)
    return type(f).__name__ if inner is None else name_of(inner)
