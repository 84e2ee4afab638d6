"""One run for every key that is given to `init`."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from logger_cases import five

import spoolax
from spoolax import errors, loggers, testing


def seeded(key, n):
    def body(carry):
        i, x = carry
        spoolax.log({"x": x, "n": n}, step=i)
        return i + 1, x + jax.random.uniform(jax.random.fold_in(key, i))

    return lax.while_loop(lambda carry: carry[0] < n, body, (0, jnp.float32(0)))[1]


seeded_lanes = jax.jit(jax.vmap(seeded))


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("compiled", [True, False])
def test_each_lane_has_a_run_of_its_own(way, compiled):
    def run(key, n):
        return getattr(logger, way)(seeded, logger.init(key))(key, n)

    keys, lengths = jax.random.split(jax.random.key(0), 3), jnp.array([4, 0, 2])
    batched = jax.vmap(run)
    with testing.capture() as logger:
        out = (jax.jit(batched) if compiled else batched)(keys, lengths)
    assert out.tobytes() == seeded_lanes(keys, lengths).tobytes()
    for number, one in logger.runs.items():
        with testing.capture() as alone:
            alone.tap(seeded)(keys[number], lengths[number])
        assert one.values("x") == alone.values("x")
        assert [record.step for record in one.records] == list(range(lengths[number]))
        assert "spoolax.run" not in "".join(name for r in one.records for name in r.steps)


def three_steps(x):
    def body(x, i):
        spoolax.log({"x": x}, step=i)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(3))[0]


three_steps_of_lanes = jax.vmap(three_steps)


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"reduce": "mean"}])
def test_vmaps_further_in_stay_axes_of_the_values(seeds, lanes, options):
    def run(key, x):
        return logger.tap(three_steps_of_lanes, logger.init(key), **options)(x)

    x = jnp.arange(1.0 * seeds * lanes).reshape(seeds, lanes)
    with testing.capture() as logger:
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds), x)
    assert len(logger.runs) == seeds
    for number, one in logger.runs.items():
        with testing.capture() as alone:
            alone.tap(three_steps_of_lanes, **options)(x[number])
        assert one.values("x") == alone.values("x")


def test_an_outer_vmap_that_runs_do_not_depend_on_stays_an_axis():
    def run(key, x):
        return logger.tap(lambda x: spoolax.log({"x": x}) and x, logger.init(key))(x)

    keys = jax.random.split(jax.random.key(0), 2)
    with testing.capture() as logger:
        over_keys = jax.vmap(run, (0, None))
        jax.jit(jax.vmap(over_keys, (None, 0)))(keys, jnp.arange(3.0))
    assert [one.values("x") for one in logger.runs.values()] == [[[0, 1, 2]], [[0, 1, 2]]]


def test_init_opens_a_run_each_time_that_it_is_executed():
    def run(x, key):
        return logger.tap(lambda x: spoolax.log({"x": x}) and 2 * x, logger.init(key))(x), None

    with testing.capture() as logger:
        lax.scan(run, jnp.float32(1), jax.random.split(jax.random.key(0), 3))
        state = logger.init(jax.random.key(0))
        logger.tap(lambda x: spoolax.log({"x": x}), state)(5.0)
        logger.tap(lambda x: spoolax.log({"x": x}), state)(6.0)
    assert [one.values("x") for one in logger.runs.values()] == [[1], [2], [4], [5, 6]]


def named_run(key):
    def body(i, _):
        spoolax.log({"name": jax.random.key_data(key)[-1]}, step=i)
        return i + 1, None

    return lax.scan(body, 0, length=2)[0]


NAMES = jax.vmap(jax.random.key)(jnp.arange(6))  # The last word of a key is its seed.


def lanes_of_other_shapes(logger):
    states = jax.tree.map(lambda x: x.reshape(2, 3), jax.vmap(logger.init)(NAMES))
    tapped = jax.vmap(jax.vmap(lambda state, key: logger.tap(named_run, state)(key)))
    tapped(states, NAMES.reshape(2, 3))


def lanes_stacked_by_hand(logger):
    states = jax.tree.map(lambda *x: jnp.stack(x), *map(logger.init, NAMES))
    jax.vmap(lambda state, key: logger.tap(named_run, state)(key))(states, NAMES)


def iterations(logger):
    def body(carry, key):
        return carry, logger.tap(named_run, logger.init(key))(key)

    jax.jit(lambda keys: lax.scan(body, 0, keys))(NAMES)


def devices(logger):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def local(keys):
        return jax.vmap(lambda key: logger.tap(named_run, logger.init(key))(key))(keys)

    jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec))(NAMES)


def devices_by_sharding(logger):
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((2,), ("i",)), jax.sharding.PartitionSpec("i")
    )
    run = jax.vmap(lambda key: logger.tap(named_run, logger.init(key))(key))
    jax.jit(run)(jax.device_put(NAMES, sharding))


class Batches(loggers.Logger):
    """Takes many at a time."""

    def __enter__(self):
        self.seen = []

    def log_many(self, logs):
        self.seen += logs["name"].tolist()

    def values(self, key):
        return self.seen


@pytest.mark.parametrize("kind", [testing.capture, Batches])
@pytest.mark.parametrize(
    "program",
    [lanes_of_other_shapes, lanes_stacked_by_hand, iterations, devices, devices_by_sharding],
)
def test_entries_find_their_run_wherever_it_was_opened(program, kind):
    class Named(kind):
        def fork(self, run):
            one = super().fork(run)
            one.seed = run.key[-1]
            return one

    with Named() as logger:
        program(logger)
    assert len(logger.runs) == 6
    for one in logger.runs.values():
        assert one.values("name") == [one.seed] * 2


def test_a_run_that_fails_does_not_keep_the_others_from_theirs():
    class Fragile(testing.capture):
        def fork(self, run):
            one = super().fork(run)
            one.fails = run.number == 0
            return one

        def write(self, record):
            super().write(record)
            if getattr(self, "fails", False):
                raise ValueError("broken")

    def run(key):
        return logger.tap(named_run, logger.init(key))(key)

    logger = Fragile()
    with pytest.raises(ValueError, match="broken"), logger:
        jax.vmap(run)(NAMES[:3])
    assert [one.values("name") for one in logger.runs.values()] == [[0, 0], [1, 1], [2, 2]]


def test_runs_of_two_loggers_do_not_meet():
    def f(x):
        spoolax.log({"x": x})
        return x

    def run(key, x):
        inner_state = inner.init(key)

        def both(x):
            return inner.tap(f, inner_state, keep_logs=True)(x)

        return outer.tap(both, outer_state)(x)

    with testing.capture() as inner, testing.capture() as outer:
        outer_state = outer.init(0)
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3), jnp.arange(3.0))
    assert [one.values("x") for one in inner.runs.values()] == [[0], [1], [2]]
    assert [one.values("x") for one in outer.runs.values()] == [[[0, 1, 2]]]
    assert not any(record.steps for record in outer.runs[0].records)
    with testing.capture() as inner, testing.capture() as outer:
        outer_state = None
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3), jnp.arange(3.0))
    assert outer.values("x") == [[0, 1, 2]]
    assert not outer.records[0].steps


def test_runs_survive_differentiation():
    def loss(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return jnp.sin(x), None

        return lax.scan(body, x, jnp.arange(3))[0]

    def run(key, x):
        return jax.grad(jax.checkpoint(logger.tap(loss, logger.init(key))))(x)

    keys, x = jax.random.split(jax.random.key(0), 2), jnp.array([1.0, 2.0])
    with testing.capture() as logger:
        out = jax.jit(jax.vmap(run))(keys, x)
    np.testing.assert_array_equal(out, jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss))))(x))
    for number, one in logger.runs.items():
        with testing.capture() as alone:
            alone.tap(loss)(x[number])
        np.testing.assert_allclose(one.values("x"), alone.values("x"), rtol=1e-6)


def test_composites_have_runs_of_composites(tmp_path):
    def run(key):
        return logger.tap(seeded, logger.init(key))(key, 2)

    logger = loggers.CompositeLogger(
        testing.capture(), loggers.JsonlLogger(tmp_path / "a/log.jsonl").every(2)
    )
    with logger:
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))
    assert sorted(os.listdir(tmp_path / "a")) == ["log-run-0.jsonl", "log-run-1.jsonl"]
    captured, _ = logger.runs[1].loggers
    (line,) = loggers.read_jsonl(tmp_path / "a/log-run-1.jsonl")
    assert captured.values("x")[0] == line["x"]


def test_init_takes_keys_of_all_kinds_but_one_at_a_time():
    with testing.capture() as logger:
        for key in (jax.random.key(1), jax.random.PRNGKey(1), 7, np.uint32(3)):
            logger.init(key)
        with pytest.raises(TypeError, match=r"jax.vmap\(logger.init\)"):
            logger.init(jax.random.split(jax.random.key(0), 3))
        with pytest.raises(TypeError, match="key"):
            logger.init("seed")
        with pytest.raises(TypeError, match="key"):
            logger.init(1.5)
    assert len(logger.runs) == 4
    with pytest.raises(errors.LoggerStateError):
        logger.init(jax.random.key(1))


def test_states_of_several_runs_are_for_vmap():
    with testing.capture() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
        with pytest.raises(TypeError, match="3 runs"):
            logger.tap(five, states)()
        with pytest.raises(TypeError, match=r"what `logger.init\(key\)` returned"):
            logger.tap(five, "i")


def test_a_run_that_cannot_be_opened_does_not_stop_the_program():
    class Choosy(testing.capture):
        def fork(self, run):
            if run.number == 1:
                raise OSError("no room")
            return super().fork(run)

    def run(key, n):
        return logger.tap(seeded, logger.init(key))(key, n)

    logger = Choosy()
    with pytest.raises(OSError, match="no room"), logger:
        jax.vmap(run)(jax.random.split(jax.random.key(0), 3), jnp.array([1, 1, 1]))
    assert [logger.runs[i].values("x") for i in (0, 2)] == [[0], [0]]


def test_programs_of_runs_are_not_those_of_others():
    def f(x):
        spoolax.log({"x": x})
        return x

    def run(key, x):
        return logger.tap(f, logger.init(key))(x)

    seen = []
    with testing.capture() as logger:
        jax.vmap(run)(jax.random.split(jax.random.key(0), 3), jnp.arange(3.0))
    jax.vmap(spoolax.tap(f, seen.append))(jnp.arange(3.0))
    spoolax.flush()
    assert [logs["x"].tolist() for logs in seen] == [[0, 1, 2]]
