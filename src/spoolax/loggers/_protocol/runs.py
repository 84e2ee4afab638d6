"""One run for every key that is given to `init`, also under `vmap` and `jit`.

`init` calls the host, which gives every key a number. The number travels through the program as a
value, and becomes a step of every entry; so whatever `vmap` does to the entries, each lane still
says which run it belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax import arrays, host_call
from ...errors import LogTypeError

# The step that says which run of a logger an entry belongs to; the number of the logger follows.
RUN_STEP = "spoolax.run."


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """A run that `init` opened: its number among those of the logger, and its key.

    Examples:
        >>> RunInfo(2, (0, 7), ()).name
        'run-2'
    """

    number: int
    key: tuple[int, ...]  # The numbers that the key consists of.
    lane: tuple[int, ...]  # Its lane in the vmaps around `init`.

    @property
    def name(self) -> str:
        """A name for files and labels."""
        return f"run-{self.number}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """What `logger.init(key)` returns: the run that entries belong to.

    Examples:
        >>> import jax
        >>> from spoolax.loggers import RingBufferLogger
        >>> with RingBufferLogger(3) as logger:
        ...     states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        >>> states.run.tolist()
        [0, 1]
    """

    run: Any


def open_runs(key: Any, opener: Callable[[list[tuple[int, ...]], tuple[int, ...]], int]) -> Any:
    """Have a run opened for a key, or for every lane of it; return their numbers.

    `opener` gets all keys, as numbers, and the sizes of the vmaps, and returns the first number.
    """
    words = _words(key)

    def receive(words: Any) -> Any:
        lanes = words.shape[:-1]
        keys = [tuple(row) for row in words.reshape(-1, words.shape[-1]).tolist()]
        first = opener(keys, lanes)
        return np.arange(first, first + len(keys), dtype=np.int32).reshape(lanes)

    return host_call.numbers_from_host(words, receive)


def _words(key: Any) -> Any:
    """The numbers that a key consists of; it may be typed, raw, or just a number."""
    if isinstance(key, jax.Array) and arrays.is_key(key):
        if key.ndim:
            raise LogTypeError(
                f"`init` opens one run for one key, but got keys of shape {key.shape}. Write "
                "`jax.vmap(logger.init)(keys)` for one run each."
            )
        return jax.random.key_data(key).reshape(-1)
    try:
        words = jnp.asarray(key)
    except TypeError as error:
        raise LogTypeError(f"`init` takes a key from `jax.random`, not {key!r}.") from error
    if not jnp.issubdtype(words.dtype, jnp.integer) or words.ndim > 1:
        raise LogTypeError(
            f"`init` takes a key from `jax.random`, or an integer, not {arrays.type_text(words)}."
        )
    return words.reshape(-1)
