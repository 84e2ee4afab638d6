"""Errors of files that are damaged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ...errors import LogTypeError, StorageError

P = ParamSpec("P")
T = TypeVar("T")


def raises_storage_errors(f: Callable[P, T]) -> Callable[P, T]:
    """Turn whatever goes wrong in reading a damaged file into a `StorageError`."""

    @functools.wraps(f)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return f(*args, **kwargs)
        except (StorageError, LogTypeError):
            raise
        except PermissionError as error:
            raise StorageError(f"Cannot read the file: {error.strerror}.") from error
        except (
            OSError,
            RuntimeError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            MemoryError,
            OverflowError,
            RecursionError,
        ) as error:
            raise StorageError(
                f"The file is damaged, or was not written by spoolax: {error}"
            ) from error

    return wrapped
