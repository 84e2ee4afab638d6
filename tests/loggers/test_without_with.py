"""Loggers that nobody entered: `init` opens them, and they are closed at exit, or by a `with`."""

import logging
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax import errors, loggers, testing
from spoolax.loggers._protocol import left_open


def squares(n):
    def body(x, i):
        spoolax.log({"x": x, "twice": 2 * x}, step=i)

        def log(x):
            spoolax.log({"large": x}, step=i)
            return x

        x = jax.lax.cond(x > 5, log, lambda x: x, x)
        return x + 2 * i.astype(jnp.float32) + 1, None

    x = jax.lax.scan(body, n, jnp.arange(4))[0]
    spoolax.log({"end": x})
    return x


def entries(run):
    return [
        (one.step, {name: np.asarray(x).tolist() for name, x in one.values.items()})
        for one in run.records
    ]


EXPECTED = [
    *((i, {"x": x, "twice": 2 * x}) for i, x in enumerate([1, 2, 5, 10])),
    (3, {"large": 10}),
    (0, {"end": 17}),
]


def recent():
    return loggers.RingBufferLogger(100)


def test_init_opens_a_logger_and_a_with_block_closes_it():
    logger = recent()
    state = logger.init(jax.random.key(0))
    assert logger.is_open
    logger.tap(squares, state)(jnp.float32(1))
    with logger as same:
        assert same is logger
        logger.spool(squares, state)(jnp.float32(1))
    assert not logger.is_open
    assert [e for _, e in entries(logger.runs[0]) if "x" in e] == 2 * [e for _, e in EXPECTED[:4]]
    with pytest.raises(errors.LoggerStateError):
        logger.init(jax.random.key(1))


def test_init_opens_a_logger_inside_of_jit_and_vmap():
    logger = recent()

    def run(key):
        return logger.tap(squares, logger.init(key))(jnp.float32(1))

    jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))
    with logger:
        pass
    assert [len(run.records) for run in logger.runs.values()] == [len(EXPECTED)] * 2


def test_a_logger_that_is_left_open_is_closed_at_exit(caplog):
    class Failing(testing.capture):
        def __exit__(self, *error):
            raise OSError("no room")

    first, second, third = recent(), Failing(), recent()
    for logger in (first, second, third):
        state = logger.init(jax.random.key(0))
    third.tap(squares, state)(jnp.float32(1))
    with caplog.at_level(logging.CRITICAL, "spoolax"):
        left_open._close_all()
    assert not any(logger.is_open for logger in (first, second, third))
    assert len(third.runs[0].records) == len(EXPECTED)


@pytest.mark.parametrize("ending", ["", "raise ValueError('no luck')"])
def test_nothing_is_lost_when_a_program_ends(ending, tmp_path):
    """Everything is in the file, which says how the program ended."""
    program = f"""
import jax, jax.numpy as jnp, spoolax
from spoolax.loggers import SaveLogger

def f(x):
    def body(x, i):
        spoolax.log({{"x": x}}, step=i)
        return x + 1, None
    return jax.lax.scan(body, x, jnp.arange(100))[0]

logger = SaveLogger({str(tmp_path / "a.h5")!r})
state = logger.init(jax.random.key(0))
y = logger.spool(f, state)(0.0)
y, logs = spoolax.spool(f)(100.0)
logger.log(state, logs)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == (1 if ending else 0), done.stderr
    assert done.stderr.strip().endswith("ValueError: no luck" if ending else ""), done.stderr
    logs = spoolax.load(tmp_path / "a-run-0.h5")
    assert logs["x"].tolist() == list(range(200))
    assert logs.step["x"].tolist() == [*range(100), *range(100)]
    with spoolax.open(tmp_path / "a-run-0.h5") as reader:
        assert reader.status == ("failed" if ending else "finished")


def log_whole(logger, state, x):
    y, logs = spoolax.spool(squares)(x)
    logger.log(state, logs)
    return y


def test_log_sends_spooled_logs_to_a_run():
    """Keys of the same steps are one entry again."""
    with recent() as logger:
        state = logger.init(jax.random.key(0))
        for _ in range(2):
            log_whole(logger, state, jnp.float32(1))
        logger.log(state, {"more": 1.0})
        logger.log(state, {})
    again = [*EXPECTED[:-1], (1, {"end": 17})]  # Entries without steps are counted.
    assert entries(logger.runs[0]) == [*EXPECTED, *again, (0, {"more": 1.0})]


def test_log_sends_spooled_logs_of_every_lane_to_its_run():
    """Inside jit, vmap and loops, without what is only padding there."""
    keys, xs = jax.random.split(jax.random.key(0), 2), jnp.array([1.0, -9.0])

    def inside(key, x):
        return log_whole(logger, logger.init(key), x)

    def outside(keys, xs):
        states = jax.vmap(logger.init)(keys)
        _, logs = jax.vmap(spoolax.spool(squares))(xs)
        jax.vmap(logger.log)(states, logs)

    for run in (jax.vmap(inside), jax.jit(jax.vmap(inside)), outside):
        with recent() as logger:
            run(keys, xs)
        assert entries(logger.runs[0]) == EXPECTED
        assert [e[1] for e in entries(logger.runs[1])][-2:] == [{"x": 0, "twice": 0}, {"end": 7}]
        assert len(logger.runs) == 2


def test_log_works_inside_loops():
    def train(key):
        state = logger.init(key)

        def epoch(x, _):
            _, logs = spoolax.spool(squares, argnames="x")(x)
            logger.log(state, logs.reduce("max").prefix("train/"))
            return x + 1, None

        return jax.lax.scan(epoch, jnp.float32(1), length=3)[0]

    with recent() as logger:
        jax.jit(train)(jax.random.key(0))
    assert entries(logger.runs[0]) == [(3, {"train/x": x}) for x in (10, 11, 12)]


def test_lanes_that_did_not_log_stay_marked():
    with recent() as logger:
        state = logger.init(jax.random.key(0))
        _, logs = jax.vmap(spoolax.spool(squares))(jnp.array([1.0, -9.0]))
        logger.log(state, logs.filter("large"))
    (record,) = logger.runs[0].records
    assert record.valid["large"].tolist() == [True, False]


def test_log_says_what_it_takes():
    with recent() as logger:
        state = logger.init(jax.random.key(0))
        with pytest.raises(TypeError, match=r"`logger.log\(logger_state, logs\)` takes logs"):
            logger.log(state, 3)
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
        with pytest.raises(TypeError, match=r"3 runs.*jax.vmap"):
            logger.log(states, {"x": jnp.ones(3)})
    with pytest.raises(errors.LoggerStateError):
        logger.log(state, {"x": 1.0})


def test_logs_may_be_changed_once_they_are_logged():
    x = np.ones(2)
    with recent() as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": x})
        x[:] = 0
    assert entries(logger.runs[0]) == [(0, {"x": [1, 1]})]
