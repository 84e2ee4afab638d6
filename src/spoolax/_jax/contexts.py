"""Values that are part of JAX's cache keys, set for longer than a `with` statement."""

from __future__ import annotations

from typing import Any


def local_value(context: Any) -> Any:
    """The value on this thread, or what stands for none."""
    return context._obj.get_local()


def set_local(context: Any, value: Any) -> None:
    """Set the value on this thread."""
    context._obj.set_local(value)


def set_global(context: Any, value: Any) -> None:
    """Set the value on all threads that have none of their own."""
    context._obj.set_global(value)
