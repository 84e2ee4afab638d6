"""What a program hands to the host while it runs: full buffers, by key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.host_call import host_call
from .._jax.spread_call import Places
from .._listen.in_pieces import InPieces
from .._listen.interrupts import interruptible
from .._listen.windows import KeyEntry
from .buffer import STOPPED


class Spilled:
    """The host's side of a program whose buffers spill. Its runs do not overlap."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A run begins."""
        self.rows: dict[str, list[KeyEntry]] = {}
        self.interruptible = interruptible()
        self._pieces: dict[str, InPieces] = {}

    def hands_over(self, key: str, entry: KeyEntry) -> Callable[..., Any]:
        """A function that hands entries of a key over, while the program runs."""
        tree = jax.tree.structure(entry)

        def hand_over(*leaves: Any) -> Any:
            receive = functools.partial(self._receive, key, tree)
            each = functools.partial(self._receive_piece, key, tree)
            return host_call(receive, jnp.int32(0), *leaves, each=each)

        return hand_over

    def _receive(self, key: str, tree: Any, is_alone: bool, empty: Any, *leaves: Any) -> Any:
        self._add(key, tree, leaves)
        if is_alone and self.interruptible.asked():
            raise KeyboardInterrupt
        return self._answer(empty)

    def _receive_piece(
        self, key: str, tree: Any, device: int, places: Places, empty: Any, *leaves: Any
    ) -> Any:
        pieces = self._pieces.setdefault(key, InPieces())
        return pieces.call(
            device,
            places,
            (empty, *leaves),
            functools.partial(self._answer, empty),
            lambda whole: self._add(key, tree, whole[1:]),
        )

    def _answer(self, empty: Any) -> Any:
        return np.int32(STOPPED) if self.interruptible.asked() else empty

    def _add(self, key: str, tree: Any, leaves: Sequence[Any]) -> None:
        self.rows.setdefault(key, []).append(jax.tree.unflatten(tree, leaves))
