"""The lines of a fit: one for every iteration, printed while it goes on."""

from __future__ import annotations

from collections.abc import Callable

from .._logdict import LogDict

SMALL = ("reduction", "step_norm", "optimality")
COLUMNS = {"cost": (15, ".6e"), **dict.fromkeys(SMALL, (13, ".3e"))}
COUNTS = dict.fromkeys(("done", "running"), (10, "d"))  # Of many fits.


def printer(verbose: int) -> Callable[[LogDict], None]:
    """What prints entries: each 10th iteration for 1, all of them for 2."""
    printed = False

    def show(logs: LogDict) -> None:
        nonlocal printed
        columns = COLUMNS if "cost" in logs else COUNTS
        first = next(iter(columns))
        if first not in logs or "step" not in logs.steps:  # The model's own logs.
            return
        iteration = int(logs.steps["step"][first])
        if verbose < 2 and iteration % 10:
            return
        if not printed:
            head = (f"{name.replace('_', ' '):>{width}}" for name, (width, _) in columns.items())
            print(f"{'iteration':>10}" + "".join(head))
            printed = True
        line = (f"{logs[name].item():{width}{kind}}" for name, (width, kind) in columns.items())
        print(f"{iteration:10d}" + "".join(line))

    return show
