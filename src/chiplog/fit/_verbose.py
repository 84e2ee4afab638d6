"""The lines of a fit: one for every iteration, printed while it goes on."""

from __future__ import annotations

from collections.abc import Callable

from .._logdict import LogDict

HEAD = f"{'iteration':>10}{'cost':>15}{'reduction':>13}{'step norm':>13}{'optimality':>13}"


def printer(verbose: int) -> Callable[[LogDict], None]:
    """What prints entries: each 10th iteration for 1, all of them for 2."""
    printed: list[int] = []

    def show(logs: LogDict) -> None:
        iteration = int(logs.steps["step"]["cost"])
        if verbose < 2 and iteration % 10:
            return
        if not printed:
            print(HEAD)
        printed.append(iteration)
        print(
            f"{iteration:10d}{float(logs['cost']):15.6e}{float(logs['reduction']):13.3e}"
            f"{float(logs['step_norm']):13.3e}{float(logs['optimality']):13.3e}"
        )

    return show
