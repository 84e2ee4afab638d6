"""The driver of a simulation: warm-up, production, loggers, and keys that can be made again."""

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

from ._jax.arrays import is_key
from ._tap.sinks import reports
from ._weak_cache import WeakCache
from .errors import LogTypeError, LogValueError
from .loggers import CompositeLogger, Logger, NullLogger
from .loggers._composite import Borrowed, is_logger

S = TypeVar("S")
WARM_UP = 0xFFFFFFFF  # The last number that a key can be folded with: no step gets that far.


def key_chain(key: Any, start: int = 0) -> Iterator[Any]:
    """Yield a key for every step: `jax.random.fold_in(key, i)` for i from `start` on.

    The key of a step depends on its number alone, so a run that goes on from a checkpoint gets the
    same keys as one that was not interrupted.

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
    step: Callable[[Any, S], S],
    state: S,
    n_steps: int,
    *,
    key: Any,
    logger: Any = None,
    warmup: int = 0,
    inner: int = 1,
    donate: bool = True,
    start_step: int = 0,
) -> S:
    """Run a simulation, and hand its states to a logger.

    Calls `step(key, state)` as often as asked for, and `logger.log(state, i)` after step i. The
    logger is opened before the first step, and closed at the end, unless it is open already. The
    trajectory does not depend on the logger, nor on `inner`, to the last bit: all steps run in the
    same compiled loop.

    Ctrl-C ends the run after the steps that are under way: the loggers are closed, and the state so
    far is returned. Another one, while that happens, raises `KeyboardInterrupt`.

    Args:
        step: A function of a key and a state that returns the next state, a pytree like the first.
        state: The state to begin with. It is copied, so it stays yours.
        n_steps: How many steps to log.
        key: From `jax.random`. Step i gets the i-th key of `spoolax.key_chain(key)`.
        logger: Anything with `log(state, step)` that is a context manager.
        warmup: So many steps before, which are not logged, with keys of their own.
        inner: How many steps may run on the device without the host. Loggers still get all they ask
            for: a step whose state one wants (`logger.wants(i)`) ends the loop early.
        donate: Whether a step may overwrite the buffers of the state before it.
        start_step: The number of the first step, to go on with a run.

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
    n_steps, warmup = _count("n_steps", n_steps, 0), _count("warmup", warmup, 0)
    start_step, inner = _count("start_step", start_step, 0), _count("inner", inner, 1)
    if max(start_step + n_steps, warmup) > WARM_UP:
        raise LogValueError(f"A simulation has at most {WARM_UP} steps.")
    _check_key(key)
    logger = NullLogger() if logger is None else logger
    _check_logger(logger)
    state = _settled(step, key, state)
    advance = _compiled.get(step, donate, functools.partial(_compile, donate))
    with _interruptible() as interrupted:
        warm, at = jax.random.fold_in(key, WARM_UP), _number(0)
        for first in range(0, warmup, inner):
            if interrupted():
                reports.warning("Interrupted in the warm-up, after %d of %d steps.", first, warmup)
                return state
            at, state = advance(warm, at, state, _number(min(inner, warmup - first)))
        i, end, at = start_step, start_step + n_steps, _number(start_step)
        with _opened(logger) as opened:
            while i < end and not interrupted():
                count = _until_wanted(opened, i, min(inner, end - i))
                at, state = advance(key, at, state, _number(count))
                i += count
                _tell(opened, state, i - 1, count)
        if i < end:
            reports.warning(
                "Interrupted after %d of %d steps; what was logged is complete.",
                i - start_step,
                n_steps,
            )
    return state


@functools.lru_cache(maxsize=1024)
def _number(n: int) -> Any:
    """A number on the device. Transferring the same ones again and again would take time."""
    return jnp.asarray(n, jnp.uint32)


def _compile(donate: bool, step: Callable[[], Any]) -> Callable[..., Any]:
    # The number of steps is not part of the program: one and the same runs whatever `inner` is, and
    # whoever listens, so that every bit is the same.
    def advance(key: Any, at: Any, state: Any, count: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            at, state = carry
            return at + jnp.uint32(1), step()(jax.random.fold_in(key, at), state)

        return lax.fori_loop(jnp.uint32(0), count, body, (at, state))

    return jax.jit(advance, donate_argnums=2 if donate else ())  # type: ignore[no-any-return]


_compiled: WeakCache[Any] = WeakCache(methods=False)


def _settled(step: Callable[..., Any], key: Any, state: Any) -> Any:
    """Copy the state, as arrays of the types that a step returns."""
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
                f"{jax.tree_util.keystr(path)} is {_type(old)} before, and {_type(new)} after it. "
                "Convert it in `step`, or begin with the other type."
            )
    return jax.tree.map(lambda old, new: lax.convert_element_type(old, new.dtype), state, after)


def _type(x: Any) -> str:
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def _until_wanted(logger: Logger[Any], first: int, most: int) -> int:
    """How many steps to run until there is a state that the logger wants, at most `most`."""
    for count in range(1, most):
        if logger.wants(first + count - 1):
            return count
    return most


def _tell(logger: Logger[Any], state: Any, step: int, count: int) -> None:
    if logger.wants(step):
        logger.log(state, step)
        count -= 1
    if count:
        logger.skipped(count)


@contextlib.contextmanager
def _opened(logger: Any) -> Iterator[Logger[Any]]:
    """Open a logger, unless somebody else has; what fails in it does not end the run."""
    if isinstance(logger, Logger) and logger.is_open:
        logger = Borrowed(logger)
    with CompositeLogger(logger) as opened:
        yield opened


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C ask for an end, the first time. Only the main thread gets to know of it."""
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


def _count(name: str, count: Any, least: int) -> int:
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < least:
        raise LogValueError(f"`{name}` must be a whole number from {least} on, not {count!r}.")
    return int(count)


def _check_key(key: Any) -> None:
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and is_key(key)
    if np.ndim(key) != (0 if is_typed else 1) or not (is_typed or dtype == np.uint32):
        raise LogTypeError(
            f"`key` is one key of `jax.random`, such as `jax.random.key(0)`, not {key!r}."
        )


def _check_logger(logger: Any) -> None:
    if not is_logger(logger):
        raise LogTypeError(
            f"`logger` must be a context manager with a `log(state, step)`, not {logger!r}. "
            "Several loggers are one as `CompositeLogger(*loggers)`."
        )
