"""Trajectories in files: what goes in comes out, whatever happens in between."""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import NamedTuple

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax import errors, testing
from spoolax._tap.host import host
from spoolax.loggers import EveryNStep, LogSpaced, Once, Steps
from spoolax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    SaveLogger,
    WriterGroupConfig,
    _buffered,
)
from spoolax.storage.hdf5 import _table
from spoolax.storage.hdf5._h5py import put_text
from spoolax.testing import LoggerContract

KEY = jax.random.key(0)


class Inner(NamedTuple):
    b: object
    a: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: object
    rest: object


def write(path, view, states, **options):
    schema = {"frames": WriterGroupConfig(view)}
    with HDF5StorageWriter(path, schema, states[0], **options) as writer:
        for i, state in enumerate(states):
            writer.log(state, i)
    return path


def read(path, **options):
    with HDF5StorageReader(path, **options) as reader:
        return reader.focus_group("frames")[:]


# What goes in comes out.

DTYPES = [
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3)])
def test_every_type_comes_back_to_the_bit(dtype, shape, tmp_path):
    rng = np.random.default_rng(0)
    states = []
    for _ in range(3):
        bits = rng.integers(0, 16 if "int4" in dtype else 255, (*shape, 16), np.uint8)
        wide = jnp.dtype(dtype).itemsize
        if dtype == "bool":
            raw = bits[..., 0] % 2 == 0
        elif "int4" in dtype:
            raw = (bits[..., 0] % 8).astype(jnp.dtype(dtype))
        else:
            raw = np.ascontiguousarray(bits[..., :wide]).view(jnp.dtype(dtype))[..., 0]
        states.append(jnp.asarray(raw))
    rows = read(write(tmp_path / "a.h5", lambda s: s, states))
    assert rows.dtype == jnp.dtype(dtype)
    assert rows.tobytes() == np.stack([np.asarray(s) for s in states]).tobytes()


def test_wide_types_come_back_too(tmp_path):
    with jax.enable_x64(True):
        states = [
            {"f": jnp.float64(1) / 3 + i, "i": jnp.int64(2**53 + i), "c": jnp.complex128(1j / 3)}
            for i in range(2)
        ]
        rows = read(write(tmp_path / "a.h5", lambda s: s, states))
    assert {name: x.dtype.name for name, x in rows.items()} == {
        "f": "float64",
        "i": "int64",
        "c": "complex128",
    }
    assert rows["i"].tolist() == [2**53, 2**53 + 1]
    assert rows["f"][0] == np.float64(1) / 3


def test_keys_come_back_as_keys(tmp_path):
    states = [{"k": jax.random.key(i), "rbg": jax.random.key(i, impl="rbg")} for i in range(3)]
    rows = read(write(tmp_path / "a.h5", lambda s: s, states))
    assert (rows["k"] == jnp.stack([s["k"] for s in states])).all()
    assert str(jax.random.key_impl(rows["rbg"])) == "rbg"


def test_trees_come_back_as_they_were(tmp_path):
    def view(i):
        return {
            "z": i,
            "a": [Inner(i + 1, (i + 2, None)), {"odd/name": i + 3, "..": i + 4, "": i + 5}],
            "state": State(i + 6, ()),
            "step": i + 7,
        }

    states = [jnp.float32(i) for i in range(3)]
    path = write(tmp_path / "a.h5", view, states)
    rows = read(path)
    assert list(rows) == ["z", "a", "state", "step"]
    assert rows["a"][0].b.tolist() == [1, 2, 3]
    assert rows["a"][0].a[0].tolist() == [2, 3, 4]
    assert rows["a"][0].a[1] is None
    assert list(rows["a"][1]) == ["odd/name", "..", ""]
    assert rows["state"].x.tolist() == rows["state"]["x"].tolist() == [6, 7, 8]
    assert rows["step"].tolist() == [7, 8, 9]
    rows = read(path, classes={"Inner": Inner, "State": State})
    assert isinstance(rows["a"][0], Inner)
    assert isinstance(rows["state"], State)
    with HDF5StorageReader(path) as reader:
        assert reader.steps("frames").tolist() == [0, 1, 2]


def test_groups_have_their_own_frequencies(tmp_path):
    schema = {
        "initial": WriterGroupConfig(lambda s: {"start": s}, Once()),
        "frames": WriterGroupConfig(lambda s: {"x": s}, EveryNStep(10)),
        "some": WriterGroupConfig(lambda s: s, Steps(3, 5) | LogSpaced(1)),
        "never": WriterGroupConfig(lambda s: s, Steps(1000)),
    }
    path = tmp_path / "a.h5"
    with HDF5StorageWriter(path, schema, jnp.float32(0), total_steps=7) as writer:
        for i in range(35):
            writer.log(jnp.float32(i), i)
    with HDF5StorageReader(path) as reader:
        assert reader.groups == ("initial", "frames", "some", "never")
        assert reader.focus_group(lambda s: s["initial"])[:] == {"start": 0}
        assert reader.focus_group(lambda s: s.frames)[-2:]["x"].tolist() == [20, 30]
        assert reader.focus_group("frames")[:]["x"].tolist() == [0, 10, 20, 30]
        assert reader.steps("some").tolist() == [0, 1, 3, 4, 10]
        assert len(reader.focus_group("never")) == 0
        assert reader.focus_group("never")[:].shape == (0,)
        assert (reader.status, reader.steps_run) == ("finished", 35)
        frames = reader.focus_group("frames")
        assert frames[1]["x"] == frames[-3]["x"] == 10
        assert frames[::-2]["x"].tolist() == [30, 10]
        assert frames[5:]["x"].shape == (0,)
        with pytest.raises(IndexError):
            frames[4]
        for bad in ("nothing", lambda s: s["nothing"], lambda s: s):
            with pytest.raises(errors.StorageError, match="there are 'initial', 'frames'"):
                reader.focus_group(bad)


def test_schemas_are_any_pytree(tmp_path):
    @dataclasses.dataclass
    class Schema:
        frames: object
        more: object

    group = WriterGroupConfig(lambda s: s)
    path = tmp_path / "a.h5"
    with HDF5StorageWriter(path, Schema(group, (group, Inner(group, group))), 1.0) as writer:
        writer.log(jnp.float32(3), 0)
    with HDF5StorageReader(path) as reader:
        assert reader.groups == ("frames", "more/0", "more/1/b", "more/1/a")
        assert reader.focus_group(lambda s: s.more[1].a)[:].tolist() == [3]
    for bad in ({}, [1], {"a": lambda s: s}):
        with pytest.raises(TypeError, match="schema"):
            HDF5StorageWriter(path, bad, 1.0)


def test_a_file_says_where_it_comes_from(tmp_path):
    @dataclasses.dataclass
    class Config:
        rate: object
        sizes: tuple

    config = {"model": Config(jnp.float32(0.5), (1, 2)), "activation": jnp.tanh}
    path = tmp_path / "a.h5"
    write(path, lambda s: s, [1.0], attributes={"who": "me"}, config=config)
    with spoolax.open(path) as reader:
        assert reader.meta["attributes"] == {"who": "me"}
        assert reader.meta["config"]["model"] == {"rate": 0.5, "sizes": [1, 2]}
        assert reader.meta["versions"]["jax"] == jax.__version__
        assert reader.meta["command"] == sys.argv
    with pytest.raises(TypeError, match=r"config.a.b"):
        write(tmp_path / "b.h5", lambda s: s, [1.0], config={"a": {"b": object()}})


def test_other_programs_can_read_it(tmp_path):
    import xarray

    states = [{"x": jnp.full((4, 3), i, jnp.float32), "e": jnp.float32(i)} for i in range(5)]
    path = write(tmp_path / "a.h5", lambda s: s, states)
    with h5py.File(path) as file:
        assert file["frames/x"].shape == (5, 4, 3)
        assert file["frames/step"][:].tolist() == [0, 1, 2, 3, 4]
    with xarray.open_dataset(path, group="frames", engine="h5netcdf") as data:
        assert data["e"].values.tolist() == [0, 1, 2, 3, 4]
        assert data["x"].dims[0] == "step"
        assert data["x"].sel(step=3).values.tolist() == [[3] * 3] * 4


def test_molecular_dynamics_programs_can_read_it(tmp_path):
    path, x = tmp_path / "a.h5", jnp.ones((5, 3))

    def view(i):
        box = jnp.full(3, 9.0)
        return {"position": i * x, "velocities": -i * x, "time": i / 2, "energy": i, "box": box}

    schema = {"frames": WriterGroupConfig(view, 2), "start": WriterGroupConfig(lambda i: i, Once())}
    units = {"position": "nm", "velocities": "nm ps-1", "time": "ps", "box": "nm"}
    options = {"layout": "h5md", "units": units}
    with HDF5StorageWriter(path, schema, jnp.float32(0), **options) as writer:
        for i in range(5):
            writer.log(jnp.float32(i), i)
    with HDF5StorageWriter(path, schema, jnp.float32(0), resume=True, **options) as writer:
        for i in range(5, 7):
            writer.log(jnp.float32(i), i)
    code = """
        import sys, MDAnalysis
        universe = MDAnalysis.Universe.empty(5)
        universe.load_new(sys.argv[1], format="H5MD")
        for now in universe.trajectory:
            print(now.data["step"], now.time, now.positions[0, 0], now.velocities[4, 2],
                  now.dimensions[0], now.data["trajectory/energy"])
    """
    ran = in_process(code, path)
    assert ran.returncode == 0, ran.stderr
    # In its own units: ten of them make a nanometre.
    found = [[float(x) for x in line.split()] for line in ran.stdout.splitlines()]
    assert found == [[i, i / 2, 10 * i, -10 * i, 90, i] for i in (0, 2, 4, 6)]
    with HDF5StorageReader(path) as reader:
        assert reader.focus_group("frames")[:]["energy"].tolist() == [0, 2, 4, 6]


def test_names_that_mean_something_else_are_refused(tmp_path):
    def attempt(name, view, **options):
        schema = {name: WriterGroupConfig(view)}
        return HDF5StorageWriter(tmp_path / "a.h5", schema, jnp.zeros((2, 3)), **options)

    with pytest.raises(ValueError, match="needs a group with a time axis"):
        attempt("frames", lambda x: {"x": x}, layout="h5md")
    with pytest.raises(ValueError, match="no group can be called 'particles'"):
        attempt("particles", lambda x: {"position": x}, layout="h5md")
    with pytest.raises(ValueError, match="`layout='netcdf'` is not known"):
        attempt("frames", lambda x: x, layout="netcdf")
    with pytest.raises(ValueError, match="cannot be called '_rows'"):
        attempt("_rows", lambda x: x)
    with pytest.raises(ValueError, match="`units` has 'y'"):
        attempt("frames", lambda x: {"x": x}, units={"y": "nm"})
    with pytest.raises(ValueError, match="`compression='zip'` is not known"):
        attempt("frames", lambda x: x, compression="zip")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf", "zstd"])
def test_rows_are_compressed_by_the_chunk_and_can_be_read_at_any_time(
    compression, tmp_path, monkeypatch
):
    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(_table, "ROWS_IN_CHUNK", 8)
    monkeypatch.setattr(_table, "STEPS_IN_CHUNK", 4)
    path, x = tmp_path / "a.h5", np.arange(21 * 5, dtype=np.float32).reshape(21, 5)
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s, "e": s[0]})}
    options = {"compression": compression, "mode": "w"}
    writer = HDF5StorageWriter(path, schema, jnp.asarray(x[0]), **options)
    with writer, HDF5StorageReader(path) as reader:
        for i in range(20):
            writer.log(jnp.asarray(x[i]), i)
            host.wait()
            frames = reader.focus_group("frames")
            assert frames.steps.tolist() == list(range(i + 1))
            assert (frames[:]["x"] == x[: i + 1]).all()
            assert (frames[i // 2 :]["e"] == x[i // 2 : i + 1, 0]).all()
    with h5py.File(path) as file:
        assert (file["frames/x"][:] == x[:20]).all(), "other programs find all of it"
    with HDF5StorageWriter(
        path, schema, jnp.asarray(x[0]), resume=True, compression=compression
    ) as writer:
        writer.log(jnp.asarray(x[20]), 20)
    assert (read(path)["x"] == x).all()


def test_a_slow_run_makes_no_larger_file_than_a_fast_one(tmp_path, monkeypatch):
    def size(compression):
        path = tmp_path / "a.h5"
        noise = np.random.default_rng(0).random((300, 500), np.float32)
        schema = {"frames": WriterGroupConfig(lambda s: s)}
        options = {"compression": compression, "mode": "w"}
        with HDF5StorageWriter(path, schema, noise[0], **options) as writer:
            for i, x in enumerate(noise):
                writer.log(jnp.asarray(x), i)
                if _buffered.FLUSH_SECONDS == 0:
                    host.wait()
        return path.stat().st_size

    fast = [size(None), size("gzip")]
    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0)
    slow = [size(None), size("gzip")]
    assert slow[0] <= fast[0] + 8192
    assert slow[1] <= fast[1] + 8192


def test_tables_of_other_libraries(tmp_path):
    states = [{"e": jnp.float32(i), "x": jnp.full(2, i)} for i in range(4)]
    path = tmp_path / "a.h5"
    schema = {
        "frames": WriterGroupConfig(lambda s: s, 2),
        "bare": WriterGroupConfig(lambda s: s["e"]),
    }
    with HDF5StorageWriter(path, schema, states[0]) as writer:
        for i, state in enumerate(states):
            writer.log(state, i)
    with HDF5StorageReader(path) as reader:
        frames = reader.focus_group("frames")
        table = frames.to_pandas()
        assert table["step"].tolist() == [0, 2]
        assert table["e"].tolist() == [0, 2]
        assert "x[1]" in table.columns
        assert frames.to_polars()["e"].to_list() == [0, 2]
        assert frames.to_xarray()["x"].shape == (2, 2)
        assert reader.focus_group("bare").to_pandas()["bare"].tolist() == [0, 1, 2, 3]


# Loggers.


class TestHDF5StorageWriter(LoggerContract):
    """In a Python loop, and with a view that takes what is in the entry."""

    def make(self, directory):
        schema = {"all": WriterGroupConfig(lambda state: {"x": state["x"]})}
        return HDF5StorageWriter(directory / "a.h5", schema, {"x": jnp.float32(0)})

    def read(self, logger):
        with HDF5StorageReader(logger.path) as reader:
            rows, steps = reader.focus_group("all")[:], reader.steps("all")
        return [(int(step), {"x": float(x)}) for step, x in zip(steps, rows["x"], strict=True)]

    def check(self, logger, expected):
        super().check(logger, [(step, {"x": values["x"]}) for step, values in expected])

    def test_takes_steps_in_any_order(self, tmp_path):
        with self.make(tmp_path) as logger:
            for step in (3, 4, 1, 1):
                logger.log({"x": jnp.float32(1)}, step)
        self.check(logger, [(step, {"x": 1.0}) for step in (3, 4, 1, 1)])

    def test_is_used_inside_of_with(self, tmp_path):
        logger = self.make(tmp_path)
        with pytest.raises(errors.LoggerStateError):
            logger.log({"x": jnp.float32(1)}, 0)


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


def mixed(n):
    def body(i, _):
        spoolax.log({"x": i * 1.0, "deep": {"y": jnp.full(2, i)}}, step=i, episode=i // 2, tags="a")
        lax.cond(i % 2 == 0, lambda: spoolax.log({"even": i}) and None, lambda: None)
        return i + 1, None

    return lax.scan(body, 0, length=n)[0]


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


def test_groups_take_the_entries_that_have_what_they_ask_for(tmp_path):
    schema = {
        "x": WriterGroupConfig(lambda logs: logs["x"]),
        "even": WriterGroupConfig(lambda logs: {"even": logs["even"]}),
    }
    like = {"x": jnp.float32(0), "even": jnp.int32(0)}
    writer = HDF5StorageWriter(tmp_path / "a.h5", schema, like)
    with jax.numpy_dtype_promotion("standard"), writer:
        writer.tap(lambda: mixed(6))()
    with spoolax.open(tmp_path / "a.h5") as reader:
        assert reader.focus_group("x")[:].tolist() == [0, 1, 2, 3, 4, 5]
        assert reader.focus_group("even")[:]["even"].tolist() == [0, 2, 4]


def test_a_state_that_was_donated_is_named(tmp_path):
    x = jnp.ones(3)
    schema = {"frames": WriterGroupConfig(lambda s: s["x"])}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, {"x": x}) as writer:
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        with pytest.raises(ValueError, match="'x' has been donated"):
            writer.log({"x": x}, 0)


def test_text_cannot_be_stored(tmp_path):
    with (
        pytest.raises(errors.StorageError, match="only numbers"),
        SaveLogger(tmp_path / "a.h5") as l,
    ):
        l.log({"x": "text"}, 0)
        l.log({"x": 1.0}, 1)


# Files that are there.


def test_a_file_that_is_there_is_refused_or_replaced(tmp_path):
    path = write(tmp_path / "a.h5", lambda s: s, [1.0])
    with pytest.raises(OSError, match="`mode='w'` to replace it"):
        write(path, lambda s: s, [2.0])
    write(path, lambda s: s, [3.0], mode="w")
    assert read(path).tolist() == [3]
    with pytest.raises(ValueError, match="mode"):
        write(path, lambda s: s, [3.0], mode="a")


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "a.h5"
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    with HDF5StorageWriter(path, schema, 1.0) as writer:
        writer.log(1.0, 0)
        for options in ({"mode": "w"}, {"resume": True}):
            with pytest.raises(OSError, match=f"written by process {os.getpid()}"):
                HDF5StorageWriter(path, schema, 1.0, **options).__enter__()
    assert read(path).tolist() == [1]
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "a.h5"
    schema = {
        "start": WriterGroupConfig(lambda s: s, Once()),
        "frames": WriterGroupConfig(lambda s: {"x": s * jnp.ones(3)}, EveryNStep(2)),
    }

    def run(steps, **options):
        with HDF5StorageWriter(path, schema, jnp.float32(0), **options) as writer:
            for i in steps:
                writer.log(jnp.float32(i), i)

    run(range(10))
    run(range(10, 15), resume=True)
    with HDF5StorageReader(path) as reader:
        assert reader.steps("frames").tolist() == list(range(0, 15, 2))
        assert reader.focus_group("start")[:] == 0
        assert reader.steps_run == 15
    run(range(6, 9), resume=5)
    with HDF5StorageReader(path) as reader:
        assert reader.steps("frames").tolist() == [0, 2, 4, 6, 8]
        assert reader.focus_group("frames")[:]["x"][:, 0].tolist() == [0, 2, 4, 6, 8]
    other = {**schema, "frames": WriterGroupConfig(lambda s: {"x": s})}
    with pytest.raises(errors.StorageError, match=r"other arrays than the schema \(x\)"):
        HDF5StorageWriter(path, other, jnp.float32(0), resume=True).__enter__()
    with pytest.raises(errors.StorageError, match="not those of the schema"):
        HDF5StorageWriter(path, {"a": schema["start"]}, 0.0, resume=True).__enter__()
    run(range(9, 11), resume=True)
    assert os.listdir(tmp_path) == ["a.h5"]


# Trouble.


def test_arrays_that_change_are_refused_with_both_types(tmp_path):
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, jnp.zeros(3)) as writer:
        writer.log(jnp.zeros(3), 0)
        with pytest.raises(
            errors.StorageError, match=r"frames/x has changed at step 1: expected float32\[3\], got"
        ):
            writer.log(jnp.zeros(4), 1)
        writer.log(jnp.ones(3), 2)
    assert read(tmp_path / "a.h5")["x"].tolist() == [[0] * 3, [1] * 3]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (jnp.float32(1), jnp.int32(5), r"expected float32\[\], got int32\[\]"),
        (jnp.ones(1000), jnp.ones(1000, jnp.int32), r"expected float32\[1000\], got int32"),
        (1, 2.5, "expected int32"),
        ({"a": 1, "b": 2}, {"b": 1, "c": 2}, "its structure has changed"),
        (jax.random.key(0), jax.random.key_data(jax.random.key(0)), "has changed at step 1"),
    ],
)
def test_types_that_change_are_refused(first, then, message, tmp_path):
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, first) as writer:
        writer.log(first, 0)
        with pytest.raises(errors.StorageError, match=message):
            writer.log(then, 1)
        writer.log(first, 2)
    assert jax.tree.map(len, read(tmp_path / "a.h5")) == jax.tree.map(lambda _: 2, first)


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


def test_steps_are_whole_numbers(tmp_path):
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, 1.0) as writer:
        for step in (0.5, 2**63, -(2**63) - 1):
            with pytest.raises(ValueError, match="64-bit integers"):
                writer.log(1.0, step)
        writer.log(1.0, np.int8(-3))
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.steps("frames").tolist() == [-3]


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


def test_a_file_is_where_it_is_whatever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    (tmp_path / "link.h5").symlink_to(tmp_path / "a.h5")
    with HDF5StorageWriter("a.h5", schema, 1.0) as writer:
        with pytest.raises(errors.LogFileError, match="is being written by process"):
            HDF5StorageWriter("link.h5", schema, 1.0, resume=True).__enter__()
        with HDF5StorageReader("link.h5") as reader:
            assert reader.status == "running"
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        writer.log(1.0, 0)
    assert read(tmp_path / "a.h5").tolist() == [1]
    with HDF5StorageWriter(tmp_path / "link.h5", schema, 1.0, resume=True) as writer:
        writer.log(2.0, 1)
    assert (tmp_path / "link.h5").is_symlink()
    assert read(tmp_path / "a.h5").tolist() == [1, 2]


@pytest.mark.parametrize(
    "tree",
    [
        {"step": 1, "_step": 2},
        {"step": {"a": 1}},
        {"_size_3": np.ones(3, np.float32)},
        {"\ud800": 1},
        {"": 1},
        {"a/b": 1, "a.b": 2},
    ],
)
def test_leaves_are_called_anything(tree, tmp_path):
    path = write(tmp_path / "a.h5", lambda s: s, [tree, tree])
    rows = read(path)
    assert jax.tree.structure(rows) == jax.tree.structure(tree)
    for row, value in zip(jax.tree.leaves(rows), jax.tree.leaves(tree), strict=True):
        assert (row == np.stack([value, value])).all()


def test_parts_of_rows_are_read_alone(tmp_path):
    states = [{"x": jnp.full(3, i), "deep": {"e": 2 * i, "none": None}} for i in range(4)]
    path = write(tmp_path / "a.h5", lambda s: s, states)
    with spoolax.open(path) as reader:
        frames = reader.focus_group("frames")
        assert frames["deep"]["e"][1:3].tolist() == [2, 4]
        assert frames["deep"][:]["e"].tolist() == [0, 2, 4, 6]
        assert [int(row["deep"]["e"]) for row in frames] == [0, 2, 4, 6]
        assert list(frames["deep"]["e"].to_pandas()["e"]) == [0, 2, 4, 6]
        assert len(frames.to_pandas()) == 4
        assert "4 rows of 'frames' (deep/e: int32[], x: int32[3])" in repr(frames)
        assert "finished, 4 steps; 'frames'" in repr(reader)
        with pytest.raises(errors.StorageError, match="no 'y', only 'deep', 'x'"):
            frames["y"]
    with pytest.raises(errors.StorageError, match="is closed"):
        frames[:]
    schema = {
        "once": WriterGroupConfig(lambda s: s, Once()),
        "none": WriterGroupConfig(lambda s: s, Steps(9)),
    }
    with HDF5StorageWriter(tmp_path / "b.h5", schema, 1.0) as writer:
        writer.log(1.0, 0)
    with spoolax.open(tmp_path / "b.h5") as reader:
        assert [float(row) for row in reader.focus_group("once")] == [1]
        assert len(reader.focus_group("none").to_pandas()) == 0


def test_mistakes_are_explained(tmp_path):
    def attempt(schema, state=None, **options):
        return HDF5StorageWriter(tmp_path / "a.h5", schema, state, **options)

    frames = {"frames": WriterGroupConfig(lambda s: s["x"])}
    with pytest.raises(TypeError, match="at 'name'"):
        attempt(frames, {"x": 1.0, "name": "argon"})
    with pytest.raises(errors.StorageError, match="'a/name' is 'argon', of type str"):
        attempt({"f": WriterGroupConfig(lambda s: {"a": {"name": "argon"}})}, 1.0)
    with pytest.raises(TypeError, match=r"Write `Once\(\)`"):
        WriterGroupConfig(lambda s: s, Once)
    with pytest.raises(TypeError, match="the state comes after it"):
        attempt(jnp.zeros(2), frames)
    with attempt(frames, {"x": 1.0}) as writer:
        with pytest.raises(TypeError, match="inside a function that JAX traces"):
            jax.jit(lambda x: writer.log({"x": x}, 0))(1.0)
        with pytest.raises(KeyError) as caught:
            writer.log({"y": 1.0}, 3)
        assert "'frames' at step 3" in caught.value.__notes__[-1]
    with pytest.raises(TypeError, match="classes by name"):
        spoolax.open(tmp_path / "a.h5", classes=[Inner])
    path = write(tmp_path / "b.h5", lambda s: Inner(s, s), [1.0])
    with spoolax.open(path, classes={"Inner": State}) as reader:
        frames = reader.focus_group("frames")
        with pytest.raises(TypeError, match="does not take b, a"):
            frames[:]


def test_one_row_of_a_group_without_time_however_many_threads(tmp_path):
    schema = {"start": WriterGroupConfig(lambda s: s, Once())}
    barrier = threading.Barrier(4)

    def log(i):
        barrier.wait()
        writer.log(jnp.float32(i), i)

    with HDF5StorageWriter(tmp_path / "a.h5", schema, jnp.float32(0)) as writer:
        threads = [threading.Thread(target=log, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert len(reader.focus_group("start")) == 1


def test_a_disk_that_fills_up_while_a_run_is_taken_up_loses_nothing(tmp_path):
    code = """
        import resource, sys, jax.numpy as jnp, spoolax
        from spoolax.storage import *
        schema = {
            "frames": WriterGroupConfig(lambda s: s),
            "start": WriterGroupConfig(lambda s: s, Once()),
        }
        x = jnp.zeros(int(sys.argv[2]))
        try:
            for limit in sys.argv[3:]:
                most = (int(limit), resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
            with HDF5StorageWriter(sys.argv[1], schema, x, resume=True) as writer:
                for i in range(300):
                    writer.log(x, i)
        except OSError as error:
            print("refused", error)
    """
    path = tmp_path / "a.h5"
    ran = in_process(code, path, 1000)
    assert ran.returncode == 0, ran.stderr
    for limit in (100_000, 600_000, 1_500_000):
        ran = in_process(code, path, 1000, limit)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.startswith("refused")
        assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
        with HDF5StorageReader(path) as reader:
            assert len(reader.focus_group("frames")) == 300
    ran = in_process(code, tmp_path / "b.h5", 500_000, 1_500_000)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("refused")


def test_an_error_of_the_writing_is_raised_by_the_next_log_and_at_the_end(tmp_path):
    directory = tmp_path / "gone"
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    writer = HDF5StorageWriter(directory / "a.h5", schema, 1.0)
    with pytest.raises(OSError, match="has been removed"), writer:
        writer.log(1.0, 0)
        host.wait()
        shutil.rmtree(directory)
        host.post(writer._sink, writer._flush)  # As the timer does.
        host.wait()
        with pytest.raises(OSError, match="has been removed"):
            writer.log(2.0, 1)


def in_process(code, *args):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_full_disk_is_an_error_and_the_file_stays_readable(tmp_path):
    code = """
        import resource, sys, jax.numpy as jnp, spoolax
        from spoolax.storage import *
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY))
        schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
        count = 0
        try:
            with HDF5StorageWriter(sys.argv[1], schema, jnp.zeros(10000)) as writer:
                for i in range(100000):
                    writer.log(jnp.full(10000, i, jnp.float32), i)
                    count += 1
        except OSError as error:
            print("refused", count, error)
    """
    ran = in_process(code, tmp_path / "a.h5")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("refused")
    assert "cannot grow" in ran.stdout
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.status == "failed"
    rows = read(tmp_path / "a.h5")["x"]
    assert 20 < len(rows) < 250
    assert (rows == np.arange(len(rows), dtype=np.float32)[:, None]).all()


WRITER = """
    import sys, jax.numpy as jnp
    from spoolax.storage import *
    from spoolax.storage import _buffered
    _buffered.FLUSH_SECONDS = 0.01
    def view(i):
        return {"x": jnp.full((50, 3), i, jnp.float32), "e": 2 * i}
    schema = {"frames": WriterGroupConfig(view), "start": WriterGroupConfig(lambda i: i, Once())}
    compression, resume = "gzip" if "gzip" in sys.argv else None, "resume" in sys.argv
    writer = HDF5StorageWriter(
        sys.argv[1], schema, jnp.float32(0), compression=compression, resume=resume
    )
    with writer:
        first = writer._store.row_count("frames")
        print("ready", flush=True)
        for i in range(first, 10**6):
            writer.log(jnp.float32(i), i)
"""


def checked_rows(path):
    with HDF5StorageReader(path) as reader:
        frames = reader.focus_group("frames")
        rows, steps = frames[:], frames.steps
        n = len(steps)
        assert (steps == np.arange(n)).all()
        assert (rows["x"] == np.arange(n, dtype=np.float32)[:, None, None]).all()
        assert (rows["e"] == 2 * np.arange(n)).all()
        return n, reader.status


@pytest.mark.parametrize("options", [(), ("gzip",)])
def test_every_row_is_whole_after_a_kill_and_the_run_goes_on(options, tmp_path):
    path, rows = tmp_path / "a.h5", 0
    for number in range(4):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), *options]
        writer = subprocess.Popen([*command, *(["resume"] if number else [])], stdout=-1)
        writer.stdout.readline()
        time.sleep(random.Random(number).random() * 0.3)
        writer.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        writer.wait()
        writer.stdout.close()
        now, status = checked_rows(path)
        assert status == "crashed"
        assert now >= rows, "what was there is still there"
        rows = now
    assert rows > 0


def test_rows_can_be_read_while_they_are_written(tmp_path):
    path = tmp_path / "a.h5"
    command = [sys.executable, "-c", textwrap.dedent(WRITER).replace("10**6", "2000"), str(path)]
    with subprocess.Popen(command, stdout=-1) as writer:
        writer.stdout.readline()
        seen = []
        with HDF5StorageReader(path) as reader:
            for steps, rows in reader.focus_group("frames").follow(timeout=60):
                assert (rows["e"] == 2 * steps).all()
                seen += steps.tolist()
            assert reader.status == "finished"
    assert seen == list(range(2000))


def test_files_of_others_are_refused(tmp_path):
    with pytest.raises(errors.StorageError, match="There is no file"):
        HDF5StorageReader(tmp_path / "nothing.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(errors.StorageError, match="not an HDF5 file"):
        HDF5StorageReader(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w", libver="v110") as file:
        file["x"] = 1
    with pytest.raises(errors.StorageError, match="not written by spoolax"):
        HDF5StorageReader(tmp_path / "other.h5")
    path = write(tmp_path / "new.h5", lambda s: s, [1.0])
    with h5py.File(path, "r+") as file:
        file.attrs["spoolax_format"] = 99
    with pytest.raises(errors.StorageError, match="has format 99"):
        HDF5StorageReader(path)


def test_links_and_sizes_are_not_believed(tmp_path):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.arange(3.0)
    path = write(tmp_path / "a.h5", lambda s: {"x": s, "y": s}, [1.0, 2.0])
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames/x"] = h5py.ExternalLink(str(secret), "x")
    with pytest.raises(errors.StorageError, match="links to another one"):
        read(path)
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file.create_dataset("frames/x", (2, 10**9), "f4", chunks=(1, 1024))
    with pytest.raises(errors.StorageError, match="does not have the shape"):
        read(path)
    huge = write(tmp_path / "b.h5", lambda s: jnp.zeros(1 << 14) + s, [1.0, 2.0])
    with h5py.File(huge, "r+") as file:
        del file["frames/value"], file["_ran"]
        file.create_dataset("frames/value", (2, 1 << 14), "f4", chunks=(1, 1024))
        file.create_dataset("_ran", (1 << 40,), "i8")
    with pytest.raises(errors.StorageError, match="claims to hold more"):
        read(huge)
    with HDF5StorageReader(huge) as reader:
        assert reader.status == "finished"
        with pytest.raises(errors.StorageError, match="not a number"):
            reader.steps_run  # noqa: B018
    with h5py.File(path) as file:
        table = file["frames"].attrs["table"].decode()
    there = json.dumps(json.loads(table)["structure"])
    assert there in table
    nested = '{"leaf": "x"}'
    for _ in range(200):
        nested = f'{{"kind": "dict", "children": [["a", {nested}]]}}'
    for structure in ("x", "[]", nested, '{"kind": "dict", "children": 3}'):
        with h5py.File(path, "r+") as file:
            put_text(file["frames"], "table", table.replace(there, structure))
        with pytest.raises(errors.StorageError):
            read(path)


def test_numbers_of_other_files_are_not_read(tmp_path):
    other = tmp_path / "other.bin"
    other.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    path = write(tmp_path / "a.h5", lambda s: {"x": s, "y": s}, [1.0, 2.0])
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames"].create_dataset("x", (2,), "f4", external=[(str(other), 0, 8)])
    with pytest.raises(errors.StorageError, match="stored in another file"):
        read(path)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(2, dtype=np.float32)
    virtual = h5py.VirtualLayout((2,), "f4")
    virtual[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (2,))
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames"].create_virtual_dataset("x", virtual)
    with pytest.raises(errors.StorageError, match="stored in another file"):
        read(path)
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames/x"] = file["frames/y"]
    with pytest.raises(errors.StorageError, match="the same dataset"):
        read(path)


def test_damaged_files_are_errors_and_nothing_else(tmp_path):
    """Bytes are changed at random: it works, or it is an error of ours, soon.

    Half of the files look like those of a writer that has died.
    """
    path = tmp_path / "a.h5"
    shutil.copy(pathlib.Path(__file__).parent / "data" / "format-1.h5", path)
    code = """
        import pathlib, random, sys
        from spoolax import errors
        from spoolax.storage import HDF5StorageReader
        from spoolax.storage.hdf5._superblock import CHECKED, FLAGS, checksum
        path, seeds = pathlib.Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))
        whole = path.read_bytes()
        used = [i for i, byte in enumerate(whole) if byte]
        for seed in seeds:
            print(seed, flush=True)
            rng, data = random.Random(seed), bytearray(whole)
            if seed % 2:
                data[FLAGS] = 5
                data[CHECKED:48] = checksum(bytes(data[:CHECKED])).to_bytes(4, "little")
            for _ in range(rng.choice([1, 1, 3, 10, 100])):
                data[rng.choice(used)] = rng.randrange(256)
            if rng.random() < 0.2:
                data = data[: rng.randrange(len(data))]
            damaged = path.with_name("damaged.h5")
            damaged.write_bytes(data)
            try:
                with HDF5StorageReader(damaged) as reader:
                    for name in reader.groups:
                        reader.focus_group(name)[:]
                        reader.status, reader.steps_run
            except errors.StorageError:
                pass
    """
    ran = in_process(code, path, 0, 150)
    assert ran.returncode == 0, (ran.stdout[-20:], ran.stderr[-2000:])


def test_nothing_is_pickled():
    for file in pathlib.Path(spoolax.storage.__file__).parent.glob("*.py"):
        assert "pickle" not in file.read_text()


def test_the_structure_in_the_file_is_json(tmp_path):
    path = write(tmp_path / "a.h5", lambda s: Inner(s, s), [1.0])
    with h5py.File(path) as file:
        structure = json.loads(file["frames"].attrs["table"])["structure"]
    assert structure["kind"] == "class Inner"
    assert [name for name, _ in structure["children"]] == ["b", "a"]


def test_a_simulation_is_stored_the_same_whatever_inner_is(tmp_path):
    def step(key, x):
        return jnp.cos(x) + 0.01 * jax.random.normal(key, x.shape)

    files = []
    for inner in (1, 7):
        path = tmp_path / f"{inner}.h5"
        schema = {"frames": WriterGroupConfig(lambda x: x, EveryNStep(5))}
        writer = HDF5StorageWriter(path, schema, jnp.ones(4))
        spoolax.simulate(step, jnp.ones(4), 33, key=KEY, inner=inner, logger=writer)
        files.append(read(path))
        with spoolax.open(path) as reader:
            assert reader.steps_run == 33
    assert files[0].tobytes() == files[1].tobytes()
    assert len(files[0]) == 7


def test_captured_and_stored_are_the_same(tmp_path):
    with testing.capture() as captured, SaveLogger(tmp_path / "a.h5") as saved:
        for i in range(10):
            state = {"x": jnp.float32(i) / 3, "n": i}
            captured.log(state, i)
            saved.log(state, i)
    logs = spoolax.load(tmp_path / "a.h5")
    assert logs["x"].tolist() == captured.values("x")
    assert logs["n"].tolist() == captured.values("n")


def test_files_of_every_version_can_be_read():
    """One file for each version of the format, kept for ever."""
    with spoolax.open(pathlib.Path(__file__).parent / "data" / "format-1.h5") as reader:
        assert (reader.status, reader.steps_run) == ("finished", 6)
        assert reader.meta["config"] == {"rate": 0.5}
        assert reader.focus_group("start")[...]["x"].tolist() == [0, 1, 2]
        frames = reader.focus_group("frames")
        rows = frames[:]
        assert frames.steps.tolist() == [0, 2, 4]
        assert rows["x"].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
        assert rows["half"].dtype == jnp.bfloat16
        assert rows["half"].astype(np.float32).tolist() == rows["x"].tolist()
        assert rows["deep"][0].tolist() == [False, True, True]
        assert rows["deep"][1][0].tolist() == [3, 9, 15]
