"""Runs of MLflow: in a database, and on a server that is killed amid a run."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import COLOURS, NUMBERS, TEXT, log_everything, log_seeds
from mlflow import MlflowClient
from PIL import Image

import spoolax
from spoolax.errors import LogTypeError, LogValueError, StopRun, TrackerError, UnsentWarning
from spoolax.loggers import MlflowLogger, replay
from spoolax.loggers.trackers._rows.row import TrackerRow
from spoolax.testing import LoggerContract

LARGEST = np.finfo(np.float64).max


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Creating a database takes seconds, so all tests share one."""
    return tmp_path_factory.getbasetemp() / "mlflow"


def client_of(logger):
    return MlflowClient(tracking_uri=logger._uri)


def runs(logger):
    client = client_of(logger)
    experiment = client.get_experiment_by_name(logger.project)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def history(logger, run, name):
    found = client_of(logger).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in sorted(found, key=lambda m: m.step)]


class TestMlflowLogger(LoggerContract):
    @pytest.fixture(autouse=True)
    def _place(self, place, request):
        self.place, self.experiment = place, request.node.name

    def make(self, directory):
        return MlflowLogger(experiment=self.experiment, directory=self.place)

    def read(self, logger):
        run = client_of(logger).get_run(logger._number)
        names = sorted(run.data.metrics)
        columns = [history(logger, run, name) for name in names]
        for row in zip(*columns, strict=True):
            assert len({step for step, _ in row}) == 1
        return [
            (row[0][0], {name: value for name, (_, value) in zip(names, row, strict=True)})
            for row in zip(*columns, strict=True)
        ]

    def check(self, logger, expected):
        """MLflow does not know in which order its metrics came."""
        super().check(logger, sorted(expected, key=lambda entry: entry[0]))


@pytest.fixture
def make(place, request):
    arguments = {"experiment": request.node.name, "directory": place}
    return lambda **more: MlflowLogger(**{**arguments, **more})


def test_everything_that_can_be_shown_arrives(make, tmp_path):
    logger = log_everything(make)
    run = runs(logger)["everything"]

    def value(name):
        ((_, value),) = history(logger, run, name)
        return value

    assert (value("loss/train"), value("zero"), value("count")) == (0.5, 0.25, 3)
    assert np.isnan(value("nan"))
    assert (value("inf"), value("minus")) == (LARGEST, -LARGEST)
    assert value("numbers/mean") == pytest.approx(NUMBERS.mean())
    assert value("few/2") == 2.0
    client = client_of(logger)

    def files(folder):
        found = client.list_artifacts(run.info.run_id, folder)
        return {file.path: client.download_artifacts(run.info.run_id, file.path) for file in found}

    (image,) = [v for k, v in files("images").items() if "colours" in k and k.endswith("png")]
    np.testing.assert_array_equal(np.asarray(Image.open(image)), COLOURS)
    ((_, text),) = files("texts/note").items()
    with open(text, encoding="utf-8") as file:
        assert file.read() == TEXT
    ((_, counted),) = files("histograms/numbers").items()
    with open(counted) as file:
        assert sum(json.load(file)["counts"]) == len(NUMBERS)
    assert run.data.params == {"lr": "0.5", "a.b": "1"}
    assert run.info.status == "FINISHED"


def test_every_seed_is_a_run(make):
    logger, walks = log_seeds(make)
    found = runs(logger)
    assert sorted(found) == [f"walk-seed-{i}" for i in range(5)]
    for i, walk in enumerate(walks):
        run = found[f"walk-seed-{i}"]
        assert history(logger, run, "walk/x") == list(enumerate(walk.tolist()))
        assert history(logger, run, "episode") == [(j, j // 5) for j in range(20)]
        assert run.data.params == {"lr": "0.1", "seed": str(i)}
        assert run.data.tags["group"] == logger.group


def test_more_metrics_than_mlflow_takes_at_once(make):
    with make(name="many") as logger:
        for i in range(1500):
            logger.log({"a": i, "b": -i}, i)
    run = runs(logger)["many"]
    assert history(logger, run, "a") == [(i, i) for i in range(1500)]
    assert history(logger, run, "b") == [(i, -i) for i in range(1500)]


def test_what_is_the_same_in_everything_is_kept_as_often_as_it_was_logged(make):
    with make(name="same") as logger:
        for _ in range(2500):  # More than MLflow takes in one call.
            logger.log({"x": 1.0}, 0)
    assert history(logger, runs(logger)["same"], "x") == [(0, 1.0)] * 2500


def test_what_is_the_same_is_kept_though_the_run_is_resumed_at_once(make):
    for _ in range(2):
        with make(name="resumed", resume=True) as logger:
            for _ in range(5000):
                logger.log({"x": 1.0}, 0)
    assert history(logger, runs(logger)["resumed"], "x") == [(0, 1.0)] * 10_000


def test_steps_that_come_back_lose_nothing(make):
    def program(x):
        def body(x, i):
            spoolax.log({"done": 0.0 * x}, step=i % 10)
            return x, None

        return jax.lax.scan(body, x, jnp.arange(3000))[0]

    with make(name="back") as logger:
        logger.tap(program)(1.0)
    assert len(history(logger, runs(logger)["back"], "done")) == 3000


def test_names_that_would_become_the_same_stay_apart(make):
    with make(name="apart") as logger:
        logger.log({"a@b": 1.0, "a#b": 2.0, "ä": 3.0}, 0)
        logger.log({"w": np.arange(100.0), "w/mean": -1.0}, 1)
        logger.log({"语": COLOURS, "文": COLOURS}, 2)
    run = runs(logger)["apart"]
    found = run.data.metrics
    assert (found["a_b"], found["a_b_2"], found["ä"]) == (1.0, 2.0, 3.0)
    assert {found["w/mean"], found["w/mean_2"]} == {-1.0, 49.5}
    files = client_of(logger).list_artifacts(run.info.run_id, "images")
    assert len([file for file in files if file.path.endswith(".png")]) == 2


def test_rows_that_mlflow_will_never_accept_do_not_hold_up_others(make):
    with pytest.warns(UnsentWarning, match="refused 1 row"), make(name="never") as logger:
        logger.log({"x": 0.0}, 0)
        logger.log({"x": 1.0}, 2**63)
        logger.log({"x": 2.0, "语" * 120: "text"}, 2)
    assert history(logger, runs(logger)["never"], "x") == [(0, 0.0), (2, 2.0)]


def test_what_is_the_same_is_kept_as_often_as_it_was_logged_though_it_is_replayed(
    make, tmp_path, monkeypatch
):
    def fail(self, rows):
        raise OSError("not now")

    with monkeypatch.context() as patch, pytest.warns(UnsentWarning):
        with make(name="same again", spill=tmp_path) as logger:
            for _ in range(100):
                logger.log({"x": 1.0}, 0)
            assert logger.flush()
            patch.setattr(MlflowLogger, "send", fail)
            for _ in range(100):
                logger.log({"x": 1.0}, 0)
    assert replay(tmp_path) == 100
    assert history(logger, runs(logger)["same again"], "x") == [(0, 1.0)] * 200


def one_moment(number, scalars=None, images=None, texts=None):
    """A row of step 0, `number` milliseconds after the first."""
    at = 1.8e9 + number / 1000
    return TrackerRow(0, "step", at, {"step": 0}, scalars or {}, {}, images or {}, texts or {})


def failing(f, *errors):
    """The same function, whose first calls fail, except those with None."""
    left = list(errors)

    def call(*args, **arguments):
        if left and (error := left.pop(0)):
            raise error
        return f(*args, **arguments)

    return call


def test_what_is_sent_again_is_there_once(make, monkeypatch):
    rows = [
        one_moment(0, images={"i": COLOURS}, texts={"a/b": "first", "a-b": "second"}),
        one_moment(1, {"x": np.nan}, {"i": 255 - COLOURS}, {"a/b": "third"}),
        one_moment(2, {"x": np.nan, "c/../d": 1.0}, texts={"a/b": "third"}),
    ]
    with make(name="files") as logger:
        run, client = logger.native.info.run_id, logger._client
        text, image = OSError("not now"), ValueError("not this one")
        monkeypatch.setattr(client, "log_text", failing(client.log_text, text))
        monkeypatch.setattr(client, "log_image", failing(client.log_image, None, image))
        for error in (OSError, ValueError):
            with pytest.raises(error):
                logger.send(rows)
        for row in rows:
            logger.send([row])
        files = client.list_artifacts
        assert len([f for f in files(run, "images") if f.path.endswith(".png")]) == 2
        assert len(files(run, "texts/a/b")) == 3
        assert len(files(run, "texts/a-b")) == 1
        assert client.get_run(run).data.metrics["c/d"] == 1.0
        assert len(client.get_metric_history(run, "x")) == 2


def test_a_run_that_was_never_opened_is_a_new_one_when_replayed(make, monkeypatch, tmp_path):
    with make(name="one", run_id="mine") as logger:
        logger.log({"x": 1.0}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowLogger, "connect", lambda self: (_ for _ in ()).throw(OSError("no")))
        with pytest.warns(UnsentWarning), make(name="two", run_id="mine", spill=tmp_path) as logger:
            logger.log({"x": 2.0}, 0)
    assert replay(tmp_path) == 1
    found = runs(logger)
    assert history(logger, found["one"], "x") == [(0, 1.0)]
    assert history(logger, found["two"], "x") == [(0, 2.0)]


def test_what_is_replayed_goes_where_it_was_meant_to(place, tmp_path, monkeypatch):
    uri = f"sqlite:///{place / 'mlflow.db'}"
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setattr(MlflowLogger, "connect", lambda self: (_ for _ in ()).throw(OSError("no")))
        with pytest.warns(UnsentWarning), MlflowLogger(project="meant", name="one") as logger:
            logger.log({"x": 1.0}, 0)
    assert replay(tmp_path / "spoolax-unsent") == 1
    assert history(logger, runs(logger)["one"], "x") == [(0, 1.0)]


def test_names_that_mlflow_does_not_accept_are_changed(make):
    with make(name="odd", config={"läng@e": 1}) as logger:
        logger.log({"a[0]/b@c": 1.0, "/x/": 2.0}, 0)
    run = runs(logger)["odd"]
    assert set(run.data.metrics) == {"a_0_/b_c", "x"}
    assert run.data.params == {"läng_e": "1"}


def test_a_run_can_be_resumed_and_may_fail(make):
    with make(run_id="mine", config={"lr": 1}, tags={"kind": "long"}, description="A run.") as one:
        one.log({"x": 0}, 0)
    with pytest.raises(ZeroDivisionError):
        with make(run_id="mine", resume="must", config={"lr": 1, "more": 2}) as two:
            two.log({"x": 1}, 1)
            _ = 1 / 0
    (run,) = runs(two).values()
    assert history(two, run, "x") == [(0, 0), (1, 1)]
    assert run.info.status == "FAILED"
    assert (run.data.tags["kind"], run.data.tags["mlflow.note.content"]) == ("long", "A run.")
    with make(run_id=run.info.run_id, resume="must") as three:  # MLflow's own id.
        three.log({"x": 2}, 2)
    assert len(runs(three)) == 1
    with pytest.raises(TrackerError, match="no run 'other'"), make(run_id="other", resume="must"):
        pass


def test_a_run_that_is_interrupted_is_killed_and_may_be_resumed(make):
    with pytest.raises(StopRun), make(run_id="mine") as one:
        one.log({"x": 0}, 0)
        raise StopRun("it diverges")
    (run,) = runs(one).values()
    assert (run.info.status, run.data.tags["spoolax.reason"]) == ("KILLED", "it diverges")
    with make(run_id="mine", resume="must") as two:
        two.log({"x": 1}, 1)
    (run,) = runs(two).values()
    assert run.info.status == "FINISHED"
    assert "spoolax.reason" not in run.data.tags


def test_runs_are_not_mixed_unless_that_is_wanted(make, caplog):
    for resume in (None, False, "never"):
        with make(name="one", run_id="mine", resume=resume) as logger:
            logger.log({"x": 1.0}, 0)
    client = client_of(logger)
    experiment = client.get_experiment_by_name(logger.project)
    assert len(client.search_runs([experiment.experiment_id])) == 3
    with make(name="other", config={"lr": 1}) as logger:
        pass
    number = logger.native.info.run_id
    with make(name="other", resume=True, config={"lr": 2}) as logger:  # By its name.
        pass
    assert logger.native.info.run_id == number
    assert "these stay as they were: ['lr']" in caplog.text


def test_a_database_is_a_place_on_this_machine(make, place):
    uri = f"sqlite:///{place / 'mlflow.db'}"
    with make(name="here", mode="offline", tracking_uri=uri, directory=None) as logger:
        logger.log({"x": 1.0}, 0)
    assert logger._uri == uri
    assert history(logger, runs(logger)["here"], "x") == [(0, 1.0)]


def test_wrong_places_are_errors_before_the_run(make):
    with pytest.raises(LogValueError, match=r"plain files.*sqlite:///"):
        make(tracking_uri="file:///tmp/mlruns").__enter__()
    with pytest.raises(LogValueError, match="also has a server"):
        make(mode="offline", tracking_uri="http://localhost:1").__enter__()
    with pytest.raises(LogValueError, match="has no server"):
        make(mode="online").__enter__()
    with pytest.raises(LogTypeError, match=r"no option `tracking_url`.*`tracking_uri`"):
        make(tracking_url="x").__enter__()


class Server:
    """A real server on a port of this machine, which can be killed."""

    def __init__(self, directory):
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        self.directory.mkdir(exist_ok=True)
        store = f"sqlite:///{self.directory / 'mlflow.db'}"
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
        command += ["--artifacts-destination", str(self.directory / "artifacts")]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + 90
        while time.monotonic() < end:
            assert self.process.poll() is None, "the server did not start"
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.2)
        pytest.fail("the server did not answer within 90 seconds")

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It takes long to start, so all tests share one."""
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_a_server_that_is_killed_amid_a_run_misses_nothing(server, tmp_path):
    arguments = {"experiment": "killed", "name": "one", "tracking_uri": server.url}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsentWarning)
        with MlflowLogger(**arguments, directory=tmp_path, patience=90) as logger:
            for i in range(100):
                logger.log({"x": i, "picture": COLOURS} if i == 50 else {"x": i}, i)
            assert logger.flush()
            server.kill()
            begun = time.monotonic()
            for i in range(100, 200):
                logger.log({"x": i}, i)
            spoolax.flush()
            assert time.monotonic() - begun < 30  # The loop did not wait for it.
            assert not logger.flush()
            server.start()
    run = runs(logger)["one"]
    assert history(logger, run, "x") == [(i, i) for i in range(200)]
    assert run.info.status == "FINISHED"
    assert client_of(logger).list_artifacts(run.info.run_id, "images")


def test_what_a_dead_server_missed_can_be_replayed(server, tmp_path):
    arguments = {"experiment": "dead", "name": "one", "tracking_uri": server.url}
    with pytest.warns(UnsentWarning, match=r"could not send 50 rows \(ConnectionError"):
        with MlflowLogger(**arguments, directory=tmp_path, config={"lr": 1}) as logger:
            for i in range(50):
                logger.log({"x": i}, i)
            assert logger.flush()
            server.kill()
            for i in range(50, 100):
                logger.log({"x": i}, i)
    (left,) = (tmp_path / "spoolax-unsent").glob("*.jsonl")
    server.start()
    assert replay(tmp_path / "spoolax-unsent") == 50
    assert not left.exists()
    (run,) = runs(logger).values()
    assert history(logger, run, "x") == [(i, i) for i in range(100)]
    assert run.info.status == "FINISHED"


def test_a_server_that_was_never_there_does_not_stop_the_run(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.warns(UnsentWarning, match="could not send 10 rows"):
        with MlflowLogger(tracking_uri=url, directory=tmp_path) as logger:
            for i in range(10):
                logger.log({"x": i}, i)
    (left,) = (tmp_path / "spoolax-unsent").glob("*.jsonl")
    assert replay(left, to="mlflow", directory=tmp_path, mode="offline") == 10
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("spoolax").experiment_id])
    assert len(client.get_metric_history(run.info.run_id, "x")) == 10
    assert left.exists()
