"""Files with one JSON object per line, and files that cannot be written."""

import functools
import json
import math
import re
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax import loggers

pytestmark = pytest.mark.once


def test_json_lines_hold_every_kind_of_number(tmp_path):
    values = {
        "nan": float("nan"),
        "inf": jnp.array([1.0, jnp.inf, -jnp.inf]),
        "half": jnp.bfloat16(1.5),
        "empty": jnp.zeros((0, 2)),
        "flag": jnp.array(True),
        "complex": 1 + 2j,
        "text": "hello\nworld",
        "deep": {"er": np.int64(2**53 + 1)},
    }
    path = tmp_path / "new/directory/log.jsonl"
    with loggers.JsonlLogger(path) as logger:
        logger.log(values, 3)
    (text,) = path.read_text().splitlines()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["inf"] == [1.0, "Infinity", "-Infinity"]
    (line,) = loggers.read_jsonl(path)
    assert math.isnan(line["nan"])
    assert line["inf"] == [1.0, math.inf, -math.inf]
    assert (line["half"], line["empty"], line["flag"]) == (1.5, [], True)
    assert (line["complex"], line["text"], line["deep/er"]) == ([1, 2], "hello\nworld", 2**53 + 1)
    assert line["_step"] == 3


def test_json_lines_say_which_lanes_logged(tmp_path):
    def f(n):
        def body(i):
            spoolax.log({"i": i}, at=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    with loggers.JsonlLogger(tmp_path / "log.jsonl") as logger:
        logger.tap(jax.vmap(f))(jnp.array([1, 2]))
    assert [line["i"] for line in loggers.read_jsonl(logger.path)] == [[0, 0], [None, 1]]


def one_call(n):
    """Logs all kinds of values, by names that are taken, too."""

    def body(x, i):
        values = {"x": x, "nan": jnp.where(i % 3 == 0, jnp.nan, x), "_step": x[0] > 1, "tree": {}}
        values["tree"] = {"half": x.astype(jnp.bfloat16), "key": jax.random.key(i), "i": i}
        spoolax.log(values, tags=("a", "b"), step=2 * i, episode=jnp.float32(i))
        return x + 0.1, None

    return lax.scan(body, jnp.arange(2.0), jnp.arange(n))[0]


def calls_in_turn(n):
    """Logs single entries, and several in a row."""

    def body(x, i):
        spoolax.log({"outer": x}, at=i)
        y = lax.scan(lambda y, j: (y, spoolax.log({"inner": j}, at=i) and None), x, jnp.arange(20))
        spoolax.log({"outer": -x, "y": y[0]}, at=i)
        return x + 1, None

    return lax.scan(body, 0.0, jnp.arange(n))[0]


def steps_that_are_not_whole(n):
    def body(x, i):
        spoolax.log({"x": x}, step=i / 2)
        return x + 1, None

    return lax.scan(body, 0.0, jnp.arange(n))[0]


def no_steps(n):
    for _ in range(2):
        n = n + lax.fori_loop(0, n, lambda i, x: x + len(spoolax.log({"x": x})), 0)
    spoolax.log({"last": n})
    return n


def lanes_that_end(n):
    def body(i):
        spoolax.log({"i": i, "other": i * jnp.ones(2)}, at=i)
        return i + 1

    return jax.vmap(lambda n: lax.while_loop(lambda i: i < n, body, 0))(n + jnp.arange(3))


@pytest.mark.parametrize(
    "program", [one_call, calls_in_turn, steps_that_are_not_whole, no_steps, lanes_that_end]
)
def test_entries_that_come_together_are_written_as_if_one_by_one(program, tmp_path):
    together = loggers.JsonlLogger(tmp_path / "together.jsonl")
    by_itself = loggers.JsonlLogger(tmp_path / "by_itself.jsonl", every=1)
    assert together.takes_many
    assert not by_itself.takes_many
    if program is steps_that_are_not_whole:  # `every=1` would leave some out.
        by_itself = loggers.JsonlLogger(by_itself.path, view=dict)
    for logger in (together, by_itself):
        with logger:
            logger.tap(functools.partial(program, n=300))()
    texts = [
        [re.sub(r'"_time": [\d.]+', "", line) for line in logger.path.read_text().splitlines()]
        for logger in (together, by_itself)
    ]
    assert len(texts[0]) >= 300
    assert texts[0] == texts[1]


def test_a_logger_that_writes_in_its_own_way_gets_every_record(tmp_path):
    """One by one, also if they come together."""

    class Marked(loggers.JsonlLogger):
        def write(self, record):
            record.values["mark"] = len(record.values)
            super().write(record)

    def f(x):
        return jax.lax.fori_loop(0, 50, lambda i, x: spoolax.log({"x": x}) and x + 1, x)

    with Marked(tmp_path / "log.jsonl") as logger:
        logger.tap(f)(0)
    lines = list(loggers.read_jsonl(tmp_path / "log.jsonl"))
    assert [(line["x"], line["mark"]) for line in lines] == [(i, 1) for i in range(50)]


def test_loggers_that_keep_the_order_get_it_beside_others(tmp_path):
    jsonl, saved = loggers.JsonlLogger(tmp_path / "log.jsonl"), loggers.SaveLogger(tmp_path / "h5")
    with loggers.CompositeLogger(jsonl, saved) as logger:
        assert logger.takes_many
        logger.tap(functools.partial(calls_in_turn, n=5))()
    keys = [sorted({"outer", "inner", "y"} & set(line)) for line in loggers.read_jsonl(jsonl.path)]
    assert keys == 5 * [["outer"], *20 * [["inner"]], ["outer", "y"]]
    assert spoolax.load(saved.path)["inner"].tolist() == 5 * list(range(20))


def test_json_lines_go_on_after_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"_step": 0, "x": 1}\n{"_step": 1, "x"')
    with loggers.JsonlLogger(path, mode="a") as logger:
        logger.log({"x": 2}, 2)
    assert [line["_step"] for line in loggers.read_jsonl(path)] == [0, 2]


def test_json_lines_are_there_after_a_kill(tmp_path):
    code = f"""
        import os, signal, spoolax
        from spoolax.loggers import JsonlLogger
        with JsonlLogger({str(tmp_path / "log.jsonl")!r}) as logger:
            for i in range(1000):
                logger.log({{"x": i}}, i)
            spoolax.flush()
            logger.log({{"x": -1}}, 1000)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    lines = list(loggers.read_jsonl(tmp_path / "log.jsonl"))
    assert [line["x"] for line in lines[:1000]] == list(range(1000))


def test_files_that_cannot_be_written_are_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "old.jsonl").write_text("kept")
    for logger in (
        loggers.JsonlLogger(tmp_path),
        loggers.JsonlLogger(tmp_path / "file/log.jsonl"),
        loggers.JsonlLogger(tmp_path / "old.jsonl", "x"),
        loggers.RingBufferLogger(3, tmp_path),
        loggers.PlotLogger(tmp_path / "file/plot.png"),
    ):
        with pytest.raises(OSError, match="|".join(["directory", "exists"])):
            logger.__enter__()
    assert (tmp_path / "old.jsonl").read_text() == "kept"
    with pytest.raises(TypeError, match=r"must end with one of .*\.png"):
        loggers.PlotLogger(tmp_path / "plot.what").__enter__()
    with pytest.raises(ValueError, match="mode"):
        loggers.JsonlLogger("x", mode="r")
