"""Rows that several processes have pieces of: each writes its own, and the first commits them.

The others say how many rows they have written, as they go. The first waits for that before its rows
count, so nothing that counts has a hole in it, whichever process dies.
"""

from __future__ import annotations

import json
import time
from typing import Any

from .._jax import processes
from .._processes import PATIENCE
from ..errors import ProcessError

NAP = 0.01  # Seconds between two looks at how far the others are.


class Together:
    """How far the processes are that write a store together.

    Args:
        name: What tells the store from others, in all processes.
    """

    def __init__(self, name: str) -> None:
        self._name, self._written = name, dict[str, int]()

    def wrote(self, table: str, rows: int) -> None:
        """Tell the first process how many rows of a table have the pieces of this one."""
        self._written[table] = rows
        self._post(self._written)

    def failed(self, error: BaseException) -> None:
        """Tell the first process that there will be no more."""
        self._post({"error": f"{type(error).__name__}: {error}"})

    def _post(self, what: Any) -> None:
        processes.post(self._key(processes.index()), json.dumps(what))

    def _key(self, process: int) -> str:
        return f"spoolax/pieces/{self._name}/{process}"

    def wait_for(self, table: str, rows: int) -> None:
        """Wait until all others have written their pieces of so many rows."""
        last = time.monotonic() + PATIENCE
        for process in range(1, processes.count()):
            while self._rows_of(process, table) < rows:
                if time.monotonic() > last:
                    raise ProcessError(
                        f"Process {process} has not written its pieces of row {rows} of {table!r} "
                        f"within {PATIENCE:.0f} seconds. Rows before are safe."
                    )
                time.sleep(NAP)

    def _rows_of(self, process: int, table: str) -> int:
        posted = json.loads(processes.posted(self._key(process)) or "{}")
        if "error" in posted:
            raise ProcessError(f"Process {process} cannot write its pieces. {posted['error']}")
        return int(posted.get(table, 0))
