"""Rows that several processes have pieces of: each writes its own, and the first commits them.

The others say how many rows they have written, as they go. The first waits for that before its rows
count, so nothing that counts has a hole in it, whichever process dies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

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
        self._post()

    def failed(self, error: BaseException) -> None:
        """Tell it that there will be no more,"""
        self._post(f"It could not write them. {type(error).__name__}: {error}")

    def closed(self) -> None:
        """as this process has no more."""
        self._post("It has closed the store.")

    def _post(self, over: str = "") -> None:
        written = {"rows": self._written, "over": over}
        processes.post(self._key(processes.index()), json.dumps(written))

    def _key(self, process: int) -> str:
        return f"spoolax/pieces/{self._name}/{process}"

    def wait_for(self, table: str, rows: int, commit: Callable[[int], None]) -> None:
        """Wait until all others have written their pieces of so many rows, and commit them.

        If some of them never will be, raise an error, after those before are committed.
        """
        last = time.monotonic() + PATIENCE
        errors: dict[int, ProcessError] = {}  # By how many rows count.
        for process in range(1, processes.count()):
            while True:
                written, over = self._written_by(process, table)
                if written >= rows:
                    break
                if not over and time.monotonic() > last:
                    over = f"It had {PATIENCE:.0f} seconds."
                if over:
                    errors[written] = ProcessError(
                        f"Process {process} has not written its pieces of row {written + 1} of "
                        f"{table!r}. {over} Rows before are safe."
                    )
                    break
                time.sleep(NAP)
        commit(min([rows, *errors]))
        if errors:
            raise errors[min(errors)]

    def _written_by(self, process: int, table: str) -> tuple[int, str]:
        """How many rows a process has written, and why there will be no more, if so."""
        posted = json.loads(processes.posted(self._key(process)) or "{}")
        return posted.get("rows", {}).get(table, 0), posted.get("over", "")
