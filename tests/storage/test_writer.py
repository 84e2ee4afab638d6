"""Trajectories by a schema: what goes in comes out."""

import dataclasses
import pathlib
import shutil
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trajectories import Inner, State, mixed, read, write

import spoolax
from spoolax import errors
from spoolax._tap.host import host
from spoolax.loggers import EveryNStep, LogSpaced, Once, Steps
from spoolax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    WriterGroupConfig,
    ZarrStorageReader,
    ZarrStorageWriter,
)
from spoolax.testing import LoggerContract

KEY = jax.random.key(0)
WRITERS = {
    "h5": (HDF5StorageWriter, HDF5StorageReader),
    "zarr": (ZarrStorageWriter, ZarrStorageReader),
}


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
        ({"a": 1, "b": 2}, {"b": 1, "c": 2}, r"frames/a .* got nothing.\nframes/c .*nothing, got"),
        ({"a": [1], "b": 2}, {"a": (1,), "b": 2}, r"^frames/a .* a list, got a tuple.\nAll rows"),
        ({"a": 1, "b": 2}, {"a": 1, "b": None}, r"^frames/b .* int32\[\], got None.\nAll rows"),
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


@pytest.mark.parametrize("view", [lambda s: s, lambda s: dict(s), lambda s: {**s}])
def test_the_order_of_keys_makes_no_difference(view, tmp_path):
    """JAX sorts the keys of a state that is a dictionary, and a log call keeps its own order."""

    def f(x):
        def body(x, i):
            spoolax.log({"y": x, "a": jnp.stack([i, -i])}, step=i)
            spoolax.log({"a": jnp.stack([i, i]), "y": -x}, step=i)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    like = {"a": jnp.zeros(2, jnp.int32), "y": jnp.float32(0)}
    schema = {"frames": WriterGroupConfig(view)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, like) as writer:
        writer.tap(f)(jnp.float32(5))
    rows = read(tmp_path / "a.h5")
    assert rows["y"].tolist() == [5, -5, 6, -6, 7, -7]
    assert rows["a"].tolist() == [[0, 0], [0, 0], [1, -1], [1, 1], [2, -2], [2, 2]]


def test_steps_are_whole_numbers(tmp_path):
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, 1.0) as writer:
        for step in (0.5, 2**63, -(2**63) - 1):
            with pytest.raises(ValueError, match="64-bit integers"):
                writer.log(1.0, step)
        writer.log(1.0, np.int8(-3))
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.steps("frames").tolist() == [-3]


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
    with pytest.raises(ValueError, match="`mode='a'` is not known"):
        attempt(frames, {"x": 1.0}, mode="a")
    with attempt(frames, {"x": 1.0}) as writer:
        with pytest.raises(TypeError, match="inside a function that JAX traces"):
            jax.jit(lambda x: writer.log({"x": x}, 0))(1.0)
        with pytest.raises(KeyError) as caught:
            writer.log({"y": 1.0}, 3)
        assert "'frames' at step 3" in caught.value.__notes__[-1]
    with pytest.raises(TypeError, match="classes by name"):
        HDF5StorageReader(tmp_path / "a.h5", classes=[Inner])
    path = write(tmp_path / "b.h5", lambda s: Inner(s, s), [1.0])
    with HDF5StorageReader(path, classes={"Inner": State}) as reader:
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


def test_an_error_of_the_writing_is_raised_by_the_next_log_and_at_the_end(tmp_path):
    directory = tmp_path / "gone"
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    writer = HDF5StorageWriter(directory / "a.h5", schema, 1.0)
    with pytest.raises(OSError, match="has been removed"), writer:
        writer.log(1.0, 0)
        host.wait()
        shutil.rmtree(directory)
        host.post(writer._clock, None)  # As if it were time to.
        host.wait()
        with pytest.raises(OSError, match="has been removed"):
            writer.log(2.0, 1)


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_a_row_that_is_not_ready_does_not_hold_up_those_before(kind, tmp_path):
    """They are written after a second, or when `flush` is called."""
    goes_on, path = threading.Event(), tmp_path / f"a.{kind}"
    writer, reader = WRITERS[kind]
    schema = {"x": WriterGroupConfig(lambda x: {"x": x})}

    class Later:
        @staticmethod
        def is_ready():
            return goes_on.is_set()

    def rows():
        with reader(path) as stored:
            return len(stored.focus_group("x"))

    with writer(path, schema, jnp.zeros(3)) as log:
        for step in range(5):
            log.log(jnp.full(3, float(step)), step)
        spoolax.flush()
        assert rows() == 5
        log.log(jnp.full(3, 5.0), 5)
        (group,) = log._groups
        log.send((group, (6, group.take(jnp.full(3, 6.0), 6))), group.nbytes, [Later()])
        last = time.monotonic() + 30
        while rows() < 6 and time.monotonic() < last:
            time.sleep(0.1)
        before = rows()
        goes_on.set()
    assert (before, rows()) == (6, 7)


@pytest.mark.parametrize("spec", [(None, "b"), ("a", "b"), ("a",)], ids=str)
def test_arrays_on_explicit_meshes_are_stored(spec, tmp_path):
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 1), ("a", "b"), axis_types=kinds)
    values = np.arange(32, dtype=np.float32).reshape(8, 4)
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    x = jax.device_put(values, place)
    schema = {"x": WriterGroupConfig(lambda x: {"x": x, "sum": jnp.sum(x)})}
    with jax.set_mesh(mesh):
        for kind, (writer, reader) in WRITERS.items():
            path = tmp_path / f"a.{kind}"
            with writer(path, schema, x) as log:
                for step in range(2):
                    log.log(x, step)
            with reader(path) as stored:
                assert np.array_equal(stored.focus_group("x")["x"][:], np.stack([values] * 2))
        with spoolax.loggers.JsonlLogger(tmp_path / "a.jsonl") as log:
            log.log({"x": x, "loss": 1.0}, 0)
    assert spoolax.open(tmp_path / "a.jsonl")["x"][0].tolist() == values.tolist()


def test_nothing_is_pickled():
    for file in pathlib.Path(spoolax.storage.__file__).parent.rglob("*.py"):
        assert "pickle" not in file.read_text()


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
