"""The lines that `verbose` prints: one for each iteration, while a fit runs."""

from __future__ import annotations

from ..._logdict.logdict import LogDict

CHANGES = ("reduction", "step_norm", "optimality")
COLUMNS = {"cost": (15, ".6e"), **dict.fromkeys(CHANGES, (13, ".3e"))}  # Width and format.
BATCH_COLUMNS = dict.fromkeys(("done", "running"), (10, "d"))


class Printer:
    """A callback that prints every 10th iteration for 1, all of them for 2, and always the last."""

    def __init__(self, verbose: int) -> None:
        self._all = verbose > 1
        self._has_header = False
        self._unprinted: LogDict | None = None  # The latest entry, if it was not printed.

    def __call__(self, logs: LogDict) -> None:
        columns = COLUMNS if "cost" in logs else BATCH_COLUMNS
        first = next(iter(columns))
        if first not in logs or "step" not in logs.steps:  # The model's own logs.
            return
        iteration = int(logs.steps["step"][first])
        if self._all or iteration % 10 == 0:
            self._print(logs, iteration, columns)
        else:
            self._unprinted = logs

    def finish(self) -> None:
        """Print the last entry, if that has not been done."""
        if self._unprinted is not None:
            self._all = True
            self(self._unprinted)

    def _print(self, logs: LogDict, iteration: int, columns: dict[str, tuple[int, str]]) -> None:
        self._unprinted = None
        if not self._has_header:
            head = (f"{name.replace('_', ' '):>{width}}" for name, (width, _) in columns.items())
            print(f"{'iteration':>10}" + "".join(head))
            self._has_header = True
        line = (f"{logs[name].item():{width}{kind}}" for name, (width, kind) in columns.items())
        print(f"{iteration:10d}" + "".join(line))
