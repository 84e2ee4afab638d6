"""Rows that several processes have pieces of: each writes its own, and the first commits them.

The others say how many rows they have written, as they go. The first waits for that before its rows
count, so nothing that counts has a hole in it, whichever process dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from .._jax import processes
from .._processes import HINT, PATIENCE
from ..errors import ProcessError

_reports = logging.getLogger("spoolax")

# Seconds between two looks at how far the others are, at first and at most: one takes some
# milliseconds if there are a thousand.
NAP, LONGEST_NAP = 0.001, 0.1


class Together:
    """How far the processes are that write a store together.

    Args:
        name: What tells the store from others, in all processes.
        is_failing: Says whether this process has failed, so that others may wait for it elsewhere.
    """

    def __init__(self, name: str, is_failing: Callable[[], bool] = lambda: False) -> None:
        self._is_failing = is_failing
        self._folder, self._written = f"spoolax/pieces/{name}/", dict[str, int]()
        self._over = ""  # Why this process has no more.

    def wrote(self, table: str, rows: int) -> None:
        """Tell the first process how many rows of a table have the pieces of this one."""
        self._written[table] = rows
        self._post()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tell it of an error in a block."""
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """Tell it that there will be no more,"""
        self._over = f"It could not write them. {type(error).__name__}: {error}"
        self._post()

    def closed(self) -> None:
        """as this process has no more."""
        self._over = self._over or "It has closed the store."
        self._post()

    def _post(self) -> None:
        written = {"rows": self._written, "over": self._over}
        processes.post(f"{self._folder}{processes.index()}", json.dumps(written))

    def wait_for(self, table: str, rows: int, commit: Callable[[int], None]) -> None:
        """Wait until all others have written their pieces of so many rows, and commit them.

        If some of them never will be, raise an error, after those before are committed.
        """
        begun, nap, hinted = time.monotonic(), NAP, False
        waiting = set(range(1, processes.count()))
        errors: dict[int, ProcessError] = {}  # By how many rows count.
        while True:
            waited = time.monotonic() - begun
            is_late = waited > (HINT if self._is_failing() else PATIENCE)
            posted = {
                int(n): json.loads(text) for n, text in processes.posted(self._folder).items()
            }
            for process in sorted(waiting):
                told = posted.get(process, {"rows": {}, "over": ""})
                written, over = told["rows"].get(table, 0), told["over"]
                if written >= rows:
                    waiting.remove(process)
                elif over or is_late:
                    waiting.remove(process)
                    errors[written] = ProcessError(
                        f"Process {process} has not written its pieces of row {written + 1} of "
                        f"{table!r}. {over or f'It had {waited:.0f} seconds.'} Rows before are "
                        "safe."
                    )
            if not waiting:
                break
            if waited > HINT and not hinted:
                hinted = True
                _reports.warning(
                    "Row %d of %r waits for its pieces in %s. This process waits for %.0f seconds "
                    "at most, or for %.0f if it has failed itself.",
                    *(rows, table, _named(waiting), PATIENCE, HINT),
                )
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)
        commit(min([rows, *errors]))
        if errors:
            raise errors[min(errors)]


def _named(numbers: Iterable[int]) -> str:
    first, *others = sorted(numbers)
    return f"process {first}" + (f" and {len(others)} others" if others else "")
