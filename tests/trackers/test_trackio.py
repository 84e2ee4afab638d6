"""Runs of Trackio, read back from its database."""

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from cases import COLOURS, NUMBERS, TEXT, log_everything, log_seeds
from PIL import Image

from chiplog.errors import LogTypeError, LogValueError, UnsentWarning
from chiplog.loggers import TrackioLogger, replay
from chiplog.testing import LoggerContract


@pytest.fixture(scope="session")
def place():
    return Path(os.environ["TRACKIO_DIR"])


class Database:
    def __init__(self, path):
        with sqlite3.connect(path) as connection:
            rows = connection.execute(
                "select run_name, step, metrics from metrics order by id"
            ).fetchall()
            configs = connection.execute("select run_name, config from configs").fetchall()
        connection.close()
        self.rows = [(run, step, json.loads(metrics)) for run, step, metrics in rows]
        self.configs = {run: json.loads(config) for run, config in configs}

    def run(self, name):
        return [(step, metrics) for run, step, metrics in self.rows if run == name]


class TestTrackioLogger(LoggerContract):
    @pytest.fixture(autouse=True)
    def _place(self, place):
        self.place = place

    def make(self, directory):
        project = f"contract-{uuid.uuid4().hex[:8]}"
        return TrackioLogger(project=project, directory=self.place, auto_log_cpu=False)

    def read(self, logger):
        database = Database(self.place / f"{logger.project}.db")
        return database.run(logger.name or logger.run_id)


@pytest.fixture
def make(place, request):
    project = f"tests-{uuid.uuid4().hex[:8]}"
    words = {"project": project, "directory": place, "auto_log_cpu": False}
    return lambda **more: TrackioLogger(**{**words, **more})


def database(logger):
    return Database(logger.directory / f"{logger.project}.db")


def test_everything_that_can_be_shown_arrives(make, place):
    logger = log_everything(make)
    found = database(logger)
    rows = dict(found.run("everything"))
    assert list(rows) == [0, 1, 2, 3, 4]
    assert rows[0] == {"loss/train": 0.5, "zero": 0.25, "count": 3}
    assert rows[1] == {"nan": "NaN", "inf": "Infinity", "minus": "-Infinity"}
    path = Path(place / "media" / rows[2]["colours"]["file_path"])
    seen = np.asarray(Image.open(path).convert("RGB"))
    np.testing.assert_array_equal(seen, COLOURS)
    assert rows[2]["grey"]["_type"] == "trackio.image"
    assert sum(rows[3]["numbers"]["values"]) == len(NUMBERS)
    assert [rows[3][f"few/{i}"] for i in range(3)] == [0.0, 1.0, 2.0]
    assert rows[4]["note"]["_value"] == TEXT
    assert found.configs["everything"]["lr"] == 0.5
    assert found.configs["everything"]["a"] == {"b": 1}


def test_every_seed_is_a_run(make):
    logger, walks = log_seeds(make)
    found = database(logger)
    for i, walk in enumerate(walks):
        rows = found.run(f"walk-seed-{i}")
        expected = [(j, {"walk/x": x, "episode": j // 5}) for j, x in enumerate(walk.tolist())]
        assert rows == expected
        config = found.configs[f"walk-seed-{i}"]
        assert (config["lr"], config["seed"], config["_Group"]) == (0.1, i, logger.group)


def test_a_run_can_be_gone_on_with(make):
    for start in (0, 10):
        with make(run_id="again", resume=True) as logger:
            logger.log({"x": start}, start)
    assert database(logger).run("again") == [(0, {"x": 0}), (10, {"x": 10})]


def test_a_run_that_was_never_opened_is_a_new_one_when_replayed(make, monkeypatch, tmp_path):
    with make(name="one") as logger:
        logger.log({"x": 0}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(TrackioLogger, "connect", lambda self: (_ for _ in ()).throw(OSError("no")))
        with pytest.warns(UnsentWarning), make(name="one", spill=tmp_path) as logger:
            logger.log({"x": 7}, 7)
    assert replay(tmp_path) == 1
    with sqlite3.connect(logger.directory / f"{logger.project}.db") as connection:
        found = connection.execute("select run_id, step from metrics order by id").fetchall()
    connection.close()
    assert [step for _, step in found] == [0, 7]
    assert len({run for run, _ in found}) == 2


def test_names_that_are_trackios_own_are_kept_under_another(make):
    with make(name="one") as logger:
        logger.log({"time": 1, "_private": 2}, 0)
    assert database(logger).run("one") == [(0, {"value/time": 1, "value/_private": 2})]


def test_wrong_options_are_told_before_the_run(make, tmp_path):
    with make() as logger:
        logger.log({"x": 1}, 0)
    with pytest.raises(LogTypeError, match=r"no option `space`.*Did you mean `space_id`"):
        make(space="me/here").__enter__()
    with pytest.raises(LogValueError, match="does not know where"):
        make(mode="online").__enter__()
    with pytest.raises(LogValueError, match="cannot have two places"):
        make(directory=tmp_path).__enter__()


def test_the_directory_is_where_it_is_said_to_be(tmp_path):
    program = f"""
import os
from chiplog.loggers import TrackioLogger
with TrackioLogger(project="placed", directory={str(tmp_path)!r}) as logger:
    logger.log({{"x": 1}}, 0)
assert "TRACKIO_DIR" not in os.environ
"""
    env = {name: x for name, x in os.environ.items() if name != "TRACKIO_DIR"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=120)
    assert len(Database(tmp_path / "placed.db").rows) == 1
