"""The driver of a simulation: warm-up, production, loggers, and reproducible keys."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax.arrays import is_key, type_text
from .._jax.primitives import Jaxpr
from .._listen.interrupts import interruptible
from .._listen.programs import trace_listening
from .._log.primitive import around_here
from .._weak_cache import WeakCache
from ..errors import Converged, InterruptedWarning, LogTypeError, LogValueError
from ..loggers import CompositeLogger, Logger, NullLogger
from ..loggers._protocol.ending import GoalReached, Interruption
from ..loggers._protocol.wrappers import AlreadyOpen, is_logger, takes_entries
from .agreement import Agreement
from .dispatch import AHEAD, Course, Now, run, run_until
from .programs import MOST_STEPS, CompiledStep
from .step_logs import StepLogs, logged_by, warn_of_no_taker
from .taking import Taking

SimState = TypeVar("SimState")


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
    resume: Any = None,
    until: Callable[[SimState], Any] | None = None,
    check_every: int = 1,
) -> SimState:
    """Run a simulation, and hand its states to a logger.

    Calls `step(key, state)` for every step, and `logger.log(state, i)` after step i. The logger is
    opened before the first step and closed at the end, unless it is already open. The trajectory
    depends neither on the logger nor on `inner`, to the last bit: all steps run in the same
    compiled loop.

    Ctrl-C ends the run after the steps that are running: the loggers are closed with the status
    "interrupted", an `InterruptedWarning` is issued, and the current state is returned. Then
    `spoolax.interrupted()` is true. A second Ctrl-C raises `KeyboardInterrupt`.

    Args:
        step: A function of a key and a state that returns the next state, a pytree like the first.
        state: The initial state. It is copied, so your buffers are not donated.
        n_steps: How many steps to log.
        key: From `jax.random`. Step i gets the i-th key of `spoolax.key_chain(key)`.
        logger: Any context manager with `log(state, step)`.
        warmup: How many steps to run before. They are not logged, and have keys of their own.
        inner: How many steps may run on the device without the host. Views of loggers that write
            what they take out of states run there as well, if they can be compiled. Other loggers
            get every state they want: a step for which `logger.wants(i)` is true ends the inner
            loop early.
        donate: Whether a step may overwrite the buffers of the previous state.
        start_step: The number of the first step, to resume a run.
        resume: A `spoolax.run` that is open. The simulation goes on where that has a checkpoint,
            if it was resumed, and keeps one once a minute and at the end.
        until: A function of the state that returns a scalar boolean. The run ends after the first
            step for which it is true, or after `n_steps`. It is compiled, and tested on the device.
        check_every: How many steps there are between two tests of `until`: it is tested when the
            number of steps since step 0 is a multiple of this.

    Examples:
        >>> import spoolax, jax
        >>> from spoolax.loggers import PrintLogger
        >>> def step(key, x):
        ...     return 0.5 * x + 0.0 * jax.random.normal(key)
        >>> x = spoolax.simulate(step, 1.0, 7, key=jax.random.key(0), logger=PrintLogger(every=3))
        step 0  value=0.5
        step 3  value=0.0625
        step 6  value=0.0078125
        >>> key, halve = jax.random.key(0), lambda key, x: x / 2
        >>> float(spoolax.simulate(halve, 1.0, 1000, key=key, until=lambda x: x < 0.01))
        0.0078125
    """
    n_steps, warmup = _integer("n_steps", n_steps, 0), _integer("warmup", warmup, 0)
    start_step, inner = _integer("start_step", start_step, 0), _integer("inner", inner, 1)
    check_every, end = _integer("check_every", check_every, 1), start_step + n_steps
    if max(end, warmup) > MOST_STEPS:
        raise LogValueError(
            f"A simulation has at most {MOST_STEPS} steps, because keys are numbered with 32 bits, "
            f"but this one would have {max(end, warmup)}. Do several of them in one call of `step`."
        )
    _check_key(key)
    if resume is not None:
        state, next_step = resume.restored(state)
        start_step, warmup = max(start_step, next_step), 0 if next_step else warmup
        n_steps = max(0, end - start_step)
    logger = NullLogger() if logger is None else logger
    _check_logger(logger)
    state, traced = _initial_state(step, key, state)
    logged = logged_by(traced)
    takes_logs = bool(logged) and takes_entries(logger)
    if logged and not (takes_logs or isinstance(logger, NullLogger) or around_here()):
        warn_of_no_taker(logged)
    if until is not None:
        _check_until(until, state)
    compiled = _compiled.get(step, donate, functools.partial(CompiledStep, donate))
    agreement = Agreement.of(state)
    if until is not None or agreement is not None:
        compiled = compiled.tested(until or _never)
    logger = _openable(logger, *([] if resume is None else [resume.checkpoints()]))
    taking = Taking(logger.wants)
    # Rows would reach the logger after what later steps log, and they might change how a state is
    # spread over devices.
    if inner > 1 and not takes_logs and _is_on_one_device(state):
        after = _types_after(step, key, state, traced)
        taking = Taking.of(logger.in_loop(after), inner, start_step, end)
    for view, room in zip(taking.views, taking.room, strict=True):
        compiled = compiled.taking(view, room)
    advance = compiled.advance
    now, ended = Now(0, state), None
    with _interruptible() as asked:

        def interruption() -> BaseException | None:
            return KeyboardInterrupt() if asked() else None

        warm = functools.partial(advance, jax.random.fold_in(key, MOST_STEPS))
        warming = Course(warm, warmup, inner, NullLogger(), taking.idle(), interruption, agreement)
        if agreement is None:
            run(now, warming)
        elif warmup:
            run_until(now, warming, MOST_STEPS, donate)
        what = f"Interrupted during warm-up, after {now.step} of {warmup} steps."

        def drive(opened: Logger[Any]) -> str:
            goal = ""
            with StepLogs(opened) as logs:
                program = functools.partial(logs.tap(advance) if takes_logs else advance, key)

                def stopping(logs: StepLogs = logs) -> BaseException | None:
                    return logs.stop or interruption()

                course = Course(program, end, inner, opened, taking, stopping, agreement)
                if until is None and agreement is None:
                    run(now, course)
                # What later steps log must not reach the logger before the state of this one.
                elif run_until(
                    now, course, min(check_every, MOST_STEPS), donate, 0 if takes_logs else AHEAD
                ):
                    assert until is not None, "nothing else ends it early"
                    name = getattr(until, "__name__", "<lambda>").replace("<lambda>", "until")
                    goal = f"`{name}` was true after step {now.step - 1}."
            if logs.stop is not None:
                raise logs.stop
            return goal

        if now.step == warmup and not now.interrupted:
            now.step = start_step
            ended = _produce(now, end, logger, drive)
            what = f"Interrupted after {now.step - start_step} of {n_steps} steps."
            if resume is not None and now.step > start_step:
                resume.checkpoint(now.state, now.step - 1)
    if now.interrupted:
        _interrupted.set()
    if asked() or now.interrupted:
        notes = ["What was logged is complete.", *getattr(ended, "__notes__", ())]
        warnings.warn("\n".join([what, *notes]), InterruptedWarning, stacklevel=2)
    return now.state  # type: ignore[no-any-return]


_compiled: WeakCache[CompiledStep] = WeakCache(methods=False)


def interrupted() -> bool:
    """Say whether Ctrl-C was pressed during the last `simulate`, which has returned nevertheless.

    Signals reach the main thread only, so this is about the last `simulate` there.

    Examples:
        >>> import spoolax, jax
        >>> x = spoolax.simulate(lambda key, x: x + 1, 0, 10, key=jax.random.key(0))
        >>> spoolax.interrupted()
        False
    """
    return _interrupted.is_set()


_interrupted = threading.Event()


def _produce(
    now: Now, end: int, logger: Logger[Any], drive: Callable[[Logger[Any]], str]
) -> BaseException | None:
    """Run with the logger open; return what has cut the run short, if something has.

    `drive` returns the goal that the run has reached, if it has. The logger sees an exception.
    """
    first = now.step
    try:
        with logger as opened:
            try:
                goal = drive(opened)
            except Converged as stop:
                raise GoalReached(str(stop)) from stop
            if goal:
                raise GoalReached(goal)
            if now.step < end:
                raise Interruption(f"Interrupted after {now.step - first} of {end - first} steps.")
    except (Interruption, Converged) as error:
        return error
    return None


def _initial_state(step: Callable[..., Any], key: Any, state: Any) -> tuple[Any, Jaxpr]:
    """Copy the state, with the dtypes that a step returns; return what was traced of the step."""
    state = jax.tree.map(jnp.array, state)
    try:
        closed, after = trace_listening(step, key, state)
    except Exception as error:
        error.add_note("This was raised by the `step` that was given to `spoolax.simulate`.")
        raise
    before, then = jax.tree.structure(state), jax.tree.structure(after)
    if before != then:
        raise LogTypeError(
            "`step` must return a state like the one it gets, but it gets and returns:\n"
            f"  {before}\n  {then}\n"
            "Return the same structure from `step`, or begin with the one that it returns."
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise LogTypeError(
                f"`step` must return a state like the one it gets, but state"
                f"{jax.tree_util.keystr(path)} is {type_text(old)} before the step, and "
                f"{type_text(new)} after it. Convert it in `step`, or begin with the other type."
            )
    converted = jax.tree.map(lambda x, new: lax.convert_element_type(x, new.dtype), state, after)
    return converted, closed


def _types_after(step: Callable[..., Any], key: Any, state: Any, traced: Jaxpr) -> Any:
    """The state, or the types that it has after a step: weak ones decide what views return."""
    is_weak = any(getattr(aval, "weak_type", False) for aval in traced.out_avals)
    return jax.eval_shape(step, key, state) if is_weak else state


def _is_on_one_device(state: Any) -> bool:
    return all(len(x.devices()) == 1 for x in jax.tree.leaves(state))


def _openable(logger: Any, *more: Logger[Any]) -> Logger[Any]:
    """A logger that opens these, unless they are open. Their failures do not end the run."""
    if isinstance(logger, Logger) and logger.is_open:
        logger = AlreadyOpen(logger)
    return CompositeLogger(logger, *more)


def _never(state: Any) -> Any:
    """What ends a run that nothing ends but its last step, or another process."""
    del state
    return jnp.bool_(False)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second one interrupts."""
    pressed = interruptible(anywhere=True)
    with pressed:
        is_active = pressed.is_active
        try:
            yield pressed.asked
        finally:
            if is_active and pressed.asked():
                _interrupted.set()
            elif is_active:
                _interrupted.clear()


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


def _check_until(until: Any, state: Any) -> None:
    if not callable(until):
        raise LogTypeError(f"`until` must be a function of the state, not {until!r}.")
    try:
        result = jax.eval_shape(until, state)
    except Exception as error:
        error.add_note("This was raised by the `until` that was given to `spoolax.simulate`.")
        raise
    if getattr(result, "shape", None) != () or result.dtype != jnp.bool_:
        what = type_text(result) if hasattr(result, "shape") else f"{result}"
        raise LogTypeError(
            f"`until` must return one boolean, such as `state['error'] < 1e-6`, but it returns "
            f"{what}. Reduce arrays with `.all()` or `.any()`."
        )


def _check_logger(logger: Any) -> None:
    if not is_logger(logger):
        raise LogTypeError(
            f"`logger` must be a context manager with `log(state, step)`, not {logger!r}. Combine "
            "several loggers with `CompositeLogger(*loggers)`."
        )
