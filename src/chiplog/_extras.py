"""Optional dependencies: imported when they are needed, with an error that says what to install."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtraError


def load(module: str, user: str, extra: str) -> Any:
    """Import a module that `user` needs, and that the extra `extra` installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{user} needs {package}, which is not installed. "
            f"Install it with `pip install 'chiplog[{extra}]'`."
        ) from error
