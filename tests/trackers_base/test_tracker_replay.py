"""Files of rows are sent later, or to another tracker."""

import contextlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_tracker import ToSite, waiting_files

import spoolax
from spoolax import loggers
from spoolax.errors import (
    LogFileError,
    LogTypeError,
    LogValueError,
    UnsentWarning,
)
from spoolax.loggers import replay
from spoolax.loggers.trackers._replay import TRACKERS

pytestmark = pytest.mark.once


def test_any_byte_may_be_in_a_file(make, site, tmp_path):
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        site.is_away.set()
        for i in range(2500):
            logger.log({"x": i}, i)
    (left,) = waiting_files(tmp_path)
    data = left.read_bytes()
    place = data.index(b'"x": 1234')
    left.write_bytes(data[:place] + b"\r" + data[place + 1 :])
    site.is_away.clear()
    with pytest.warns(UnsentWarning, match="refused 1 row"):
        assert replay(left, site=site) == 2499


def test_what_could_not_be_sent_can_be_replayed(make, site, tmp_path):
    with pytest.warns(UnsentWarning, match=r"ToSite could not send 9 rows.*replay\("):
        with make(config={"lr": 0.1}) as logger:
            logger.log({"x": 0}, 0)
            assert logger.flush()
            site.is_away.set()
            for i in range(1, 10):
                logger.log({"x": i}, i)
    (left,) = waiting_files(tmp_path)
    assert left.read_text().count("\n") == 11
    with pytest.warns(UnsentWarning, match="could not send 9 rows"):
        assert replay(left, site=site) == 0
    site.is_away.clear()
    assert replay(left, site=site) == 9
    assert site.runs["one"].numbers() == list(range(1, 10))
    assert site.runs["one"].config == {"lr": 0.1}
    assert site.runs["one"].run_id == logger.run_id
    assert not left.exists()


@pytest.mark.parametrize(
    ("error", "ended"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed"), (None, "well")]
)
def test_a_run_that_is_replayed_ends_as_it_did(make, site, tmp_path, error, ended):
    with pytest.raises(error) if error else contextlib.nullcontext():
        with pytest.warns(UnsentWarning), make(patience=0) as logger:
            site.is_away.set()
            logger.log({"x": 1}, 0)
            if error:
                raise error
    (left,) = waiting_files(tmp_path)
    with pytest.warns(UnsentWarning):
        assert replay(left, site=site) == 0
    site.is_away.clear()
    assert replay(left, site=site) == 1
    assert site.runs["one"].ended == ended


def test_what_a_killed_process_has_flushed_can_be_sent(make, site, tmp_path):
    program = """
import sys, time, spoolax
from spoolax.loggers import TrackerLogger

class Hanging(TrackerLogger):
    most = 1
    def send(self, rows):
        if rows[0].step >= 50:
            time.sleep(1000)

with Hanging(directory=sys.argv[1]) as logger:
    for i in range(100):
        logger.log({"x": i}, i)
    spoolax.flush()
    while logger._channel.waiting > 50:
        time.sleep(0.01)
    print("flushed", flush=True)
    time.sleep(1000)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "flushed\n"
        process.kill()
    (left,) = waiting_files(tmp_path)
    assert replay(left, to=make()) == 50
    assert site.runs["one"].numbers() == list(range(50, 100))


def test_lines_that_are_not_rows_are_put_aside(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning, match="could not send 2 rows"), make() as logger:
        logger.log({"x": 0}, 0)
        logger.log({"x": 1}, 1)
    (left,) = waiting_files(tmp_path)
    with open(left, "ab") as file:
        file.write(b'\xff\xfe\n{"x": 1}\n5\n{"_step": 2, "x": 2}\n')
    site.is_away.clear()
    with pytest.warns(UnsentWarning, match="refused 3 rows"):
        assert replay(left, site=site) == 3
    assert site.runs["one"].numbers() == [0, 1, 2]
    (aside,) = waiting_files(tmp_path)
    assert aside.read_bytes().splitlines()[1:] == [b"\xff\xfe", b'{"x": 1}', b"5"]


def test_a_file_in_use_is_left_alone(make, site, tmp_path, caplog):
    site.is_away.set()
    with make() as logger:
        logger.log({"x": 0}, 0)
        spoolax.flush()
        (left,) = waiting_files(tmp_path)
        (tmp_path / "spoolax-unsent" / "other.jsonl").write_text("{}\n")
        with pytest.raises(LogFileError, match="in use"):
            replay(left, site=site)
        assert replay(left.parent, site=site) == 0
        assert "in use, so it was left alone" in caplog.text
        site.is_away.clear()
    assert site.runs["one"].ended == "well"
    assert site.runs["one"].numbers() == [0]


def test_any_jsonl_file_can_be_sent(make, site, tmp_path):
    path = tmp_path / "log.jsonl"
    with loggers.JsonlLogger(path) as logger:
        for i in range(5):
            logger.log({"x": i, "nan": np.nan, "v": np.arange(2.0)}, i)
    with pytest.raises(LogValueError, match="does not say which tracker"):
        replay(path)
    assert replay(path, to=make()) == 5
    assert site.runs["one"].numbers() == list(range(5))
    assert site.runs["one"].numbers("v/1") == [1.0] * 5
    assert path.exists()


def test_entries_of_a_jsonl_file_become_the_same_rows(make, site, tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    names = ("_texts", "_steps", "_histograms", "_images", "_axis")
    with loggers.JsonlLogger(path) as logger:
        logger.log({"w": np.arange(100.0), "few": np.arange(2), "grey": np.eye(3)}, 0)
        logger.log({**dict.fromkeys(names, 1.0), "text": "hello"}, 1)
        logger.tap(jax.vmap(lambda x: jax.lax.cond(x > 1, lambda: log_lane(x), lambda: None)))(
            jnp.arange(3.0)
        )
    with open(path, "a") as file:
        file.write("nothing\n")
    assert replay(path, to=make(images="grey")) == 3
    first, second, lanes = site.runs["one"].rows
    assert (first.scalars, list(first.histograms)) == ({"few/0": 0, "few/1": 1}, ["w"])
    assert first.images["grey"].tolist() == (255 * np.eye(3)).tolist()
    assert (second.scalars, second.texts) == (dict.fromkeys(names, 1.0), {"text": "hello"})
    assert lanes.scalars == {"lane/2": 2.0}
    assert "Skipped 1 lines of" in caplog.text


def log_lane(x):
    spoolax.log({"lane": x})


def test_a_file_that_cannot_be_read_does_not_keep_others_from_being_sent(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        logger.log({"x": 1}, 0)
    place = tmp_path / "spoolax-unsent"
    (place / "A.jsonl").write_text('{"_run": {}, "_sent": 27}\n')
    (place / "B.jsonl").write_text("[" * 100_000)
    (place / "C.jsonl").write_text('{"_run": {}, "_sent": -5}\n')
    site.is_away.clear()
    with pytest.raises(ExceptionGroup, match="could not be sent"):
        replay(place, site=site)
    assert site.runs["one"].numbers() == [1]


def test_what_is_replayed_may_get_other_arguments_and_another_class(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        logger.log({"x": 1}, 0)
    (left,) = waiting_files(tmp_path)
    site.is_away.clear()
    assert replay(left, to=ToSite, site=site, directory=tmp_path, experiment="copy") == 1
    assert site.runs["one"].project == "copy"
    assert replay(left, site=site, experiment="another") == 1
    assert site.runs["one"].project == "another"


def test_trackers_are_known_by_name(site, tmp_path):
    """Built-in ones by the name of the tracker, and any class by its own."""
    path = tmp_path / "log.jsonl"
    with loggers.JsonlLogger(path) as logger:
        logger.log({"x": 1}, 0)
    assert replay(path, to="ToSite", name="one", site=site, directory=tmp_path) == 1
    assert site.runs["one"].numbers() == [1]
    for name, kind in TRACKERS.items():
        assert kind is getattr(loggers, kind.__name__)
        assert kind.title.lower() == name
    with pytest.raises(LogTypeError, match="'nothing' is not a known tracker: use one of 'mlflow'"):
        replay(path, to="nothing")
