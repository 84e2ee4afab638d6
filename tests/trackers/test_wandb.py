"""Runs of wandb, read back from their files."""

import os
import subprocess
import sys

import numpy as np
import pytest
from cases import COLOURS, NUMBERS, TEXT, log_everything, log_seeds
from PIL import Image
from wandb_file import WandbFile

from spoolax.errors import LogTypeError, LogValueError
from spoolax.loggers import WandbLogger, replay
from spoolax.testing import LoggerContract


def files(directory, are_closed=True):
    paths = sorted((directory / "wandb").rglob("*.wandb"))
    return [WandbFile(path, are_closed) for path in paths]


def file_of(logger):
    (path,) = (logger.directory / "wandb").rglob(f"run-{logger.run_id}.wandb")
    return WandbFile(path)


class TestWandbLogger(LoggerContract):
    def make(self, directory):
        return WandbLogger(project="contract", directory=directory)

    def read(self, logger):
        return [
            (row.pop("step"), {name: x for name, x in row.items() if name[0] != "_"})
            for row in file_of(logger).history
        ]


@pytest.fixture
def make(tmp_path):
    return lambda **arguments: WandbLogger(
        **{"project": "tests", "directory": tmp_path, **arguments}
    )


def test_everything_that_can_be_shown_arrives(make, tmp_path):
    logger = log_everything(make)
    (file,) = files(tmp_path)
    rows = file.history
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[0]["loss/train"], rows[0]["zero"], rows[0]["count"]) == (0.5, 0.25, 3)
    assert np.isnan(rows[1]["nan"])
    assert (rows[1]["inf"], rows[1]["minus"]) == (np.inf, -np.inf)
    for name in ("colours", "grey"):
        (image,) = [p for p in tmp_path.rglob("*.png") if p.name.startswith(name)]
        assert rows[2][name]["_type"] == "image-file"
        if name == "colours":
            np.testing.assert_array_equal(np.asarray(Image.open(image)), COLOURS)
    assert rows[3]["numbers"]["_type"] == "histogram"
    assert sum(rows[3]["numbers"]["values"]) == len(NUMBERS)
    assert [rows[3][f"few/{i}"] for i in range(3)] == [0.0, 1.0, 2.0]
    assert rows[4]["note"] == TEXT
    config = {k: v for k, v in file.config.items() if k != "_wandb"}
    assert config == {"lr": 0.5, "a": {"b": 1}}
    assert (file.run.display_name, file.run.project) == ("everything", "tests")
    assert file.run.run_id == logger.run_id
    assert file.exit_code == 0


def test_values_are_drawn_over_their_step_so_that_none_is_dropped(make, tmp_path):
    with make() as logger:
        for step in (5, 3, 3, 9, 0):
            logger.log({"x": step, "y": 1}, step)
    (file,) = files(tmp_path)
    assert [row["x"] for row in file.history] == [5, 3, 3, 9, 0]
    assert file.metrics == {"step": "", "x": "step", "y": "step"}


def test_names_that_are_wandbs_own_are_kept_under_another(make, tmp_path):
    with make() as logger:
        logger.log({"_step": 5.0, "_timestamp": 6.0}, 0)
    (file,) = files(tmp_path)
    assert (file.history[0]["value/_step"], file.history[0]["value/_timestamp"]) == (5, 6)


def alone(**more):
    """The environment of a process that has a wandb of its own."""
    return {**{name: x for name, x in os.environ.items() if name != "WANDB_SERVICE"}, **more}


def test_a_server_that_is_not_there_stops_nothing(tmp_path):
    program = """
import sys
from spoolax.loggers import WandbLogger
with WandbLogger(directory=sys.argv[1], mode="online", patience=1) as logger:
    for i in range(100):
        logger.log({"x": i}, i)
print("over")
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    env = alone(WANDB_API_KEY="0123456789" * 4, WANDB_BASE_URL="http://127.0.0.1:9")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "over\n"
    assert "UnsentWarning: WandbLogger could not send 100 rows" in done.stderr
    assert replay(tmp_path / "spoolax-unsent", mode="offline") == 100
    (path,) = (tmp_path / "wandb").rglob("offline-run-*/*.wandb")
    assert [row["x"] for row in WandbFile(path).history] == list(range(100))


def test_a_killed_process_loses_nothing(tmp_path):
    program = """
import sys, time
from spoolax.loggers import WandbLogger
with WandbLogger(directory=sys.argv[1]) as logger:
    for i in range(300):
        logger.log({"x": i}, i)
    assert logger.flush()
    print("flushed", flush=True)
    time.sleep(1000)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone()) as process:
        assert process.stdout.readline() == "flushed\n"
        process.kill()
    replay(tmp_path / "spoolax-unsent")
    *_, last = sorted((tmp_path / "wandb").rglob("*.wandb"))
    assert WandbFile(last).exit_code == 0  # Of the replayed run.
    found = files(tmp_path, are_closed=False)
    assert {row["x"] for file in found for row in file.history} == set(range(300))
    assert len({file.run.run_id for file in found}) == 1


def test_every_seed_is_a_run(make, tmp_path):
    logger, walks = log_seeds(make)
    found = {file.run.display_name: file for file in files(tmp_path)}
    assert sorted(found) == [f"walk-seed-{i}" for i in range(5)]
    for i, walk in enumerate(walks):
        file = found[f"walk-seed-{i}"]
        assert (file.config["lr"], file.config["seed"]) == (0.1, i)
        assert file.run.run_group == logger.group
        assert [row["walk/x"] for row in file.history] == pytest.approx(walk.tolist(), abs=0)
        assert [row["step"] for row in file.history] == list(range(20))
        assert [row["episode"] for row in file.history] == [j // 5 for j in range(20)]


def test_a_run_that_fails_and_tags(make, tmp_path):
    with pytest.raises(ZeroDivisionError), make(tags=["a", "b"], job_type="sweep") as logger:
        logger.log({"x": 1}, 0)
        _ = 1 / 0
    (file,) = files(tmp_path)
    assert file.exit_code == 1
    assert list(file.run.tags) == ["a", "b"]
    assert file.run.job_type == "sweep"


def test_a_run_that_is_interrupted_is_not_one_that_failed(make, tmp_path):
    with pytest.raises(KeyboardInterrupt), make() as logger:
        logger.log({"x": 1}, 0)
        raise KeyboardInterrupt
    (file,) = files(tmp_path)
    assert file.exit_code == 255, "as wandb itself says after Ctrl-C"
    assert file.summary["spoolax/reason"] == "KeyboardInterrupt"


def test_what_wandb_does_not_accept_is_an_error_before_the_run(make):
    for arguments in ({"project": "a/b"}, {"run_id": "a/b"}, {"tags": ["x" * 100]}):
        with pytest.raises(LogValueError, match="wandb does not accept"):
            make(**arguments).__enter__()
    with pytest.raises(LogTypeError, match=r"no option `id`\. Did you mean `run_id`"):
        make(id="mine").__enter__()


def test_names_that_meet_stay_apart(make):
    with make() as logger:
        logger.log({"_x": 1, "value/_x": 2, "step": "a text"}, 0)
    (row,) = file_of(logger).history
    assert (row["value/_x"], row["value/_x_2"], row["value/step"]) == (1, 2, "a text")
    assert row["step"] == 0


def test_files_are_where_the_logger_was_opened(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with WandbLogger(project="tests") as logger:
        monkeypatch.chdir(there)
        logger.log({"x": 1}, 0)
    assert len(files(here)) == 1


def test_a_run_can_be_resumed(make, tmp_path):
    for start in (0, 10):
        with make(run_id="again", resume="allow") as logger:
            logger.log({"x": start}, start)
    assert [file.run.run_id for file in files(tmp_path)] == ["again", "again"]


def test_a_run_that_opens_at_the_second_attempt_has_the_id_that_it_says(
    make, tmp_path, monkeypatch
):
    with make() as logger:
        init, failed = logger._wandb.init, []

        def fail_once(**arguments):
            if not failed:
                failed.append(arguments["id"])
                raise OSError("not now")
            return init(**arguments)

        monkeypatch.setattr(logger._wandb, "init", fail_once)
        logger.log({"x": 1}, 0)
    assert logger.run_id == f"{failed[0]}-2"
    assert file_of(logger).run.run_id == logger.run_id


def test_the_run_itself_is_available(make, tmp_path):
    with make() as logger:
        logger.log({"x": 1}, 0)
        logger.native.summary["best"] = 7
    (file,) = files(tmp_path)
    assert file.summary["best"] == 7


def test_wrong_options_are_errors_before_the_run(make, monkeypatch):
    with pytest.raises(LogTypeError, match=r"no option `entitty`.*Did you mean `entity`"):
        make(entitty="me").__enter__()
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(LogValueError, match=r"no API key.*wandb login"):
        make(mode="online").__enter__()
