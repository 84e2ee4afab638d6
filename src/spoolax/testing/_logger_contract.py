"""What holds for every logger, as tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import loggers
from .._log.primitive import log
from .._simulate.simulate import simulate
from .._spool.spool import spool
from .._tap.host import flush
from .._tap.tap import tap
from ..errors import LoggerStateError
from ..loggers import Logger

Entries = list[tuple[int, dict[str, float]]]


def _program(x: Any) -> Any:
    """Logs five entries: `x` is the square of the step."""

    def body(total: Any, i: Any) -> tuple[Any, Any]:
        x = (i * i).astype(jnp.float32)
        log({"x": x}, step=i)
        return total + jnp.sin(x), x

    return jax.lax.scan(body, x, jnp.arange(5))


def _seeded(key: Any, x: Any) -> Any:
    del key
    return _program(x)


# These are defined here, not in the tests, so that they are compiled once for all loggers.
def _advance(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1, "x": (state["n"] + 1.0) ** 2}


_donating_step = jax.jit(_advance, donate_argnums=0)


def _simulation_step(key: Any, state: dict[str, Any]) -> dict[str, Any]:
    del key
    return {"x": state["n"] ** 2, "n": state["n"] + 1}


INTERRUPTED = loggers.Ending("interrupted", "KeyboardInterrupt")
EXPECTED: Entries = [(i, {"x": float(i * i)}) for i in range(5)]


class LoggerContract:
    """What holds for every logger, as tests. Derive from it and define `make`.

    Examples:
        >>> from spoolax.loggers import NullLogger
        >>> class TestNullLogger(LoggerContract):
        ...     def make(self, directory):
        ...         return NullLogger()
        >>> TestNullLogger().test_is_used_inside_of_with(None)
    """

    def make(self, directory: Path) -> Any:
        """Make a logger. It may write files into the directory."""
        raise NotImplementedError

    def read(self, logger: Any) -> Entries | None:
        """What has arrived in a closed logger: steps, and values by name. None: not known."""
        del logger
        return None

    def check(self, logger: Any, expected: Entries) -> None:
        """Compare what has arrived, if that is known, with what should have arrived."""
        arrived = self.read(logger)
        if arrived is not None:
            assert arrived == expected, f"expected {expected}, but got {arrived}"

    def test_takes_the_states_of_a_python_loop(self, tmp_path: Path) -> None:
        """`log(state, step)` logs each of them, in order."""
        with self.make(tmp_path) as logger:
            for step, state in EXPECTED:
                logger.log({"x": jnp.float32(state["x"])}, step)
        self.check(logger, EXPECTED)

    def test_takes_what_a_program_streams(self, tmp_path: Path) -> None:
        """`logger.tap(f)` delivers each entry once, in order, and leaves the output unchanged."""
        with self.make(tmp_path) as logger:
            out = logger.tap(_program)(jnp.float32(1))
        _same(out, jax.jit(_program)(jnp.float32(1)))
        self.check(logger, EXPECTED)

    def test_takes_what_a_program_collects(self, tmp_path: Path) -> None:
        """`logger.spool(f)` does the same."""
        with self.make(tmp_path) as logger:
            out = logger.spool(_program)(jnp.float32(1))
        _same(out, jax.jit(_program)(jnp.float32(1)))
        self.check(logger, EXPECTED)

    def test_can_be_the_callback_of_tap(self, tmp_path: Path) -> None:
        """`spoolax.tap(f, logger)` works too, also inside `jit`."""
        with self.make(tmp_path) as logger:
            jax.jit(tap(_program, logger))(jnp.float32(1))
        self.check(logger, EXPECTED)

    def test_opens_a_run_for_every_key(self, tmp_path: Path) -> None:
        """Under jit and vmap, `init` opens one run per key, and each gets its own entries."""

        def run(key: Any) -> Any:
            return logger.tap(_seeded, logger.init(key))(key, jnp.float32(1))

        with self.make(tmp_path) as logger:
            jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3))
        assert sorted(logger.runs) == [0, 1, 2]
        for one in logger.runs.values():
            assert not one.is_open
            self.check_run(one, EXPECTED)

    def test_takes_logs_that_were_spooled(self, tmp_path: Path) -> None:
        """`init` opens it outside of `with`, and `log(logger_state, logs)` sends them to a run."""
        logger = self.make(tmp_path)
        state = logger.init(jax.random.key(0))
        _, logs = spool(_program)(jnp.float32(1))
        logger.log(state, logs)
        with logger:
            assert logger.is_open
        assert not logger.is_open
        self.check_run(logger.runs[0], EXPECTED)

    def check_run(self, logger: Any, expected: Entries) -> None:
        """Like `check`, for the logger of a run."""
        self.check(logger, expected)

    def test_reads_the_state_before_it_is_donated(self, tmp_path: Path) -> None:
        """The buffers of a state may be overwritten as soon as `log` has returned."""
        state = {"n": jnp.float32(0), "x": jnp.float32(0)}
        with self.make(tmp_path) as logger:
            for i in range(5):
                logger.log(state, i)
                state = _donating_step(state)
        self.check(logger, [(i, {"n": float(i), "x": float(i * i)}) for i in range(5)])

    def test_is_driven_by_simulate(self, tmp_path: Path) -> None:
        """It gets the states that it wants, though several steps run at a time."""
        logger = self.make(tmp_path)
        start = {"x": jnp.float32(0), "n": jnp.float32(0)}
        simulate(_simulation_step, start, 5, key=jax.random.key(0), logger=logger, inner=3)
        self.check(logger, [(i, {"x": float(i * i), "n": i + 1.0}) for i in range(5)])

    def test_takes_steps_in_any_order(self, tmp_path: Path) -> None:
        """Steps may repeat or go back, as when a run is resumed; entries stay in order."""
        steps = [3, 4, 1, 1]
        with self.make(tmp_path) as logger:
            for step in steps:
                logger.log({"x": 1.0}, step)
        self.check(logger, [(step, {"x": 1.0}) for step in steps])

    def test_lets_errors_of_the_run_pass(self, tmp_path: Path) -> None:
        """What the block raises comes out unchanged, and the logger is closed."""
        error = RuntimeError("the run failed")
        try:
            with self.make(tmp_path) as logger:
                logger.log({"x": jnp.float32(1)}, 0)
                raise error
        except RuntimeError as raised:
            assert raised is error
        else:
            raise AssertionError("the error of the run was swallowed")
        assert not logger.is_open
        self.check(logger, [(0, {"x": 1.0})])

    def test_says_that_the_run_was_interrupted(self, tmp_path: Path) -> None:
        """By Ctrl-C, which is not a failure; and so were the runs of `init`."""
        logger = self.make(tmp_path)
        try:
            with logger:
                logger.tap(_program, logger.init(0))(jnp.float32(1))
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        runs = list(logger.runs.values())
        assert [one.ending for one in (logger, *runs)] == [INTERRUPTED] * 2

    def test_is_used_inside_of_with(self, tmp_path: Path) -> None:
        """Using it before or after, or entering it twice, is an error."""
        logger = self.make(tmp_path)
        with _refused():
            logger.log({"x": 1.0}, 0)
        with _refused():
            logger.tap(_program)(jnp.float32(1))
        with logger:
            with _refused():
                logger.__enter__()
            logger.log({"x": 1.0}, 0)
        with _refused():
            logger.log({"x": 1.0}, 1)
        with _refused():
            logger.__enter__()
        flush()
        self.check(logger, [(0, {"x": 1.0})])

    def test_can_be_one_of_several(self, tmp_path: Path) -> None:
        """In a `CompositeLogger` it gets every entry, though another logger fails."""

        class Failing(Logger[Any]):
            def log(self, state: Any, step: int) -> None:
                raise ValueError("broken")

        logger = self.make(tmp_path)
        try:
            with loggers.CompositeLogger(Failing(), logger, loggers.NullLogger()) as composite:
                composite.tap(_program)(jnp.float32(1))
        except ValueError as error:
            assert str(error) == "broken"
        else:
            raise AssertionError("the error of the other logger was lost")
        self.check(logger, EXPECTED)

    def test_can_be_thinned_out(self, tmp_path: Path) -> None:
        """`logger.every(n)` leaves out the other steps."""
        logger = self.make(tmp_path)
        with logger.every(2) as sparse:
            sparse.tap(_program)(jnp.float32(1))
        self.check(logger, EXPECTED[::2])


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except LoggerStateError:
        return
    raise AssertionError("expected a LoggerStateError")


def _same(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), "the output has changed"
