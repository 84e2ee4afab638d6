"""What the server answers about runs of every kind, also while they are replaced."""

import base64
import http.client
import json
import urllib.parse

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax.storage import SaveLogger

pytestmark = pytest.mark.once


@pytest.fixture
def ask(serve):
    """Ask a server that shows some places."""

    def start(*places):
        view = serve(*places)
        token = view.url.partition("token=")[2]

        def asked(what, raw=False, **parameters):
            query = urllib.parse.urlencode({**parameters, "token": token})
            connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=30)
            connection.request("GET", f"/api/{what}?{query}")
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return (answer, text) if raw else json.loads(text)

        return asked

    return start


def numbers(packed):
    data = np.frombuffer(base64.b64decode(packed["data"]))
    return data.reshape(packed["shape"])


def drawn(ask, run, key, **more):
    return [numbers(one["y"]).tolist() for one in ask("lines", runs=run, key=key, **more)]


def write(path, key, value, count=10, mode="w"):
    with SaveLogger(path, mode=mode) as logger:
        for i in range(count):
            logger.log({key: value}, i)


def test_a_file_that_takes_the_place_of_another_is_another(ask, tmp_path):
    path = tmp_path / "a.h5"
    write(path, "x", 1.0)
    asked = ask(tmp_path)
    (run,) = (one["id"] for one in asked("runs")["runs"])
    for value in (2.0, 3.0, 4.0, 5.0):
        write(path, "x", value)
        assert drawn(asked, run, "x") == [[value] * 10]
    write(path, "other", 7.0)
    assert list(asked("keys", runs=run)) == ["other"]
    path.unlink()  # Whatever is made next may get its place on the disk.
    write(tmp_path / "b.h5", "x", 8.0, mode="x")
    (run,) = (one["id"] for one in asked("runs")["runs"])
    assert drawn(asked, run, "x") == [[8.0] * 10]


def test_arrays_of_runs_of_seeds(ask, tmp_path):
    def walk(key):
        spoolax.log({"vector": jax.random.normal(key, (6,)), "number": 1.0}, step=0)

    with spoolax.run("seeds", directory=tmp_path, show=False) as run:
        keys = jax.random.split(jax.random.key(0), 3)
        jax.vmap(lambda key: run.tap(walk, run.init(key))(key))(keys)
    asked = ask(tmp_path)
    (one,) = asked("runs")["runs"]
    assert one["seeds"] == 3
    assert numbers(asked("field", runs=one["id"], key="vector")["z"]).shape == (6, 1)
    (line,) = asked("lines", runs=one["id"], key="number")
    assert numbers(line["low"]).tolist() == [1.0]


def test_lanes_that_did_not_log_are_not_drawn(ask, tmp_path):
    def f(x):
        jax.lax.cond(x % 2 == 1, lambda: spoolax.log({"x": x}) and None, lambda: None)

    with SaveLogger(tmp_path / "a.h5") as logger:
        logger.tap(jax.vmap(f))(jnp.arange(4))
    asked = ask(tmp_path)
    (one,) = asked("runs")["runs"]
    values = numbers(asked("field", runs=one["id"], key="x", kind="heat")["z"])[:, 0]
    assert np.isnan(values).tolist() == [True, False, True, False]
    (line,) = asked("lines", runs=one["id"], key="x")
    assert [numbers(line[band]).tolist() for band in ("low", "y", "high")] == [[1], [2], [3]]


def test_steps_of_every_kind(ask, tmp_path):
    with SaveLogger(tmp_path / "same.h5") as logger:
        for i in range(3000):
            logger.log({"x": float(i)}, 0)
    with SaveLogger(tmp_path / "back.h5") as logger:
        for step in (0, 1, 2, 1, 5):
            logger.log({"vector": np.full(3, float(step))}, step)
    with SaveLogger(tmp_path / "long.h5") as logger:
        for i in range(20_000):
            logger.log({"x": float(i)}, i)
    asked = ask(tmp_path)
    ids = {one["name"]: one["id"] for one in asked("runs")["runs"]}
    (same,) = drawn(asked, ids["same.h5"], "x", points=100)
    assert (min(same), max(same)) == (0, 2999)
    assert len(same) <= 102
    back = asked("field", runs=ids["back.h5"], key="vector")
    assert numbers(back["x"]).tolist() == [0, 1, 2, 5]
    (line,) = asked("lines", runs=ids["long.h5"], key="x", points=100, logx="true")
    x = numbers(line["x"])
    assert x[0] == 1
    assert np.sum(x < 100) > 30  # As much of each decade as can be seen.


def test_numbers_for_other_programs(ask, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.h5", 'θ, "x"', 1.5, count=2)
    asked = ask(tmp_path)
    runs = ",".join(one["id"] for one in asked("runs")["runs"])
    answer, text = asked("csv", raw=True, runs=runs, key='θ, "x"')
    assert answer.status == 200
    assert "filename*=UTF-8''%CE%B8" in answer.getheader("content-disposition")
    assert text.count('"a/x.h5",') == text.count('"b/x.h5",') == 2


@pytest.mark.parametrize("line", ['{"_time": "abc", "x": 1}', '{"_step": "a", "x": 1}', "\udcff"])
def test_one_bad_file_hides_no_other(ask, tmp_path, line):
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes((line + "\n").encode(errors="surrogateescape"))
    write(tmp_path / "good.h5", "x", 1.0)
    asked = ask(bad, tmp_path / "good.h5")
    runs = {one["name"]: one["id"] for one in asked("runs")["runs"]}
    assert drawn(asked, ",".join(runs.values()), "x")[0] == [1.0] * 10


def test_a_key_has_the_kinds_that_all_its_runs_have(ask, tmp_path):
    write(tmp_path / "a.h5", "x", np.zeros((8, 8)))
    write(tmp_path / "b.h5", "x", 1.0)
    asked = ask(tmp_path)
    ids = {one["name"]: one["id"] for one in asked("runs")["runs"]}
    assert asked("keys", runs=",".join(ids.values()))["x"]["kinds"] == ["lines"]
    assert asked("keys", runs=ids["a.h5"])["x"]["kinds"][0] == "frames"
    assert "has no frames" in asked("field", runs=ids["b.h5"], key="x", kind="frames")["error"]


def test_large_arrays_are_read_a_few_at_a_time(ask, tmp_path):
    with SaveLogger(tmp_path / "a.h5") as logger:
        for i in range(40):
            more = {"loss": 1.0} if i % 2 else {}  # So there are two kinds of entries.
            logger.log({"x": np.full(100_000, float(i), np.float32), **more}, i)
    asked = ask(tmp_path)
    (one,) = asked("runs")["runs"]
    assert drawn(asked, one["id"], "x") == [list(map(float, range(40)))]
    frame = asked("field", runs=one["id"], key="x", kind="heat")
    assert numbers(frame["z"])[0].tolist() == list(map(float, range(40)))
