"""A logger that keeps what it gets, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..loggers import Record, WritingLogger


class capture(WritingLogger):
    """A logger that keeps everything in memory, for tests.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     def body(x, i):
        ...         spoolax.log({"x": x}, step=i)
        ...         return 2 * x, None
        ...     return jax.lax.scan(body, x, jax.numpy.arange(3))[0]
        >>> with capture() as captured:
        ...     y = captured.tap(f)(1.0)
        >>> captured.values("x")
        [1.0, 2.0, 4.0]
        >>> [record.step for record in captured.records]
        [0, 1, 2]
    """

    def open(self) -> None:
        """Begin with nothing."""
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)

    def values(self, key: str) -> list[Any]:
        """All values of a key, as Python numbers and lists."""
        return [np.asarray(r.values[key]).tolist() for r in self.records if key in r.values]
