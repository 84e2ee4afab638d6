"""Loggers that show something: tables, bars and plots."""

import io
import math
import os

import jax
import jax.numpy as jnp
import pytest
from logger_cases import Terminal, five
from rich.console import Console
from tqdm import tqdm

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


def test_a_table_takes_batches_and_shows_the_same():
    """Arrays as their means, lanes that log as the mean of those, and what is no number as text."""

    def f(x):
        def body(x, i):
            spoolax.log({"x": x, "pair": jnp.stack([x, 3 * x])}, step=2 * i)
            jax.lax.cond(i % 2 == 0, lambda: spoolax.log({"even": x}) and None, lambda: None)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(50))[0]

    shown = []
    for every in (None, 1):  # Of all, in batches; of those that a frequency chooses, one by one.
        with loggers.ConsoleLogger(every, file=Terminal()) as logger:
            logger.tap(jax.vmap(f))(jnp.arange(3.0))
            spoolax.flush()
            many = logger.takes_many
        shown.append({name: (one.curve(), one.count) for name, one in logger._values.items()})
        shown.append((logger._at, logger._first))
        assert many == (every is None)
    assert shown[:2] == shown[2:]
    assert set(shown[0]) == {"x (mean of 3)", "pair (mean of 6)", "even (mean of 3)"}
    assert shown[0]["x (mean of 3)"][1] == 50


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
    for text in ("run", "[loss]", "0.02", "mean of 4", "nan", "50 of 50 steps", "steps/s", "█"):
        assert text in shown, text


def frame(logger):
    """What a table shows now, as plain text."""
    console = Console(file=io.StringIO(), width=80)
    console.print(logger._draw())
    return console.file.getvalue()


@pytest.fixture
def terminal(monkeypatch):
    """One with 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_a_table_says_what_it_waits_for(terminal):
    """A program that is being compiled logs nothing yet."""
    with loggers.ConsoleLogger(file=terminal, title="run", total=50) as logger:
        logger._begun -= 7
        assert (
            frame(logger).split("\n")[0].strip() == "run  compiling, or in the first step ... 7 s"
        )


def test_a_table_with_a_total_says_how_long_it_will_take(terminal):
    with loggers.ConsoleLogger(file=terminal, title="run", total=100) as logger:
        for i in range(50):
            logger.log({"x": i}, i)
        spoolax.flush()
        logger._pace.clear()
        logger._pace += [(0.0, 29), (10.0, 49)]
        status = frame(logger).split("\n")[0]
    assert "50%   50 of 100 steps" in status
    assert ", 25 s left   2 steps/s" in status
    assert "━" in status


@pytest.mark.parametrize(
    ("every", "steps", "total"),
    [
        (None, range(200), 200),
        (10, range(200), 200),
        (None, range(1, 201), 200),
        (7, range(1000, 1200), 1200),  # Resumed, with the total of the whole run,
        (7, range(1000, 1200), 200),  # or of what is left of it.
    ],
)
def test_a_table_ends_with_all_steps_done(every, steps, total, terminal):
    """Whatever steps it was shown, and wherever they begin."""
    with loggers.ConsoleLogger(every, file=terminal, total=total) as logger:
        for i in steps:
            logger.log({"x": i}, i)
    assert f"{total} of {total} steps" in frame(logger)


def test_a_table_counts_steps_that_a_simulation_skips(terminal):
    logger = loggers.ConsoleLogger(10, file=terminal, total=100)
    spoolax.simulate(lambda key, x: x + 1, 0, 100, key=jax.random.key(0), inner=16, logger=logger)
    assert "100 of 100 steps" in frame(logger)


def test_keys_are_told_apart_in_a_narrow_terminal(terminal):
    """Columns give way to names, and names that are too long have several lines."""
    names = [f"train/metric_with_a_long_name/of_{which}" for which in ("accuracy", "loss")]
    longer = [f"{'path/' * 16}{which}" for which in ("mean", "median")]
    with loggers.ConsoleLogger(file=terminal) as logger:
        for i in range(9):
            logger.log(dict.fromkeys(["short"], i), i)
        spoolax.flush()
        assert "highest" in frame(logger)
        logger.log(dict.fromkeys(names, 1.5), 9)
        spoolax.flush()
        shown = frame(logger)
        assert all(name in shown for name in names)
        assert "highest" not in shown
        logger.log(dict.fromkeys(longer, -1.23456e-12), 10)
        spoolax.flush()
        shown = frame(logger)
    assert "-1.2346e-12" in shown
    assert "…" not in shown
    assert max(map(len, shown.split("\n"))) <= 80
    ends = [line.split()[0].rpartition("/")[2] for line in shown.split("\n") if "path/me" in line]
    assert ends == ["mean", "median"]


def test_bars_are_part_of_a_table(terminal):
    """Two things that redraw one terminal would smear it."""

    def f(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(30))[0]

    frames, alone = [], []
    with loggers.ConsoleLogger(file=terminal) as logger:

        def look(logs):
            frames.append(frame(logger))
            alone.append(len(tqdm._instances))

        both = spoolax.progress(spoolax.tap(logger.tap(f, keep_logs=True), look), file=terminal)
        both(0.0)
    assert any("f scan[0]:" in shown for shown in frames)
    assert not any(alone)
    text = terminal.getvalue()
    assert "f scan[0]: 100%" in text, "it stays when it is over"
    assert "30/30" in text


def test_a_bar_moves_into_a_table_and_out_of_it_again(terminal):
    """It was there before, and is there afterwards."""
    with loggers.TqdmLogger(10, file=terminal) as bar:
        bar.log({}, 0)
        spoolax.flush()
        assert len(tqdm._instances) == 1
        with loggers.ConsoleLogger(file=terminal) as logger:
            last, stop = [], logger._live.stop
            logger._live.stop = lambda: (last.append(frame(logger)), stop())
            assert not tqdm._instances
            assert "1/10" in frame(logger)
            other = loggers.TqdmLogger(5, file=io.StringIO())  # Not in this terminal.
            with other:
                other.log({}, 0)
                assert "/5" not in frame(logger)
        assert len(tqdm._instances) == 1
        assert "1/10" not in last[0], "it would be there twice"
    assert not tqdm._instances
    assert terminal.getvalue().rstrip().endswith("]")


def test_the_last_postfix_is_that_of_the_last_state():
    """Also of a run that is resumed, or ends early, and if all is over in no time."""

    def resumed(logger):
        step = lambda key, x: x + 1.0  # noqa: E731
        spoolax.simulate(step, 0.0, 50, key=jax.random.key(0), start_step=100, logger=logger)

    def ended_early(logger):
        with logger:
            for i in range(50):
                logger.log(jnp.float32(i + 1), i)

    def donated(logger):
        with logger:
            for i in range(50):
                x = jnp.float32(i + 1)
                logger.log(x, i)
            x.delete()

    for run, total in ((resumed, 50), (resumed, 150), (ended_early, 1000), (ended_early, None)):
        file = io.StringIO()
        run(loggers.TqdmLogger(total, lambda x: {"x": x}, file=file))
        assert "x=50]" in file.getvalue(), (run, total)
    file = io.StringIO()
    donated(loggers.TqdmLogger(1000, lambda x: {"x": x}, file=file))
    assert "50/1000" in file.getvalue()


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
