"""Print the iterations of an optimizer, from a Python loop or from inside `jit`.

Nothing waits for the device: arrays are handed to another thread, which reads and prints them.
Inside a trace the values are streamed, as by `tap`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ._log.primitive import log
from ._logdict.logdict import LogDict
from ._tap.host import host
from ._tap.sinks import Sink
from ._tap.tap import tap
from .errors import LogValueError
from .loggers._protocol.record import is_donated

EVERY = 10  # Iterations, with `verbose=1`.


def log_iteration_async(
    iteration: Any, cost: Any, gradient_norm: Any, message: str = "", verbose: int = 0
) -> None:
    """Print an iteration of an optimizer, without waiting for its values.

    Args:
        iteration: The number of the iteration. It may be traced.
        cost: The value that is minimized. Do not donate it before it is printed.
        gradient_norm: The norm of its gradient.
        message: What to add to the line.
        verbose: 0 prints nothing, 1 every 10th iteration, and 2 all of them.

    Examples:
        >>> import spoolax
        >>> from spoolax.optimizers import log_iteration_async
        >>> for i in range(12):
        ...     log_iteration_async(i, 1 / (i + 1), 0.5**i, verbose=1)
        >>> spoolax.flush()
        Iteration      0: cost = 1.000000e+00, |gradient| = 1.000000e+00
        Iteration     10: cost = 9.090909e-02, |gradient| = 9.765625e-04
    """
    _check(verbose)
    if not verbose:
        return
    values = {"iteration": iteration, "cost": cost, "gradient_norm": gradient_norm}
    every = EVERY if verbose == 1 else 1
    if _is_traced(values):
        _stream(values, functools.partial(_printer.iterations, every, message))
    elif is_jax_array(iteration) or iteration % every == 0:
        _post(_iterations, values, every, message)


def log_convergence_async(
    reason: str,
    iterations: Any,
    final_cost: Any,
    time_sec: Any,
    final_gradient_norm: Any,
    verbose: int = 1,
) -> None:
    """Print how an optimization ended, without waiting for its values.

    Args:
        reason: Why it ended.
        iterations: How many iterations it took.
        final_cost: The value that was minimized.
        time_sec: How many seconds it took.
        final_gradient_norm: The norm of its gradient.
        verbose: 0 prints nothing.

    Examples:
        >>> import spoolax
        >>> from spoolax.optimizers import log_convergence_async
        >>> log_convergence_async("the gradient vanished", 42, 1e-3, 0.25, 1e-9); spoolax.flush()
        Converged after 42 iterations (0.250 s): the gradient vanished. Final cost = ...
    """
    _check(verbose)
    if not verbose:
        return
    values = {
        "iterations": iterations,
        "cost": final_cost,
        "seconds": time_sec,
        "gradient_norm": final_gradient_norm,
    }
    if _is_traced(values):
        _stream(values, functools.partial(_printer.convergences, reason))
    else:
        _post(_convergences, values, reason)


def is_jax_array(x: Any) -> bool:
    """Say whether something is a JAX array, concrete or traced.

    Examples:
        >>> import jax, numpy
        >>> is_jax_array(jax.numpy.ones(3)), is_jax_array(numpy.ones(3)), is_jax_array(1.0)
        (True, False, False)
    """
    return isinstance(x, jax.Array)


def _check(verbose: Any) -> None:
    if verbose not in (0, 1, 2):
        raise LogValueError(
            f"`verbose={verbose!r}` is not known. Use 0 to print nothing, 1 for every {EVERY}th "
            "iteration, or 2 for all."
        )


def _post(sink: Sink, values: dict[str, Any], *about: Any) -> None:
    # JAX arrays do not change, so only NumPy arrays are copied.
    kept = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in values.items()}
    host.post(sink, (kept, *about), arrays=list(filter(is_jax_array, values.values())))


def _is_traced(values: dict[str, Any]) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values.values())


def _stream(values: dict[str, Any], callback: Any) -> None:
    tap(lambda values: log(values) and None, callback)(values)


class _Printer:
    """Prints iterations and convergences. What methods of one object get, they get in order."""

    def iterations(self, every: int, message: str, logs: LogDict) -> None:
        """Print iterations that a program streams."""
        for values in _lanes(logs):
            self.iteration((values, every, message))

    def convergences(self, reason: str, logs: LogDict) -> None:
        """Print convergences that a program streams."""
        for values in _lanes(logs):
            self.convergence((values, reason))

    def iteration(self, item: tuple[dict[str, Any], int, str]) -> None:
        """Print an iteration."""
        values, every, message = item
        iteration = _text(values["iteration"], "d")
        if iteration.isdigit() and int(iteration) % every:
            return
        print(
            f"Iteration {iteration:>6}: cost = {_text(values['cost'])}, "
            f"|gradient| = {_text(values['gradient_norm'])}" + (f"  {message}" if message else ""),
            flush=True,
        )

    def convergence(self, item: tuple[dict[str, Any], str]) -> None:
        """Print a convergence."""
        values, reason = item
        print(
            f"Converged after {_text(values['iterations'], 'd')} iterations "
            f"({_text(values['seconds'], '.3f')} s): {reason}. Final cost = "
            f"{_text(values['cost'])}, |gradient| = {_text(values['gradient_norm'])}",
            flush=True,
        )


def _lanes(logs: LogDict) -> list[dict[str, Any]]:
    """The values of an entry; under vmap, those of each lane that is still running."""
    mask = np.asarray(logs.series(next(iter(logs))).mask)
    return [
        {name: np.asarray(x)[tuple(lane)] for name, x in logs.items()} for lane in np.argwhere(mask)
    ]


def _text(value: Any, how: str = ".6e") -> str:
    if is_donated(value):
        return "(donated)"
    number = value if isinstance(value, (int, float)) else float(value)
    return f"{int(number) if how == 'd' else number:{how}}"


_printer = _Printer()
_iterations, _convergences = Sink(_printer.iteration), Sink(_printer.convergence)
