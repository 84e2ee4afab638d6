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

from spoolax.errors import LogTypeError, LogValueError, StopRun, TrackerError, UnsentWarning
from spoolax.loggers import TrackioLogger, replay
from spoolax.testing import LoggerContract


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
    arguments = {"project": project, "directory": place, "auto_log_cpu": False}
    return lambda **more: TrackioLogger(**{**arguments, **more})


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


def test_a_run_that_is_cut_short_has_an_alert(make, place):
    for error in (StopRun("it diverges"), ZeroDivisionError("no")):
        with pytest.raises(type(error)), make(name=type(error).__name__) as logger:
            logger.log({"x": 1}, 0)
            raise error
    alerts = logger._trackio.Api().alerts(logger.project)
    told = {one["run"]: (one["title"], one["text"], one["level"]) for one in alerts}
    assert told == {
        "StopRun": ("interrupted", "it diverges", "warn"),
        "ZeroDivisionError": ("failed", "ZeroDivisionError: no", "error"),
    }


def test_every_seed_is_a_run(make):
    logger, walks = log_seeds(make)
    found = database(logger)
    for i, walk in enumerate(walks):
        rows = found.run(f"walk-seed-{i}")
        expected = [(j, {"walk/x": x, "episode": j // 5}) for j, x in enumerate(walk.tolist())]
        assert rows == expected
        config = found.configs[f"walk-seed-{i}"]
        assert (config["lr"], config["seed"], config["_Group"]) == (0.1, i, logger.group)


def test_a_run_can_be_resumed(make):
    for start in (0, 10):
        with make(run_id="again", resume=True) as logger:
            logger.log({"x": start}, start)
    assert database(logger).run("again") == [(0, {"x": 0}), (10, {"x": 10})]


def by_id(logger):
    """The steps and values of `x` of every run, and its configuration, by its id."""
    with sqlite3.connect(logger.directory / f"{logger.project}.db") as connection:
        rows = connection.execute("select run_id, step, metrics from metrics order by id")
        found = {}
        for run, step, metrics in rows:
            found.setdefault(run, []).append((step, json.loads(metrics)["x"]))
        configs = dict(connection.execute("select run_id, config from configs").fetchall())
    connection.close()
    return found, {run: json.loads(config) for run, config in configs.items()}


def test_a_run_is_found_by_its_id_whatever_its_name_is(make):
    with make(name="one", run_id="mine", group="all", config={"lr": 1, "net": {"w": 3}}) as logger:
        logger.log({"x": 0}, 0)
    for _ in range(2):  # The second does not mix with the first.
        with make(name="one", run_id="other") as logger:
            logger.log({"x": 1}, 1)
    with pytest.raises(TrackerError, match="no run 'absent'"):
        with make(name="one", run_id="absent", resume="must"):
            pass
    with make(name="one", run_id="mine", resume="must", config={"lr": 2}) as logger:
        logger.log({"x": 2}, 2)
    found, configs = by_id(logger)
    assert found.pop("mine") == [(0, 0), (2, 2)]
    assert found.pop("other") == [(1, 1)]
    assert list(found.values()) == [[(1, 1)]]
    config = {name: configs["mine"][name] for name in ("lr", "net", "_Group")}
    assert config == {"lr": 2, "net": {"w": 3}, "_Group": "all"}


def test_what_is_replayed_goes_to_its_run_and_not_to_a_later_one_of_the_same_name(
    make, tmp_path, monkeypatch
):
    def fail(self, rows):
        raise OSError("not now")

    with monkeypatch.context() as patch, pytest.warns(UnsentWarning):
        with make(name="one", config={"v": 1}, spill=tmp_path) as first:
            first.log({"x": 0}, 0)
            assert first.flush()
            patch.setattr(TrackioLogger, "send", fail)
            first.log({"x": 1}, 1)
    with make(name="one", config={"v": 2}) as second:
        second.log({"x": 2}, 2)
    assert replay(tmp_path) == 1
    found, configs = by_id(second)
    assert found == {first.run_id: [(0, 0), (1, 1)], second.run_id: [(2, 2)]}
    assert (configs[first.run_id]["v"], configs[second.run_id]["v"]) == (1, 2)


def test_what_trackio_cannot_store_does_not_hold_up_others(make):
    with pytest.warns(UnsentWarning, match="refused 1 row"), make(name="one") as logger:
        logger.log({"x": 0, "huge": 2**70}, 0)
        logger.log({"x": 1}, 2**63)
        logger.log({"x": 2, "time": 3, "value/time": 4}, 2)
    assert database(logger).run("one") == [
        (0, {"x": 0, "huge": 2.0**70}),
        (2, {"x": 2, "value/time": 3, "value/time_2": 4}),
    ]


def test_a_database_that_somebody_holds_gets_its_rows_later(make, monkeypatch):
    with make(name="one") as logger:
        logger.log({"x": 0}, 0)
        assert logger.flush()
        storage = logger._storage
        connect, held = storage._get_connection, [True]

        def locked(*args, **arguments):
            if held:
                held.pop()
                raise sqlite3.OperationalError("database is locked")
            return connect(*args, **arguments)

        monkeypatch.setattr(storage, "_get_connection", staticmethod(locked))
        for i in range(1, 20):
            logger.log({"x": i}, i)
    assert database(logger).run("one") == [(i, {"x": i}) for i in range(20)]


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


def test_wrong_options_are_errors_before_the_run(make, tmp_path):
    with make() as logger:
        logger.log({"x": 1}, 0)
    with pytest.raises(LogTypeError, match=r"no option `space`.*Did you mean `space_id`"):
        make(space="me/here").__enter__()
    with pytest.raises(LogValueError, match="has no server"):
        make(mode="online").__enter__()
    with pytest.raises(LogValueError, match="cannot have two directories"):
        make(directory=tmp_path).__enter__()


def test_the_directory_is_where_it_is_said_to_be(tmp_path):
    program = f"""
import os
from spoolax.loggers import TrackioLogger
with TrackioLogger(project="placed", directory={str(tmp_path)!r}) as logger:
    logger.log({{"x": 1}}, 0)
assert "TRACKIO_DIR" not in os.environ
"""
    env = {name: x for name, x in os.environ.items() if name != "TRACKIO_DIR"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=120)
    assert len(Database(tmp_path / "placed.db").rows) == 1
