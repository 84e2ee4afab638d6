"""Loggers whose views run in the loop of `simulate`, and get their rows together."""

import gc
import os
import signal
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax import errors, loggers, testing
from spoolax._simulate import programs, taking
from spoolax.loggers import CompositeLogger, EveryNStep, HDF5StorageWriter, Once, SaveLogger, Steps
from spoolax.storage import HDF5StorageReader, WriterGroupConfig

KEY = jax.random.key(3)
MATRIX = jnp.linspace(-1.0, 1.0, 32 * 32).reshape(32, 32)


def matmul(key, x):
    x = jnp.tanh(x @ MATRIX) @ MATRIX.T
    return x / jnp.linalg.norm(x) + 0.01 * jax.random.normal(key, x.shape)


def reductions(key, x):
    x = 0.99 * x + x.mean(0, keepdims=True) - jax.nn.logsumexp(x)
    return x + jax.random.uniform(key, x.shape)


def transcendental(key, x):
    x = jnp.sin(x) * jnp.exp(-x * x) + jnp.log1p(x * x) + jnp.arctan2(x, x.T)
    return x + 0.1 * jax.random.gumbel(key, x.shape)


def forces(key, x):
    distance = x[:, None, :3] - x[None, :, :3]
    square = (distance**2).sum(-1, keepdims=True) + 1.0
    return 0.999 * x.at[:, :3].add(0.001 * (distance / square**4).sum(1))


def sorts(key, x):
    x = jnp.cumsum(jnp.sort(x, 0), 1) / 32
    return jnp.fft.irfft(0.9 * jnp.fft.rfft(x), 32) + 0.1 * jax.random.normal(key, x.shape)


def sensitive(x):
    """A view with arithmetic that depends on how it is compiled."""
    energy = (x**2).sum() + jnp.exp(x).mean()
    return {"energy": energy, "norm": jnp.linalg.norm(x @ x.T), "row": jnp.tanh(x[0] @ MATRIX)}


def count(key, x):
    return x + 1


def steps_and_bits(logger):
    return [
        (record.step, {name: np.asarray(x).tobytes() for name, x in record.values.items()})
        for record in logger.records
    ]


@pytest.fixture
def no_states(monkeypatch):
    """Fail if a logger that could get rows gets a state."""

    def log(self, state, step):
        raise AssertionError(f"got the state of step {step}")

    for kind in (loggers.WritingLogger, SaveLogger, HDF5StorageWriter.__base__):
        monkeypatch.setattr(kind, "log", log)


@pytest.mark.parametrize("step", [matmul, reductions, transcendental, forces, sorts])
def test_every_bit_is_the_same_whatever_inner_is(step):
    """Of the trajectory, and of what views take out of it."""
    reference, states = testing.capture(view=sensitive), testing.capture()
    both = CompositeLogger(reference, states)
    final = spoolax.simulate(step, MATRIX, 30, key=KEY, logger=both)
    assert len(set(map(str, states.values("value")))) == 30
    for options in (
        {"inner": 30},
        {"inner": 7, "donate": False},
        {"inner": 30, "until": lambda x: (x > 1e9).any(), "check_every": 4},
    ):
        one, other = testing.capture(view=sensitive), testing.capture(every=3)
        logger = CompositeLogger(one, other)
        for found in (
            spoolax.simulate(step, MATRIX, 30, key=KEY, logger=logger, **options),
            spoolax.simulate(step, MATRIX, 30, key=KEY, **options),
        ):
            assert found.tobytes() == final.tobytes(), options
        assert steps_and_bits(one) == steps_and_bits(reference), options
        assert steps_and_bits(other) == steps_and_bits(states)[::3], options


def test_states_stay_in_the_loop(no_states, tmp_path):
    schema = {"x": WriterGroupConfig(lambda x: {"x": x}), "even": WriterGroupConfig(lambda x: x, 2)}
    captured, thin = testing.capture(), testing.capture().every(3)
    logger = CompositeLogger(
        captured,
        HDF5StorageWriter(tmp_path / "a.h5", schema, 0),
        CompositeLogger(SaveLogger(tmp_path / "b.h5", every=Steps(4, 9) | EveryNStep(5)), thin),
        loggers.JsonlLogger(tmp_path / "c.jsonl", view=lambda x: {"twice": 2 * x}),
    )
    with logger:
        spoolax.simulate(count, 0, 20, key=KEY, logger=logger, inner=7, start_step=2, warmup=3)
    steps = list(range(2, 22))
    assert [(r.step, r.values["value"]) for r in captured.records] == [(i, i + 2) for i in steps]
    assert [r.step for r in thin.records] == [i for i in steps if i % 3 == 0]
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        frames, even = reader.focus_group("x"), reader.focus_group("even")
        assert (reader.steps_run, frames.steps.tolist()) == (20, steps)
        assert frames[:]["x"].tolist() == [i + 2 for i in steps]
        assert even.steps.tolist() == steps[::2]
        assert even[:].tolist() == [i + 2 for i in steps[::2]]
    logs = spoolax.load(tmp_path / "b.h5")
    some = [i for i in steps if 4 <= i < 9 or i % 5 == 0]
    assert (logs.step["value"].tolist(), logs["value"].tolist()) == (some, [i + 2 for i in some])
    lines = list(loggers.read_jsonl(tmp_path / "c.jsonl"))
    assert [(line["_step"], line["twice"]) for line in lines] == [(i, 2 * i + 4) for i in steps]


class Frame(NamedTuple):
    z: jax.Array
    a: dict


def test_loggers_that_need_states_get_them_in_between(tmp_path):
    """All get what they want once, in order, and files have rows in the order of the steps."""

    class Own(loggers.Logger):
        def __enter__(self):
            self.seen, self.steps = [], 0

        def log(self, state, step):
            self.steps += 1
            if self.wants(step):  # Else another logger does.
                self.seen.append((step, int(state.z)))

        def wants(self, step):
            return step % 4 == 2

        def skipped(self, steps):
            self.steps += steps

    def step(key, state):
        return Frame(state.z + 1, {"key": jax.random.fold_in(state.a["key"], 1)})

    def frames(name, inner):
        own, captured, at = Own(), testing.capture(), EveryNStep(3)
        schema = {
            "all": WriterGroupConfig(lambda s: s.a),
            "start": WriterGroupConfig(lambda s: {"z": s.z}, Once()),
            "some": WriterGroupConfig(lambda s: {"z": s.z}, Once() | at),
        }
        state = Frame(jnp.int8(0), {"key": jax.random.key(1)})
        writer, save = HDF5StorageWriter(tmp_path / f"{name}.h5", schema, state), tmp_path / name
        logger = CompositeLogger(own, captured, writer, SaveLogger(save.with_suffix(".log.h5")))
        spoolax.simulate(step, state, 23, key=KEY, logger=logger, inner=inner)
        assert own.seen == [(i, i + 1) for i in range(23) if i % 4 == 2]
        assert own.steps == 23
        assert [list(r.values) for r in captured.records] == [["z", "a/key"]] * 23
        with (
            HDF5StorageReader(writer.path) as reader,
            spoolax.open(save.with_suffix(".log.h5")) as s,
        ):
            assert reader.steps_run == s.steps_run == 23
            (table,) = s.groups
            found = [steps_and_bits(captured), s.focus_group(table).steps.tolist()]
            for group in map(reader.focus_group, reader.groups):
                found += [group.steps.tolist(), str(group[...])]
            rows = s.focus_group(table)[:]
            return [*found, rows["order"].tolist(), str(rows["values"])]

    assert frames("rows", 10) == frames("states", 1)


def test_types_come_out_as_they_were_logged():
    def view(x):
        small = {t: jnp.asarray(x, t) for t in ("bool", "int8", "uint16", "bfloat16", "complex64")}
        return {
            **small,
            "large": jnp.full((300,), x),
            "none": jnp.zeros((0, 2)),
            "key": jax.random.key(x),
        }

    one, many = testing.capture(view=view), testing.capture(view=view)
    spoolax.simulate(count, 0, 5, key=KEY, logger=one)
    spoolax.simulate(count, 0, 5, key=KEY, logger=many, inner=4)
    for a, b in zip(one.records, many.records, strict=True):
        assert list(a.values) == list(b.values)
        for x, y in zip(a.values.values(), b.values.values(), strict=True):
            assert (type(x), x.dtype, x.shape) == (type(y), y.dtype, y.shape)
            assert x.tobytes() == y.tobytes()


def test_a_goal_ends_the_rows(tmp_path):
    class Own(loggers.Logger):
        def __enter__(self):
            self.seen = []

        def log(self, state, step):
            self.seen.append((step, int(state)))

        def wants(self, step):
            return step % 5 == 3

    for goal, check_every, inner in ((14, 1, 100), (9, 1, 10), (12, 6, 5), (14, 7, 3)):
        captured, own, save = testing.capture(), Own(), tmp_path / f"{goal}.{inner}.h5"
        final = spoolax.simulate(
            *(count, 0, 40),
            key=KEY,
            logger=CompositeLogger(captured, own, SaveLogger(save)),
            inner=inner,
            until=lambda x, goal=goal: x >= goal,
            check_every=check_every,
        )
        assert final == goal
        assert [(r.step, r.values["value"]) for r in captured.records] == [
            (i, i + 1) for i in range(goal)
        ]
        assert own.seen == [(i, i + 1) for i in range(goal) if i % 5 == 3]
        with spoolax.open(save) as reader:
            assert reader.steps_run == goal


def test_a_clock_that_changes_its_mind_loses_no_row():
    """Whether a state is wanted may be different when the goal turns out to be reached."""

    class Fickle(loggers.Logger):
        wanted = {7}

        def log(self, state, step):
            self.wanted.clear()

        def wants(self, step):
            return step in self.wanted

    captured, fickle = testing.capture(), Fickle()
    spoolax.simulate(
        *(count, 0, 40),
        key=KEY,
        logger=CompositeLogger(captured, fickle),
        inner=5,
        until=lambda x: x >= 8,
    )
    assert [r.step for r in captured.records] == list(range(8))


def test_rows_take_no_more_memory_than_they_may(monkeypatch):
    """The loop ends early, or after every step if there is no room for two rows."""
    plans, make = [], taking.Taking.plan

    def plan(self, *args):
        plans.append(make(self, *args))
        return plans[-1]

    monkeypatch.setattr(taking.Taking, "plan", plan)
    for most, expected in ((4000, [10] * 3), (799, [1] * 30), (10**6, [30])):
        monkeypatch.setattr(taking, "MOST_BYTES", most)
        captured = testing.capture(view=lambda x: {"x": jnp.full((100,), x)})
        spoolax.simulate(count, jnp.float32(0), 30, key=KEY, logger=captured, inner=100)
        assert [r.values["x"][7] for r in captured.records] == list(range(1, 31))
        assert [one.length for one in plans] == expected
        plans.clear()


def test_what_cannot_be_known_or_compiled_is_done_with_states():
    clock = loggers.EverySeconds(1e-9)

    class Odd(loggers.Frequency):
        def due(self, step, acted=0, waited=0.0):
            return step % 2 == 1

    class Own(testing.capture):
        def log(self, state, step):
            super().log(state + 100, step)

    reads = testing.capture(view=lambda x: {"x": int(x)})
    text = testing.capture(view=lambda x: {"x": x, "name": "text"})
    for logger, steps in (
        *(
            (reads, range(9)),
            (text, range(9)),
            (Own(), range(9)),
            (testing.capture(every=clock), range(9)),
        ),
        (testing.capture(every=Odd()), range(1, 9, 2)),
        (testing.capture().every(Once()), range(1)),
    ):
        captured = testing.capture()
        final = spoolax.simulate(
            count, 0, 9, key=KEY, logger=CompositeLogger(logger, captured), inner=4
        )
        assert final == 9
        assert [r.step for r in logger.records] == list(steps)
        values = [r.values.get("x", r.values.get("value")) for r in logger.records]
        assert values == [i + 1 + 100 * isinstance(logger, Own) for i in steps]
        assert captured.values("value") == list(range(1, 10))


def test_views_find_the_types_that_they_find_outside():
    """A step that returns Python numbers returns weak types, which views promote otherwise."""

    def view(x):
        return {"x": x * jnp.float16(2)}

    with jax.numpy_dtype_promotion("standard"):
        for inner in (1, 4):
            captured, start = testing.capture(view=view), jnp.float32(0)
            spoolax.simulate(lambda key, x: 1.0, start, 9, key=KEY, logger=captured, inner=inner)
            values = [r.values["x"] for r in captured.records]
            assert values == [2.0] * 9
            assert {x.dtype for x in values} == {np.dtype(np.float16)}


def test_a_view_that_fails_is_reported_as_ever():
    captured = testing.capture()
    failing = testing.capture(view=lambda x: {"x": x["missing"]})
    with pytest.raises(TypeError):
        spoolax.simulate(count, 0, 9, key=KEY, logger=CompositeLogger(failing, captured), inner=4)
    assert captured.values("value") == list(range(1, 10))


def test_a_logger_that_fails_for_some_rows_gets_the_others():
    class Failing(testing.capture):
        def write(self, record):
            if record.step % 2:
                raise ValueError("odd")
            super().write(record)

    failing, captured = Failing(), testing.capture()
    with pytest.raises(ValueError, match="odd") as told:
        spoolax.simulate(count, 0, 9, key=KEY, logger=CompositeLogger(failing, captured), inner=4)
    assert told.value.__notes__ == ["Failing failed 4 times."]
    assert [r.step for r in failing.records] == [0, 2, 4, 6, 8]
    assert len(captured.records) == 9


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    captured = testing.capture()
    save = SaveLogger(tmp_path / "a.h5")
    schema = {"x": WriterGroupConfig(lambda x: x)}
    other = HDF5StorageWriter(tmp_path / "b.h5", schema, jnp.zeros(2))  # Not like the state.

    def fail():
        raise OSError("full")

    monkeypatch.setattr(save, "write", fail)
    with pytest.raises(BaseExceptionGroup) as told:
        spoolax.simulate(
            count, 0, 30, key=KEY, logger=CompositeLogger(save, captured, other), inner=4
        )
    assert told.group_contains(OSError, match="full")
    assert told.group_contains(errors.StorageError, match=r"x has changed at step 0: .*int32\[\]")
    assert len(captured.records) == 30


@pytest.mark.parametrize("until", [None, lambda x: x < 0])
def test_a_row_can_end_the_run(until):
    class Enough(testing.capture):
        def write(self, record):
            super().write(record)
            if record.step == 20:
                raise self.error

    logger, other = Enough(), testing.capture()
    logger.error, both = spoolax.Converged("flat"), CompositeLogger(logger, other)
    final = spoolax.simulate(count, 0, 10**8, key=KEY, logger=both, inner=8, until=until)
    assert 21 <= final < 10**8
    assert other.values("value") == list(range(1, int(final) + 1))
    assert logger.ending == ("finished", "flat")
    logger, other = Enough(), testing.capture()
    logger.error, both = spoolax.StopRun("no"), CompositeLogger(logger, other)
    with pytest.raises(spoolax.StopRun, match="no"):
        spoolax.simulate(count, 0, 10**8, key=KEY, logger=both, inner=8, until=until)
    assert other.values("value") == list(range(1, len(other.records) + 1))


def test_ctrl_c_loses_no_row():
    def step(key, x):
        jax.debug.callback(lambda x: os.kill(os.getpid(), signal.SIGINT) if x == 30 else None, x)
        return x + 1

    captured = testing.capture()
    with pytest.warns(errors.InterruptedWarning):
        final = spoolax.simulate(step, 0, 10**7, key=KEY, logger=captured, inner=8)
    assert 30 < final < 10**7
    assert captured.values("value") == list(range(1, int(final) + 1))


def test_what_is_compiled_lives_as_long_as_the_views():
    traced = []

    def step(key, x):
        traced.append(1)
        return x + 1

    def view(x):
        traced.append(1)
        return {"x": x}

    made = weakref.WeakSet()
    init = programs.CompiledStep.__init__

    def run(warmup, view):
        logger = testing.capture(view=view)
        spoolax.simulate(step, 0, 33, key=KEY, logger=logger, inner=8, warmup=warmup)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            *(programs.CompiledStep, "__init__"),
            lambda self, *args: made.add(self) or init(self, *args),
        )
        run(5, view)
        seen = len(traced)
        run(9, view)
        assert len(traced) <= seen + 1, "the step is looked at once more in each call"
        assert len(made) == 2
        run(0, lambda x: {"y": x})
        gc.collect()
        assert len(made) == 2
