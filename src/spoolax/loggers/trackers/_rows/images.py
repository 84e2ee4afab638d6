"""Which arrays are images, and their pixels as bytes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...._jax.arrays import type_text
from ...._tap.sinks import reports
from ....errors import LogTypeError


class Images:
    """Recognizes images: arrays of bytes, those tagged "image", and those whose name matches.

    `patterns` are those of names, as in `fnmatch`.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        many = isinstance(patterns, Iterable) and not isinstance(patterns, str)
        self._patterns: tuple[Any, ...] = tuple(patterns) if many else (patterns,)
        if not all(isinstance(pattern, str) for pattern in self._patterns):
            raise LogTypeError(f"`images` takes names, or patterns of names, not {patterns!r}.")
        self._warned: set[str] = set()

    def includes(self, name: str, array: Any, lanes: int, tags: tuple[str, ...]) -> bool:
        """Say whether an array, whose first axes may be lanes, is an image."""
        has_pixels = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
        has_pixels = has_pixels and array.size > 0 and array.dtype.kind in "biuf"
        has_pixels = has_pixels and not lanes  # They are neither height nor width.
        is_named = any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)
        if is_named and not has_pixels:
            self._warn_once(
                name,
                "`images` includes %r, but it is %s%s, so it is logged as numbers. An image has "
                "height and width, and may have 1, 3 or 4 channels as its last axis.",
                type_text(array),
                ", of several lanes" if lanes else "",
            )
        is_bytes = array.dtype == np.uint8 and min(array.shape[:2], default=0) > 1
        return has_pixels and (is_named or "image" in tags or is_bytes)

    def to_bytes(self, name: str, array: Any) -> Any:
        """The pixels as bytes. Of floats, 0 is black and 1 is white."""
        if array.dtype.kind in "iu":
            array = np.clip(array, 0, 255).astype(np.uint8)
        else:
            array = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
            low, high = array.min(), array.max()
            if low < 0 or high > 1:
                message = "The image %r has numbers from %g to %g: 0 is black, and 1 is white."
                self._warn_once(name, message, low, high)
            array = np.round(255 * np.clip(array, 0, 1)).astype(np.uint8)
        return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array

    def _warn_once(self, name: str, message: str, *args: Any) -> None:
        if name not in self._warned:
            self._warned.add(name)
            reports.warning(message, name, *args)
