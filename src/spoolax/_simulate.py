"""The driver of a simulation: warm-up, production, loggers, and reproducible keys."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._jax.arrays import is_key, type_text
from ._tap.sinks import reports
from ._weak_cache import WeakCache
from .errors import LogTypeError, LogValueError
from .loggers import CompositeLogger, Logger, NullLogger
from .loggers._protocol.wrappers import AlreadyOpen, is_logger

SimState = TypeVar("SimState")
WARM_UP = 0xFFFFFFFF  # The largest number that `fold_in` takes. No step has it.


def key_chain(key: Any, start: int = 0) -> Iterator[Any]:
    """Yield a key for every step: `jax.random.fold_in(key, i)` for i from `start` on.

    The key of a step depends only on its number, so a run that is resumed from a checkpoint gets
    the same keys as one that was not interrupted.

    Examples:
        >>> import spoolax, itertools, jax
        >>> keys = spoolax.key_chain(jax.random.key(0))
        >>> third = list(itertools.islice(keys, 3))[2]
        >>> bool(third == next(spoolax.key_chain(jax.random.key(0), start=2)))
        True
    """
    while True:
        yield jax.random.fold_in(key, start)
        start += 1


def simulate(
    step: Callable[[Any, SimState], SimState],
    state: SimState,
    n_steps: int,
    *,
    key: Any,
    logger: Any = None,
    warmup: int = 0,
    inner: int = 1,
    donate: bool = True,
    start_step: int = 0,
) -> SimState:
    """Run a simulation, and hand its states to a logger.

    Calls `step(key, state)` for every step, and `logger.log(state, i)` after step i. The logger is
    opened before the first step and closed at the end, unless it is already open. The trajectory
    depends neither on the logger nor on `inner`, to the last bit: all steps run in the same
    compiled loop.

    Ctrl-C ends the run after the steps that are running: the loggers are closed, and the current
    state is returned. A second Ctrl-C raises `KeyboardInterrupt`.

    Args:
        step: A function of a key and a state that returns the next state, a pytree like the first.
        state: The initial state. It is copied, so your buffers are not donated.
        n_steps: How many steps to log.
        key: From `jax.random`. Step i gets the i-th key of `spoolax.key_chain(key)`.
        logger: Any context manager with `log(state, step)`.
        warmup: How many steps to run before. They are not logged, and have keys of their own.
        inner: How many steps may run on the device without the host. Loggers still get every state
            they want: a step for which `logger.wants(i)` is true ends the inner loop early.
        donate: Whether a step may overwrite the buffers of the previous state.
        start_step: The number of the first step, to resume a run.

    Examples:
        >>> import spoolax, jax
        >>> from spoolax.loggers import PrintLogger
        >>> def step(key, x):
        ...     return 0.5 * x + 0.0 * jax.random.normal(key)
        >>> x = spoolax.simulate(step, 1.0, 7, key=jax.random.key(0), logger=PrintLogger(every=3))
        step 0  value=0.5
        step 3  value=0.0625
        step 6  value=0.0078125
    """
    n_steps, warmup = _integer("n_steps", n_steps, 0), _integer("warmup", warmup, 0)
    start_step, inner = _integer("start_step", start_step, 0), _integer("inner", inner, 1)
    if max(start_step + n_steps, warmup) > WARM_UP:
        raise LogValueError(f"A simulation has at most {WARM_UP} steps.")
    _check_key(key)
    logger = NullLogger() if logger is None else logger
    _check_logger(logger)
    state = _initial_state(step, key, state)
    advance = _compiled.get(step, donate, functools.partial(_compile, donate))
    with _interruptible() as interrupted:
        warm, at = jax.random.fold_in(key, WARM_UP), _number(0)
        for first in range(0, warmup, inner):
            if interrupted():
                reports.warning("Interrupted during warm-up, after %d of %d steps.", first, warmup)
                return state
            at, state = advance(warm, at, state, _number(min(inner, warmup - first)))
        i, end, at = start_step, start_step + n_steps, _number(start_step)
        with _opened(logger) as opened:
            while i < end and not interrupted():
                count = _until_wanted(opened, i, min(inner, end - i))
                at, state = advance(key, at, state, _number(count))
                i += count
                _log_or_skip(opened, state, i - 1, count)
        if i < end:
            reports.warning(
                "Interrupted after %d of %d steps; what was logged is complete.",
                i - start_step,
                n_steps,
            )
    return state


@functools.lru_cache(maxsize=1024)
def _number(n: int) -> Any:
    """A number on the device. Transferring the same ones every time would be slow."""
    return jnp.asarray(n, jnp.uint32)


def _compile(donate: bool, step: Callable[[], Any]) -> Callable[..., Any]:
    # The number of steps is an argument: the same program runs whatever `inner` and the loggers
    # are, so that every bit is the same.
    def advance(key: Any, at: Any, state: Any, count: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            at, state = carry
            return at + jnp.uint32(1), step()(jax.random.fold_in(key, at), state)

        return lax.fori_loop(jnp.uint32(0), count, body, (at, state))

    return jax.jit(advance, donate_argnums=2 if donate else ())  # type: ignore[no-any-return]


_compiled: WeakCache[Any] = WeakCache(methods=False)


def _initial_state(step: Callable[..., Any], key: Any, state: Any) -> Any:
    """Copy the state, with the dtypes that a step returns."""
    state = jax.tree.map(jnp.array, state)
    try:
        after = jax.eval_shape(step, key, state)
    except Exception as error:
        error.add_note("This was raised by the `step` that was given to `spoolax.simulate`.")
        raise
    before, then = jax.tree.structure(state), jax.tree.structure(after)
    if before != then:
        raise LogTypeError(
            "`step` must return a state like the one it gets, but it gets and returns:\n"
            f"  {before}\n  {then}"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise LogTypeError(
                f"`step` must return a state like the one it gets, but state"
                f"{jax.tree_util.keystr(path)} is {type_text(old)} before the step, and "
                f"{type_text(new)} after it. Convert it in `step`, or begin with the other type."
            )
    return jax.tree.map(lambda old, new: lax.convert_element_type(old, new.dtype), state, after)


def _until_wanted(logger: Logger[Any], first: int, most: int) -> int:
    """How many steps to run until the logger wants the state, at most `most`."""
    for count in range(1, most):
        if logger.wants(first + count - 1):
            return count
    return most


def _log_or_skip(logger: Logger[Any], state: Any, step: int, count: int) -> None:
    wanted = logger.wants(step)
    if count > wanted:
        logger.skipped(count - wanted)
    if wanted:
        logger.log(state, step)


@contextlib.contextmanager
def _opened(logger: Any) -> Iterator[Logger[Any]]:
    """Open a logger unless it is open. Its failures do not end the run."""
    if isinstance(logger, Logger) and logger.is_open:
        logger = AlreadyOpen(logger)
    with CompositeLogger(logger) as opened:
        yield opened


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second one interrupts.

    Signals only reach the main thread. In others it always returns False.
    """
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _integer(name: str, given: Any, least: int) -> int:
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or given < least:
        raise LogValueError(f"`{name}` must be an integer of at least {least}, not {given!r}.")
    return int(given)


def _check_key(key: Any) -> None:
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and is_key(key)
    if np.ndim(key) != (0 if is_typed else 1) or not (is_typed or dtype == np.uint32):
        raise LogTypeError(
            f"`key` must be one key from `jax.random`, such as `jax.random.key(0)`, not {key!r}."
        )


def _check_logger(logger: Any) -> None:
    if not is_logger(logger):
        raise LogTypeError(
            f"`logger` must be a context manager with `log(state, step)`, not {logger!r}. Combine "
            "several loggers with `CompositeLogger(*loggers)`."
        )
