"""Names of a package that are imported when somebody first asks for them.

`import spoolax` should add little to `import jax`, and the command `spoolax` should start without
it. A package lists its names twice: under `if TYPE_CHECKING`, which type checkers and editors read,
and here; a test compares the two.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def starts_without_jax() -> bool:
    """Whether this is the command `spoolax`: most of what it does needs no JAX to be imported."""
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return program in ("spoolax", "spoolax.exe", "-m")  # While `-m` looks for a module.


def lazily(
    package: str, where: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: Its `__name__`.
        where: By name, the module that has it. "" says that it is a module of the package, and
            ".module:other" that it is called `other` there.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = where[name].partition(":")
        found = importlib.import_module(module or f".{name}", package)
        value = getattr(found, attribute or name) if module else found
        setattr(sys.modules[package], name, value)
        return value

    there = vars(sys.modules[package])
    public = {name for name in there if not name.startswith("_")} | {*where}
    return (
        get,
        lambda: sorted({*there, *where}),
        sorted(public - {"TYPE_CHECKING", "lazily", "starts_without_jax"}),
    )
