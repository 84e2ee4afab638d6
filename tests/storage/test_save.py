"""Logs without a schema, and `LogDict`s, in files."""

import dataclasses
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from trajectories import mixed, write

import spoolax
from spoolax import errors, testing
from spoolax._tap.host import host
from spoolax.storage import (
    SaveLogger,
    _buffered,
)
from spoolax.testing import LoggerContract

KEY = jax.random.key(0)


class TestSaveLogger(LoggerContract):
    def make(self, directory):
        return SaveLogger(directory / "log.h5")

    def read(self, logger):
        with spoolax.open(logger.path) as reader:
            rows = [
                (int(order), int(step), {k: float(v[i]) for k, v in tree["values"].items()})
                for group in map(reader.focus_group, reader.groups)
                for tree, steps in [(group[:], group.steps)]
                for i, (order, step) in enumerate(zip(tree["order"], steps, strict=True))
            ]
        return [(step, values) for _, step, values in sorted(rows, key=lambda row: row[0])]


@pytest.mark.parametrize("way", ["tap", "spool"])
def test_what_is_saved_is_what_a_spool_returns(way, tmp_path):
    with jax.numpy_dtype_promotion("standard"):
        with SaveLogger(tmp_path / "a.h5") as logger:
            getattr(logger, way)(lambda: mixed(40))()
        _, expected = spoolax.spool(lambda: mixed(40))()
    logs = spoolax.load(tmp_path / "a.h5")
    assert set(logs) == set(expected)
    for key in expected:
        for x, y in zip(*map(jax.tree.leaves, (logs[key], expected[key])), strict=True):
            np.testing.assert_array_equal(x, y)
    for name in ("step", "episode"):
        np.testing.assert_array_equal(logs.steps[name]["x"], expected.steps[name]["x"])
    with spoolax.open(tmp_path / "a.h5") as reader:
        about = reader.focus_group(reader.groups[0]).about
        assert (about["tags"], about["path"]) == (["a"], "scan[0]")


def test_lanes_are_saved_with_their_mask(tmp_path):
    def f(n):
        def body(i):
            spoolax.log({"i": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    with SaveLogger(tmp_path / "a.h5") as logger:
        logger.tap(jax.vmap(f))(jnp.array([1, 3]))
    logs = spoolax.load(tmp_path / "a.h5")
    assert logs.valid["i"].tolist() == [[True, True], [False, True], [False, True]]
    assert logs["i"][:, 1].tolist() == [0, 1, 2]


def test_keys_may_come_late_and_change(tmp_path, monkeypatch):
    from spoolax.storage import _buffered

    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0.0)
    with SaveLogger(tmp_path / "a.h5") as logger:
        for i in range(10):
            state = {"x": float(i)}
            if i >= 4:
                state["late"] = i
            if i >= 7:
                state["x"] = jnp.ones(2)
            logger.log(state, i)
    logs = spoolax.load(tmp_path / "a.h5")
    assert logs["x"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert logs.step["x"].tolist() == list(range(7))
    assert logs["late"].tolist() == list(range(4, 10))
    assert logs["x#1"].shape == (3, 2)


def test_saving_goes_on_where_it_was(tmp_path):
    path = tmp_path / "a.h5"
    with SaveLogger(path) as logger:
        for i in range(4):
            logger.log({"loss": 1.0 * i, "n": jnp.arange(3)}, i)
        logger.log({"accuracy": 0.5}, 3)
    with pytest.raises(errors.LogFileError, match="resume=True"), SaveLogger(path):
        pass
    with SaveLogger(path, resume=True) as logger:
        logger.log({"loss": 4.0, "n": jnp.arange(3)}, 4)
        logger.log({"late": 1}, 4)
    logs = spoolax.load(path)
    assert logs["loss"].tolist() == [0, 1, 2, 3, 4]
    assert logs["n"].tolist() == [[0, 1, 2]] * 5
    assert logs.steps["step"]["late"].tolist() == [4]
    with SaveLogger(path, resume=2) as logger:
        logger.log({"loss": 30.0, "n": jnp.arange(3)}, 3)
    with spoolax.open(path) as reader:
        assert len(reader.groups) == 3, "entries of one kind are in one table"
        assert reader.steps_run == 4
    logs = spoolax.load(path)
    assert logs["loss"].tolist() == [0, 1, 2, 30]
    assert logs["accuracy"].shape == (0,)
    trajectory = write(tmp_path / "b.h5", lambda s: s, [1.0])
    with pytest.raises(errors.StorageError, match="not written by a SaveLogger"):
        SaveLogger(trajectory, resume=True).__enter__()
    with SaveLogger(tmp_path / "new.h5", resume=True) as logger:
        logger.log({"loss": 1.0}, 0)
    assert spoolax.load(tmp_path / "new.h5")["loss"].tolist() == [1]


def test_readers_follow_a_file_that_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0.0)
    path = tmp_path / "a.h5"
    with SaveLogger(path) as logger:
        logger.log({"x": 0}, 0)
        host.wait()
        with spoolax.open(path) as reader:
            (name,) = reader.groups
            rows = reader.focus_group(name).follow(poll=0.01, timeout=30)
            assert next(rows)[0].tolist() == [0]
            logger.log({"y": 1.0}, 1)  # A table of its own, and so another file.
            logger.log({"x": 2}, 2)
            host.wait()
            assert next(rows)[0].tolist() == [2]
            assert len(reader.groups) == 2
            assert reader.status == "running"


def test_a_logdict_is_saved_as_it_is(tmp_path):
    def f(x):
        spoolax.log({"once": x, "key": KEY})
        return mixed(5)

    with jax.numpy_dtype_promotion("standard"):
        for number, g in enumerate((spoolax.spool(f), jax.vmap(spoolax.spool(f)))):
            _, logs = g(jnp.ones(3))
            path = tmp_path / f"{number}.h5"
            spoolax.save(path, logs)
            again = spoolax.load(path)
            assert repr(again) == repr(logs)
            assert again.stacked == logs.stacked
            assert list(again) == list(logs)
            for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(logs), strict=True):
                assert x.dtype == y.dtype
                assert (jnp.asarray(x) == y).all()
    with pytest.raises(OSError, match="exists"):
        spoolax.save(path, logs)
    with pytest.raises(TypeError, match="LogDict"):
        spoolax.save(path, {"x": 1})


def test_each_seed_has_a_file(tmp_path):
    def train(key):
        def body(x, i):
            x = x + jax.random.normal(jax.random.fold_in(key, i))
            spoolax.log({"x": x}, step=i)
            return x, None

        return lax.scan(body, jnp.float32(0), jnp.arange(5))[0]

    with SaveLogger(tmp_path / "log.h5") as logger:
        finals = jax.jit(jax.vmap(lambda key: logger.tap(train, logger.init(key))(key)))(
            jax.random.split(KEY, 3)
        )
    assert sorted(os.listdir(tmp_path)) == [f"log-run-{i}.h5" for i in range(3)]
    for i in range(3):
        assert spoolax.load(tmp_path / f"log-run-{i}.h5")["x"][-1] == finals[i]


def test_text_cannot_be_stored(tmp_path):
    with (
        pytest.raises(errors.StorageError, match="only numbers"),
        SaveLogger(tmp_path / "a.h5") as l,
    ):
        l.log({"x": "text"}, 0)
        l.log({"x": 1.0}, 1)


def test_types_that_change_have_tables_of_their_own(tmp_path):
    values = [jnp.float32(2), jnp.int32(3), np.float64(4.5)]
    with SaveLogger(tmp_path / "a.h5") as logger:
        for i, x in enumerate(values):
            logger.log({"x": x, "x#1": i}, i)
        logger.log({"key": jax.random.key(5)}, 3)
    logs = spoolax.load(tmp_path / "a.h5")
    found = {name: (x.dtype.name, x.tolist()) for name, x in logs.items() if name != "key"}
    assert found == {
        "x": ("float32", [2.0]),
        "x#1": ("int64", [0, 1, 2]),
        "x#1#": ("int32", [3]),
        "x#2": ("float64", [4.5]),
    }
    assert (logs["key"] == jax.random.key(5)).all()
    with (
        pytest.raises(errors.StorageError, match="cannot be stored"),
        SaveLogger(tmp_path / "b.h5") as logger,
    ):
        logger.log({"y": np.zeros(2, [("a", "f4")])}, 9)


def test_blocks_come_from_any_thread(tmp_path):
    def hundred():
        lax.scan(lambda c, i: (spoolax.log({"i": i}, step=i), (c, None))[1], 0, jnp.arange(100))

    _, logs = spoolax.spool(hundred)()
    with SaveLogger(tmp_path / "a.h5") as logger:

        def log():
            for i in range(50):
                logger.log({f"y{i}": i}, i)

        thread = threading.Thread(target=log)
        thread.start()
        for _ in range(10):
            logger.log_many(logs)
        thread.join()
    assert len(spoolax.load(tmp_path / "a.h5")["i"]) == 1000


@pytest.mark.parametrize("resume", [None, "yes", 2.5])
def test_where_to_go_on_is_a_step(resume, tmp_path):
    with pytest.raises(TypeError, match="`resume` is True, False, or the last step"):
        SaveLogger(tmp_path / "a.h5", resume=resume)
    with pytest.raises(ValueError, match="use one"):
        SaveLogger(tmp_path / "a.h5", "w", resume=True)


def test_a_run_that_goes_on_keeps_what_is_known_about_it(tmp_path):
    path = tmp_path / "a.h5"
    with SaveLogger(path, config={"rate": 1}, attributes={"who": "me"}) as logger:
        logger.log({"x": 1}, 0)
    with spoolax.open(path) as reader:
        start = reader.meta["start"]
    with SaveLogger(path, resume=np.True_) as logger:
        logger.log({"x": 2}, 1)
    with spoolax.open(path) as reader:
        assert reader.meta["config"] == {"rate": 1}
        assert reader.meta["attributes"] == {"who": "me"}
        assert reader.meta["start"] == start < reader.meta["resumed"][0]
    with SaveLogger(path, resume=1000) as logger:
        logger.log({"x": 3}, 2)
    with spoolax.open(path) as reader:
        assert reader.steps_run == 3


def test_captured_and_stored_are_the_same(tmp_path):
    with testing.capture() as captured, SaveLogger(tmp_path / "a.h5") as saved:
        for i in range(10):
            state = {"x": jnp.float32(i) / 3, "n": i}
            captured.log(state, i)
            saved.log(state, i)
    logs = spoolax.load(tmp_path / "a.h5")
    assert logs["x"].tolist() == captured.values("x")
    assert logs["n"].tolist() == captured.values("n")


def test_arrays_of_another_byte_order_come_back_as_numbers(tmp_path):
    swapped = np.arange(4, dtype=np.dtype("f4").newbyteorder()).reshape(2, 2)
    spoolax.save(tmp_path / "a.h5", spoolax.LogDict({"x": swapped}))
    assert spoolax.load(tmp_path / "a.h5")["x"].tolist() == swapped.tolist()
    with SaveLogger(tmp_path / "b.h5") as logger:
        logger.log({"x": swapped[0].astype(np.float32)}, 0)
        logger.log({"x": swapped[1]}, 1)
    assert spoolax.load(tmp_path / "b.h5")["x"].tolist() == swapped.tolist()


def test_wrong_arguments_are_not_taken_for_damaged_files(tmp_path):
    path = tmp_path / "a.h5"
    for mode in ("banana", "a", None):
        with pytest.raises(
            errors.LogValueError, match=r"`mode=.*` is not known.*, 'w' to replace it\.$"
        ):
            spoolax.save(path, spoolax.LogDict({"x": 1.0}), mode=mode)
    with pytest.raises(errors.LogTypeError, match="Return them"):
        jax.jit(lambda x: spoolax.save(path, spoolax.LogDict({"x": x})))(1.0)
    assert not path.exists()
    spoolax.save(path, spoolax.LogDict({"x": 1.0}))
    with pytest.raises(TypeError, match="nonsense"):
        spoolax.load(path, nonsense=1)
    with pytest.raises(TypeError, match="not int"):
        spoolax.load(3)


def test_what_is_not_a_number_is_refused_when_it_is_logged(tmp_path):
    with SaveLogger(tmp_path / "a.h5") as logger:
        with pytest.raises(errors.StorageError, match="'name' is of type"):
            logger.log({"name": "a", "x": 1.0}, 0)
        logger.log({"x": 2.0}, 1)
    assert spoolax.load(tmp_path / "a.h5")["x"].tolist() == [2.0]


def test_of_a_pytree_of_ones_own_the_data_is_stored(tmp_path):
    """Not the fields that are a part of its structure, whatever they are; and None stays None."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        weight: object
        bias: object = None
        width: int = dataclasses.field(default=3, metadata={"static": True})
        activation: object = dataclasses.field(default=jnp.tanh, metadata={"static": True})

    def f(x):
        spoolax.log({"layer": Layer(x)}, step=0)

    with SaveLogger(tmp_path / "a.h5") as logger:
        logger.tap(f)(jnp.ones(2))
    spoolax.save(tmp_path / "b.h5", spoolax.spool(f)(jnp.ones(2))[1])
    for name in ("a.h5", "b.h5"):
        layer = spoolax.load(tmp_path / name)["layer"]
        assert set(layer) == {"weight", "bias"}
        assert layer.bias is None
        np.testing.assert_array_equal(np.ravel(layer.weight), [1, 1])


def test_settings_are_loaded_with_the_logs(tmp_path):
    with SaveLogger(tmp_path / "a.h5", config={"rate": 0.1}, attributes={"by": "me"}) as logger:
        logger.log({"x": 1.0, "y": 2.0}, 0)
    logs = spoolax.load(tmp_path / "a.h5")
    for one in (logs, logs.copy(), logs.filter("x"), logs.prefix("a/")):
        assert one.meta["config"] == {"rate": 0.1}
        assert one.meta["attributes"] == {"by": "me"}
        assert "schema" not in one.meta
    spoolax.save(tmp_path / "b.h5", logs)
    assert "host" in spoolax.load(tmp_path / "b.h5").meta
    assert spoolax.LogDict({"x": 1.0}).meta == {}


def test_a_file_that_lacks_something_says_so(tmp_path, monkeypatch):
    buffer, seen = SaveLogger.buffer, []

    def fails_once(self, item):
        seen.append(item)
        if len(seen) == 2:
            raise RuntimeError("no luck")
        buffer(self, item)

    monkeypatch.setattr(SaveLogger, "buffer", fails_once)
    with pytest.raises(RuntimeError, match="no luck"):
        with SaveLogger(tmp_path / "a.h5") as logger:
            for step in range(3):
                logger.log({"x": jnp.float32(step)}, step)
    with spoolax.open(tmp_path / "a.h5") as run:
        assert run["x"][:].tolist() == [0, 2]
        assert (run.status, run.reason) == ("failed", "RuntimeError: no luck")
