"""The ring buffer, the check, the profiler, and the logger for Python's `logging`."""

import logging
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import spoolax
from spoolax import loggers

pytestmark = pytest.mark.once


def test_the_last_entries_are_in_a_file_after_a_crash(tmp_path):
    path = tmp_path / "last.jsonl"

    def run(fails):
        with loggers.RingBufferLogger(3, path) as logger:
            for i in range(10):
                logger.log({"x": jnp.float32(i)}, i)
            if fails:
                raise RuntimeError("crash")

    run(fails=False)
    assert not path.exists()
    with pytest.raises(RuntimeError, match="crash") as caught:
        run(fails=True)
    assert [line["x"] for line in loggers.read_jsonl(path)] == [7, 8, 9]
    assert str(path) in caught.value.__notes__[0]


def test_a_violation_stops_a_program_with_a_message():
    def positive(logs):
        return logs["i"] < 3

    def forever(x):
        def body(i):
            spoolax.log({"i": i}, step=i)
            spoolax.log({"other": x})
            return i + 1

        return lax.while_loop(lambda i: i >= 0, body, 0)

    with (
        pytest.raises(spoolax.StopRun, match=r"At step 3, `positive` does not hold: i=3"),
        loggers.CheckLogger(positive, keys="i") as logger,
    ):
        logger.tap(forever)(1.0)
    with (
        pytest.raises(spoolax.StopRun, match=r"At step 4, i grew: value=4"),
        loggers.CheckLogger(lambda i: i < 3, every=4, message="i grew") as logger,
    ):
        for i in range(10):
            logger.log(i, i)


def test_the_profiler_runs_for_the_window_alone(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda path: told.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: told.append("stop"))

    def run(start, end, steps=range(6), **options):
        told.clear()
        with loggers.ProfileLogger(tmp_path, start, end, **options) as logger:
            for step in steps:
                told.append(step)  # The step runs,
                logger.log(jnp.float32(step), step)  # and then this is called.
        return told.copy()

    assert run(2, 3) == [0, 1, "start", 2, 3, "stop", 4, 5]
    assert run(0, 0) == ["start", 0, "stop", 1, 2, 3, 4, 5]
    assert run(4, 100) == [0, 1, 2, 3, "start", 4, 5, "stop"]
    assert run(10, 20) == [0, 1, 2, 3, 4, 5]
    assert run(10, 11, range(10, 14), first_step=10) == ["start", 10, 11, "stop", 12, 13]
    with pytest.raises(RuntimeError, match="crash"), loggers.ProfileLogger(tmp_path, 0, 5):
        raise RuntimeError("crash")
    assert told[-1] == "stop"
    with pytest.raises(ValueError, match="empty"):
        loggers.ProfileLogger(tmp_path, 3, 2)


def test_the_profiler_is_released_when_the_run_raises(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="crash"), loggers.ProfileLogger(tmp_path, 0, 5):
            jnp.ones(3).block_until_ready()
            raise RuntimeError("crash")
    assert list(pathlib.Path(tmp_path).rglob("*.xplane.pb"))


def test_the_logger_of_python_gets_levels_and_fields(caplog):
    caplog.set_level("INFO", "training")

    def level(values):
        return "error" if values["x"] > 1 else logging.INFO

    with loggers.PythonLogger("training", level, extra={"job": 7}) as logger:
        logger.log({"x": jnp.float32(1)}, 0)
        logger.log({"x": jnp.float32(2)}, 1)
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("INFO", "step 0  x=1")
    assert (second.levelname, second.step, second.job) == ("ERROR", 1, 7)
    assert float(second.data["x"]) == 2
