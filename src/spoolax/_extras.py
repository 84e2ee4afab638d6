"""Optional packages: imported when they are needed, with an error that says what to install."""

from __future__ import annotations

import importlib
import re
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
            f"Install it with `{_command(package, extra)}`."
        ) from error


def _command(package: str, extra: str) -> str:
    """Say how to install what is missing of an extra.

    The packages themselves are named, as spoolax may have been installed from anywhere.
    """
    wanted = requirements(extra)
    missing = [one for one in wanted if not _is_installed(one)]
    broken = [one for one in wanted if package_of(one) == package]
    return " ".join(["pip install", *(f'"{one}"' for one in missing or broken or [package])])


def requirements(extra: str) -> list[str]:
    """List what an extra installs, as the metadata of the installed spoolax has it."""
    from importlib import metadata  # It takes its time, and hardly anybody needs it.

    marker = re.compile(rf"""\s*;.*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    try:
        found = metadata.requires("spoolax") or []
    except metadata.PackageNotFoundError:  # It is not installed, only on the path.
        found = []
    return [marker.sub("", one).strip() for one in found if marker.search(one)]


def package_of(requirement: str) -> str:
    """The name of the package that is required."""
    return re.split(r"[^\w.-]", requirement)[0]


def _is_installed(requirement: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(package_of(requirement))
    except metadata.PackageNotFoundError:
        return False
    return True
