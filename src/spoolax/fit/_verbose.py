"""The lines of a fit: one for every iteration, printed while it goes on."""

from __future__ import annotations

from .._logdict.logdict import LogDict

SMALL = ("reduction", "step_norm", "optimality")
COLUMNS = {"cost": (15, ".6e"), **dict.fromkeys(SMALL, (13, ".3e"))}
COUNTS = dict.fromkeys(("done", "running"), (10, "d"))  # Of many fits.


class Printer:
    """Prints entries: each 10th iteration for 1, all of them for 2; and the last one."""

    def __init__(self, verbose: int) -> None:
        self._all = verbose > 1
        self._begun = False
        self._left: LogDict | None = None  # The latest, if it was not printed.

    def __call__(self, logs: LogDict) -> None:
        columns = COLUMNS if "cost" in logs else COUNTS
        first = next(iter(columns))
        if first not in logs or "step" not in logs.steps:  # The model's own logs.
            return
        iteration = int(logs.steps["step"][first])
        if self._all or iteration % 10 == 0:
            self._print(logs, iteration, columns)
        else:
            self._left = logs

    def finish(self) -> None:
        """Print the last entry, if it was not."""
        if self._left is not None:
            self._all = True
            self(self._left)

    def _print(self, logs: LogDict, iteration: int, columns: dict[str, tuple[int, str]]) -> None:
        self._left = None
        if not self._begun:
            head = (f"{name.replace('_', ' '):>{width}}" for name, (width, _) in columns.items())
            print(f"{'iteration':>10}" + "".join(head))
            self._begun = True
        line = (f"{logs[name].item():{width}{kind}}" for name, (width, kind) in columns.items())
        print(f"{iteration:10d}" + "".join(line))
