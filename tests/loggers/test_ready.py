"""States that are ready are copied on the host, others on the device, and nobody can tell."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import spoolax
from spoolax import _ready, testing
from spoolax.loggers._protocol.view import View
from spoolax.storage import HDF5StorageReader, HDF5StorageWriter, SaveLogger, WriterGroupConfig

KEY = jax.random.key(7)
TYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "float32", "complex64"]
TYPES += ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
WIDE = ["int64", "uint64", "float64", "complex128"]
SHAPES = [(), (3,), (2, 3), (0, 2), (300,), (20, 30)]


@pytest.fixture(params=["ready", "not ready", "by turns"])
def when(request, monkeypatch):
    """Whether arrays are ready when they are logged, as far as loggers know."""
    answers = {"not ready": [False], "by turns": [True, False, False, True, True]}
    if request.param in answers:
        turns = itertools.cycle(answers[request.param])
        monkeypatch.setattr(_ready, "are_there", lambda arrays: next(turns))
    return request.param


def numbers(dtype, shape, i):
    """Different numbers for different `i`, some of which are negative or odd."""
    count = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype == "bool":
        return (count + i) % 2 == 0
    if "int4" in dtype:
        return ((count + i) % 7).astype(getattr(ml_dtypes, dtype))
    signed = (count + i) % 100 - (0 if dtype.startswith("u") else 50)
    scale = 1 + 2j if dtype.startswith("complex") else 1
    return (signed * scale).astype(jnp.dtype(dtype))


def state_of(types, i):
    return {
        f"{dtype}{list(shape)}": jnp.asarray(numbers(dtype, shape, i))
        for dtype in types
        for shape in SHAPES
    }


def bits(x):
    x = np.asarray(jax.random.key_data(x)) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    x = np.ascontiguousarray(x)
    return x.dtype, x.shape, x.tobytes()


def is_on_host(copies):
    return type(copies.arrays[0]) is bytes


@pytest.mark.parametrize("types", [TYPES, WIDE], ids=["common", "wide"])
@pytest.mark.parametrize("how", ["records", "save", "schema"])
def test_every_type_comes_back_to_the_bit(how, types, when, tmp_path):
    path = tmp_path / "a.h5"
    with jax.enable_x64(types is WIDE):
        states = [state_of(types, i) | {"key": jax.random.fold_in(KEY, i)} for i in range(6)]
        states = [state | {"keys": jax.random.split(state["key"], (2, 3))} for state in states]
        if how == "records":
            with testing.capture() as logger:
                for i, state in enumerate(states):
                    logger.log(state, i)
            found = [record.values for record in logger.records]
        elif how == "save":
            with SaveLogger(path) as logger:
                for i, state in enumerate(states):
                    logger.log(state, i)
            logs = spoolax.load(path)
            assert logs.step[next(iter(logs))].tolist() == list(range(6))
            found = [{name: x[i] for name, x in logs.items()} for i in range(6)]
        else:
            schema = {"frames": WriterGroupConfig(lambda state: state)}
            with HDF5StorageWriter(path, schema, states[0]) as writer:
                for i, state in enumerate(states):
                    writer.log(state, i)
            with HDF5StorageReader(path) as reader:
                frames = reader.focus_group("frames")
                found = [frames[i] for i in range(len(frames))]
    assert len(found) == 6
    for state, row in zip(states, found, strict=True):
        assert set(row) == set(state)
        for name, value in state.items():
            expected = jax.random.key_data(value) if "key" in name else value
            assert bits(row[name]) == bits(np.asarray(expected)), name


def test_what_is_ready_is_copied_on_the_host_and_nothing_else_is(monkeypatch):
    view = View(None)
    state = {"x": jnp.ones(3), "y": jnp.float32(1)}
    assert not is_on_host(view.copies(state)), "it has to learn about them"
    copies = view.copies(state)
    assert is_on_host(copies)
    assert not copies.waits
    mixed = view.copies({"x": jnp.ones(3), "y": 1.5})
    assert mixed.read()["y"] == 1.5
    monkeypatch.setattr(_ready, "are_there", lambda arrays: False)
    later = view.copies(state)
    assert later.waits
    assert {n: bits(x) for n, x in later.read().items()} == {
        n: bits(x) for n, x in copies.read().items()
    }


def test_views_that_only_select_need_not_run():
    ran = []

    def select(state):
        ran.append(1)
        return {"b": state["a"]["y"], "a": state["x"], "again": state["x"]}

    def compute(state):
        return {"double": state["x"] * 2, "x": state["x"]}

    states = [{"x": jnp.arange(3.0) + i, "a": {"y": jnp.int32(i)}, "key": KEY} for i in range(4)]
    selecting, computing = View(select), View(compute)
    rows = [(selecting.copies(state), computing.copies(state)) for state in states]
    assert [is_on_host(one) for one, _ in rows] == [False, True, True, True]
    assert not any(is_on_host(two) for _, two in rows)
    assert len(ran) == 1
    for i, (one, two) in enumerate(rows):
        assert list(one.read()) == ["b", "a", "again"], "in the order of the view"
        assert one.read()["b"] == i
        assert one.read()["a"].tolist() == one.read()["again"].tolist() == [i, i + 1, i + 2]
        assert two.read()["double"].tolist() == [2 * i, 2 * i + 2, 2 * i + 4]


def test_views_may_depend_on_the_types_of_all_leaves():
    view = View(lambda state: {"x": state["a"] if state["n"].shape[0] > 2 else state["b"]})
    for n, dtype in ((3, int), (3, int), (2, int), (2, float), (3, float), (3, int)):
        state = {"a": jnp.ones(2), "b": jnp.zeros(2), "n": jnp.ones(n, dtype)}
        assert view.copies(state).read()["x"].tolist() == [n - 2] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("how", ["records", "save", "schema"])
def test_states_are_donated_in_place_right_after(how, dtype, tmp_path):
    def step(state):
        return jax.tree.map(lambda x: ~x if x.dtype == bool else x + jnp.ones_like(x), state)

    step = jax.jit(step, donate_argnums=0)
    state = step({"small": jnp.zeros((), dtype), "large": jnp.zeros(5000, dtype)})
    if how == "records":
        logger = testing.capture()
    elif how == "save":
        logger = SaveLogger(tmp_path / "a.h5")
    else:
        schema = {"frames": WriterGroupConfig(lambda state: state)}
        logger = HDF5StorageWriter(tmp_path / "a.h5", schema, state)
    with logger:
        logger.log(state, 0)
        state = jax.block_until_ready(step(state))
        place, expected = state["large"].unsafe_buffer_pointer(), []
        for i in range(1, 40):
            expected.append(np.array(state["large"])[-1])
            logger.log(state, i)
            state = jax.block_until_ready(step(state))
            assert state["large"].unsafe_buffer_pointer() == place
    if how == "records":
        rows = [record.values for record in logger.records]
        small, large = (np.stack([row[name] for row in rows]) for name in ("small", "large"))
    elif how == "save":
        logs = spoolax.load(tmp_path / "a.h5")
        small, large = logs["small"], logs["large"]
    else:
        with HDF5StorageReader(tmp_path / "a.h5") as reader:
            rows = reader.focus_group("frames")[:]
        small, large = rows["small"], rows["large"]
    assert small[1:].tolist() == [x.item() for x in expected]
    assert (large == large[:, :1]).all()
    assert (large[:, 0] == small).all()


@pytest.mark.parametrize("spec", [PartitionSpec("d"), PartitionSpec()])
def test_sharded_arrays_are_copied_whole(spec, tmp_path):
    mesh = jax.make_mesh((2,), ("d",))
    sharding = NamedSharding(mesh, spec)
    with SaveLogger(tmp_path / "a.h5") as logger, testing.capture() as other:
        for i in range(6):
            small, large = jnp.arange(4) + i, jnp.arange(1000) + i
            if i % 3:  # Among others of the same type.
                small, large = jax.device_put((small, large), sharding)
            state = {"small": small, "large": large}
            logger.log(state, i)
            other.log(state, i)
    logs = spoolax.load(tmp_path / "a.h5")
    for name, count in (("small", 4), ("large", 1000)):
        expected = (np.arange(count) + np.arange(6)[:, None]).tolist()
        assert logs[name].tolist() == other.values(name) == expected


def test_arrays_in_another_layout_are_copied_as_they_are():
    where = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))
    transpose = jax.jit(lambda x: x + 0, out_shardings=where)
    view = View(None)
    for i in range(4):
        for shape in ((2, 3), (20, 30)):
            x = jnp.arange(np.prod(shape)).reshape(shape) + i
            state = {"x": transpose(x) if i % 2 else x}
            assert view.copies(state).read()["x"].tolist() == x.tolist()


def test_a_donated_array_is_refused_also_after_others_were_copied():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for view in (None, lambda state: state):
        with testing.capture(view=view) as logger:
            x = jnp.ones(3)
            for i in range(3):
                logger.log({"x": x}, i)
                gone, x = x, step(x)
            with pytest.raises(ValueError, match="'x' has been donated"):
                logger.log({"x": gone}, 3)
        assert logger.values("x") == [[1 + i] * 3 for i in range(3)]


def test_log_is_not_for_traced_functions_also_after_others_were_copied(tmp_path):
    schema = {"frames": WriterGroupConfig(lambda state: state)}
    state = {"x": jnp.ones(3)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, state) as writer:
        writer.log(state, 0)

        def f(x):
            with pytest.raises(TypeError, match="inside a function that JAX traces"):
                writer.log({"x": x}, 1)
            with pytest.raises(TypeError, match="inside a function that JAX traces"):
                writer.log(state, 1)
            return x

        jax.jit(f)(jnp.ones(3))
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert len(reader.focus_group("frames")) == 1


def test_memory_of_rows_is_used_again_only_when_they_are_written(when, tmp_path, monkeypatch):
    """Large rows, many more than are written at once."""
    monkeypatch.setattr("spoolax.storage.hdf5._backend.HDF5Backend.batch_bytes", 50_000)
    schema = {"frames": WriterGroupConfig(lambda state: {"x": state["x"], "i": state["i"]})}
    step = jax.jit(lambda s: {"x": s["x"] + 1, "i": s["i"] + 1}, donate_argnums=0)
    state = {"x": jnp.arange(1000.0), "i": jnp.int32(0)}
    with HDF5StorageWriter(tmp_path / "a.h5", schema, state) as writer:
        for i in range(200):
            writer.log(state, i)
            state = step(state)
            if i % 20 == 0:
                spoolax.flush()
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        frames = reader.focus_group("frames")
        rows, steps = frames[:], frames.steps
    assert steps.tolist() == rows["i"].tolist() == list(range(200))
    assert (rows["x"] == np.arange(1000) + np.arange(200)[:, None]).all()


def test_one_array_may_be_in_a_state_several_times_at_first():
    x = jnp.arange(3)
    for select in (None, lambda state: {"b": state["b"], "a": state["a"]}):
        view = View(select)
        view.copies({"b": x, "a": x})
        for state in ({"b": x + 1, "a": x}, {"a": x, "b": x + 1}):
            for _ in range(2):
                found = view.copies(state).read()
                assert {name: value.tolist() for name, value in found.items()} == {
                    "a": [0, 1, 2],
                    "b": [1, 2, 3],
                }


def test_values_of_a_view_are_not_taken_for_a_state_with_the_same_names():
    """A view that is not compiled, as it reads numbers, and gives names of the state to others."""
    view = View(lambda state: {"a": state["b"], "b": state["a"] * float(state["a"])})
    for i in range(4):
        found = view.copies({"a": jnp.float32(i), "b": jnp.float32(-i)}).read()
        assert found == {"a": -i, "b": i * i}


def test_keys_of_a_state_need_not_be_sorted():
    view = View(None)
    for i in range(3):
        found = view.copies({"a": jnp.float32(i), 1: jnp.int32(i), "b": i}).read()
        assert list(found.items()) == [("a", i), ("1", i), ("b", i)]
