"""Where and when an entry was logged."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where and when an entry was logged: `logs.origin` in a callback of `tap`.

    For a batch of entries, `iteration` is an array with one row per entry.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     def body(x, _):
        ...         spoolax.log({"x": x}, tags="demo")
        ...         return 2 * x, None
        ...     return jax.lax.scan(body, x, length=3)[0]
        >>> def show(logs):
        ...     print(logs.origin.path, logs.origin.iteration, logs.origin.tags)
        >>> y = spoolax.tap(f, show)(1.0); spoolax.flush()
        scan[0] (0,) ('demo',)
        scan[0] (1,) ('demo',)
        scan[0] (2,) ('demo',)
    """

    path: str  # The loops around the `log` call, such as "scan[0]/while[1]"; "" outside loops.
    iteration: Any  # The iteration of each of them.
    lanes: tuple[int, ...]  # The sizes of the vmaps around it, which are axes of what was logged.
    device: str | tuple[str, ...] | None  # Several under `shard_map`: one for each lane.
    time: float  # When it reached the host, as `time.time()`.
    tags: tuple[str, ...]
    site: str  # The line of the `log` call.
    process: int = 0  # Of those of `jax.distributed`, the one that it reached.
    backward: bool = False  # Whether it was logged in a backward pass: `log_grad`, a `bwd` rule.
    # Under `shard_map`, where in the mesh each device is, such as {"data": 0, "model": 1}.
    coordinates: tuple[dict[str, int], ...] = ()
