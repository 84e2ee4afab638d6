"""Compiled programs, kept on disk, so that the next process need not compile them.

The name of a file is a hash of everything that its program depends on, and the file starts with a
digest of its content: a damaged one is compiled again. Nothing that goes wrong with the directory
stops a fit. As a program is code, only a directory that nobody else can write to is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import tempfile
from typing import Any

import jax

from ..._jax import executables

MAGIC = b"spoolax1"
MAX_BYTES = 1 << 28  # Of all files; the least recently used are removed first.
DISABLE = "SPOOLAX_DISABLE_PERSISTENT_CACHE"


def cache_dir() -> pathlib.Path:
    """Return the directory that compiled fits are kept in.

    It is in the user's cache directory, which `XDG_CACHE_HOME` may set. Nothing is read or written
    there if the environment variable `SPOOLAX_DISABLE_PERSISTENT_CACHE` is 1.

    Examples:
        >>> import spoolax
        >>> spoolax.fit.cache_dir().name
        'jax_cache'
    """
    home = os.environ.get("XDG_CACHE_HOME") or ""
    base = pathlib.Path(home) if os.path.isabs(home) else pathlib.Path.home() / ".cache"
    return base / "spoolax" / "jax_cache"


def clear_cache() -> None:
    """Remove all compiled fits from disk.

    Examples:
        >>> import spoolax
        >>> spoolax.fit.clear_cache()
    """
    with contextlib.suppress(OSError):
        for path in cache_dir().glob("*.xla"):
            with contextlib.suppress(OSError):
                path.unlink()


def compiled(jitted: Any, args: tuple[Any, ...]) -> Any:
    """Compile a function for the types of its arguments, or load it from disk."""
    lowered = jitted.lower(*args)
    device = _device_of(args)
    if device is None or os.environ.get(DISABLE, "0") not in ("", "0"):
        return lowered.compile()
    # Whatever is wrong with a file or the directory, the program can be compiled.
    try:
        path = _path_of(lowered, device)
    except Exception:
        return lowered.compile()
    with contextlib.suppress(Exception):
        return executables.load_program(_read(path), lowered, device)
    program = lowered.compile()
    with contextlib.suppress(Exception):
        _write(path, executables.dump_program(program))
    return program


def _device_of(args: tuple[Any, ...]) -> Any:
    """Return the device that a program runs on; None if there are several."""
    if any(isinstance(a, jax.Array) and len(a.devices()) > 1 for a in jax.tree.leaves(args)):
        return None
    device = jax.config.jax_default_device
    return device if hasattr(device, "client") else jax.local_devices(backend=device)[0]


def _path_of(lowered: Any, device: Any) -> pathlib.Path:
    about = (
        (
            jax.__version__,
            importlib.metadata.version("jaxlib"),
            platform.platform(),
            platform.python_version(),
        ),
        (device.platform, device.device_kind, device.id, device.client.platform_version),
        (_processor(), os.environ.get("XLA_FLAGS"), jax.device_count()),
        lowered.as_text(),
    )
    return cache_dir() / f"{hashlib.sha256(repr(about).encode()).hexdigest()}.xla"


def _processor() -> str:
    """Describe the CPU: a program for another one might not run here."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines if line.startswith(("model name", "flags", "Features")))


def _read(path: pathlib.Path) -> bytes:
    _check_only_we_can_write(path.parent)
    content = path.read_bytes()
    digest, rest = content[len(MAGIC) :][:32], content[len(MAGIC) + 32 :]
    if content[: len(MAGIC)] != MAGIC or hashlib.sha256(rest).digest() != digest:
        raise ValueError("The file is damaged.")
    with contextlib.suppress(OSError):
        os.utime(path)  # For the order in which files are removed.
    return rest


def _write(path: pathlib.Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_only_we_can_write(path.parent)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".draft")
    try:
        with open(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    files = sorted(path.parent.glob("*.xla"), key=lambda one: one.stat().st_mtime)
    excess = sum(one.stat().st_size for one in files) - MAX_BYTES
    for one in files:
        if excess <= 0:
            break
        excess -= one.stat().st_size
        one.unlink()


def _check_only_we_can_write(directory: pathlib.Path) -> None:
    about = directory.stat()
    if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & 0o022):
        raise PermissionError("Others can write to this directory.")
