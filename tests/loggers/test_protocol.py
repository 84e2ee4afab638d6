"""What every logger does: opening and closing, errors, threads, steps."""

import logging
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from logger_cases import Spy, five

import spoolax
from spoolax import errors, loggers, testing


def test_an_error_of_a_stream_is_raised_when_the_logger_is_closed():
    told = []
    with pytest.raises(ValueError, match="a logs 0"), Spy("a", told, fails=["logs"]) as logger:
        logger.tap(five)()
    spoolax.flush()  # Nothing is left to be raised.
    assert len(told) == 12


def test_errors_of_other_sinks_are_left_to_flush():
    def fails(logs):
        raise ValueError("mine")

    with testing.capture() as logger:
        spoolax.tap(five, fails)()
        logger.tap(five)()
    with pytest.raises(ValueError, match="mine"):
        spoolax.flush()


def test_a_method_may_call_that_of_its_base_class():
    class Derived(Spy):
        def __enter__(self):
            super().__enter__()
            self.told.append("derived")

        def log(self, state, step):
            super().log(state, step)

        def __exit__(self, *error):
            super().__exit__(*error)

    told = []
    with Derived("a", told) as logger:
        logger.log({}, 0)
    assert told == ["a enters", "derived", "a logs 0", "a exits"]


def test_one_that_could_not_be_opened_cannot_be_used():
    spy = Spy("a", [], fails=["enters"])
    with pytest.raises(ValueError, match="a enters"):
        spy.__enter__()
    with pytest.raises(errors.LoggerStateError, match="could not be opened"):
        spy.log({}, 0)


@pytest.fixture
def deadline():
    """Let a test that deadlocks fail, rather than hang."""

    def expired(number, frame):
        raise AssertionError("deadlock")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("deadline")
def test_a_logger_may_wait_for_the_worker_in_its_own_log(tmp_path):
    """The worker gets in meanwhile, though the user's thread is in `log` too."""
    told = []

    class Checkpoints(spoolax.Logger):
        def log(self, state, step):
            told.append(f"{step} begins")
            if step < 0:
                self.tap(five)()  # The worker has to deliver this to the same logger,
            with loggers.JsonlLogger(tmp_path / f"{step}.jsonl", mode="a") as one:
                one.log({"x": 1.0}, step)  # and at the end of this block, we wait for the worker.
            told.append(f"{step} ends")

    with Checkpoints() as logger:
        logger.log({"x": 1.0}, -1)
        streamed = [f"{i} {what}" for i in range(5) for what in ("begins", "ends") * 2]
        assert told == ["-1 begins", *streamed, "-1 ends"]
        logger.tap(five)()
        for i in range(5):
            logger.log({"x": 1.0}, i)
    assert len(told) == 2 * (1 + 10 + 10 + 5)
    lines = [len(list(loggers.read_jsonl(tmp_path / f"{i}.jsonl"))) for i in range(-1, 5)]
    assert lines == [1, 5, 5, 5, 5, 5]


def test_a_logger_may_be_opened_by_a_callback():
    seen = []

    def callback(logs):
        with testing.capture() as inner:
            inner.tap(five)()
        time.sleep(0.02)  # What it has delivered by now is not what `flush` waits for.
        seen.append(inner.values("i"))

    spoolax.tap(lambda x: spoolax.log({"x": x}) and x, callback)(1.0)
    spoolax.flush()
    assert seen == [[0, 1, 2, 3, 4]]


def test_a_broken_logger_is_reported_once_however_often_it_is_used(caplog):
    with pytest.raises(ValueError, match="a logs 0"), Spy("a", [], fails=["logs"]) as logger:
        for _ in range(5):
            logger.tap(five)()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_no_logger_hides_an_error_of_the_run():
    class Hiding(Spy):
        def __exit__(self, *error):
            return True

    with pytest.raises(RuntimeError, match="crash"), Hiding("a", []):
        raise RuntimeError("crash")


def test_lanes_that_did_not_log_do_not_count():
    def f(n):
        def body(i):
            spoolax.log({"y": 1.0 / (n - i)})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, jnp.float32(0))

    lanes, batched = jnp.array([2.0, 5.0]), jax.vmap(f)
    with loggers.CheckLogger(lambda logs: np.isfinite(logs["y"])) as logger:
        logger.tap(batched)(lanes)
    entries = []
    spoolax.tap(batched, entries.append)(lanes)
    spoolax.flush()
    with testing.capture() as logger:
        logger.log(entries[-1], 4)  # On this thread.
    assert logger.records[0].valid["y"].tolist() == [False, True]


def test_steps_are_named_or_iterations_or_counted():
    def f(x):
        spoolax.log({"before": x})

        def body(x, i):
            spoolax.log({"anonymous": x})
            spoolax.log({"named": x}, epoch=10 * i, step=100 * i)
            spoolax.log({"first": x}, epoch=10 * i, other=i)

            def inner(x, j):
                spoolax.log({"inner": x})
                return x, None

            return lax.scan(inner, x, None, length=2)[0], None

        return lax.scan(body, x, jnp.arange(2))[0]

    with testing.capture() as logger:
        tapped = logger.tap(f)
        tapped(1.0)
        tapped(1.0)

    def steps(key):
        return [record.step for record in logger.records if key in record.values]

    assert steps("before") == [0, 1]
    assert steps("anonymous") == [0, 1, 0, 1]
    assert steps("named") == [0, 100, 0, 100]
    assert steps("first") == [0, 10, 0, 10]
    assert steps("inner") == list(range(8))


def test_steps_are_numbers():
    with testing.capture() as logger:
        for step in (np.int64(3), jnp.int32(4), 2.5, 3.0, -1):
            logger.log({"x": 1}, step)
        for step in ("a", None, True, [1]):
            with pytest.raises(TypeError, match="step is a number"):
                logger.log({"x": 1}, step)
    assert [record.step for record in logger.records] == [3, 4, 2.5, 3, -1]
    assert [type(record.step) for record in logger.records] == [int, int, float, int, int]
