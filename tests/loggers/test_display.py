"""Loggers that show something: tables, bars and plots."""

import io
import math
import os

import jax
import jax.numpy as jnp
import pytest
from logger_cases import Terminal, five

import spoolax
from spoolax import loggers
from spoolax.loggers import _console, _history

pytestmark = pytest.mark.once


def test_curves_are_drawn_of_any_numbers():
    for values in (
        [1.0, 100.0, -math.inf],
        [1e308, -1e308],
        [0.0, 5e-324],
        [math.nan],
        [],
        [1.0, 1.0],
    ):
        assert len(_console.sparkline(values)) == len(values)
    assert _console.sparkline([0, 1, 2, 7]) == "▁▂▃█"
    history = _history.History(4)
    for step in range(10):
        history.add(1, step)
    assert history.curve()[1][-1] == 9


def test_a_picture_is_drawn_anew_as_the_run_goes(tmp_path):
    path = tmp_path / "plot.png"
    with loggers.PlotLogger(path, ["a", "b"]) as logger:
        logger.log({"a": 1.0, "b": jnp.ones(3), "c": 2}, 0)
        spoolax.flush()
        first = path.read_bytes()
        logger.log({"a": 2.0, "b": jnp.ones(3), "c": 2}, 1)
    assert first[:4] == b"\x89PNG"
    assert path.read_bytes() != first
    assert os.listdir(tmp_path) == ["plot.png"], "no drafts are left"
    assert set(logger._curves) == {"a", "b"}


def test_a_bar_shows_the_postfix_of_the_state():
    for file in (Terminal(), io.StringIO()):
        with loggers.TqdmLogger(3, lambda state: {"x": state[0]}, file=file) as logger:
            for i in range(3):
                logger.log((jnp.float32(0.25), "big"), i)
        assert "3/3" in file.getvalue()
        assert "x=0.25" in file.getvalue()
    assert file.getvalue().count("\n") == 1, "one line in a batch job"
    assert "\r" not in file.getvalue()


def test_a_postfix_that_raises_does_not_stop_the_run():
    file = io.StringIO()
    with (
        pytest.raises(KeyError, match="nothing"),
        loggers.TqdmLogger(3, lambda state: state["nothing"], file=file) as logger,
    ):
        for i in range(3):
            logger.log({"x": 1}, i)
    assert "3/3" in file.getvalue()


def test_a_table_shows_how_values_are_doing():
    file = Terminal()
    with loggers.ConsoleLogger(file=file, title="run", total=50) as logger:
        for i in range(50):
            logger.log({"[loss]": 1 / (1 + i), "x": jnp.ones(4), "bad": float("nan")}, i)
    shown = file.getvalue()
    for text in ("run", "[loss]", "0.02", "mean of 4", "nan", "step 49 of 50", "steps/s", "█"):
        assert text in shown, text


def test_lines_in_a_batch_job_are_few_but_the_last_is_there():
    file = io.StringIO()
    with loggers.ConsoleLogger(file=file) as logger:
        for i in range(1000):
            logger.log({"x": i}, i)
    lines = file.getvalue().splitlines()
    assert lines[0] == "step 0  x=0"
    assert lines[-1] == "step 999  x=999"
    assert "\x1b" not in file.getvalue()


def test_bars_count_steps_whatever_is_logged_in_them():
    def run(logger):
        with logger:
            logger.tap(five)()  # Two entries in each step.
        return file.getvalue()

    for make in (loggers.TqdmLogger, lambda n, file: loggers.TqdmLogger(n, file=file).every(2)):
        file = io.StringIO()
        assert "5/5" in run(make(5, file=file))
    file = io.StringIO()
    spoolax.simulate(
        lambda key, x: x + 1,
        0,
        100,
        key=jax.random.key(0),
        inner=10,
        logger=loggers.TqdmLogger(100, file=file).every(30),
    )
    assert "100/100" in file.getvalue()


def test_a_plot_says_if_it_has_nothing_to_draw(tmp_path, caplog):
    with loggers.PlotLogger(tmp_path / "a.png", "lo*") as logger:
        logger.log({"loss": 1.0, "lost": 2.0, "x": 1}, 0)
    assert set(logger._curves) == {"loss", "lost"}
    with loggers.PlotLogger(tmp_path / "b.png", "loose") as logger:
        logger.log({"loss": 1.0}, 0)
    assert "no key matches 'loose'. The keys were 'loss'." in caplog.text
