"""The driver of simulations."""

import io
import itertools
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax import _weak_cache, errors, loggers, testing

KEY = jax.random.key(3)


def walk(key, state):
    """A step with arithmetic that is sensitive to how it is compiled."""
    x = state["x"]
    kick = jax.random.normal(key, x.shape)
    x = jnp.tanh(x @ x.T) @ x / 3.0 + 0.1 * kick
    return {"x": x / jnp.linalg.norm(x), "n": state["n"] + 1}


def start():
    return {"x": jnp.linspace(-1.0, 1.0, 64).reshape(8, 8), "n": 0}


def run(n_steps=103, **options):
    return spoolax.simulate(walk, start(), n_steps, key=KEY, **options)


def test_the_trajectory_does_not_depend_on_inner_or_loggers():
    with testing.capture() as logger:
        reference = run(logger=logger)
    states = logger.values("x")
    for options in (
        {},
        {"inner": 50},
        {"inner": 1000},
        {"inner": 50, "donate": False},
        {"inner": 7, "logger": testing.capture(every=10)},
        {"inner": 50, "logger": testing.capture()},
        {"inner": 50, "logger": loggers.CompositeLogger(loggers.NullLogger(), testing.capture())},
        {"inner": 20, "logger": loggers.TqdmLogger(103, file=io.StringIO())},
    ):
        final = run(**options)
        assert final["x"].tobytes() == reference["x"].tobytes(), options
        assert final["n"] == 103
        one = options.get("logger")
        if isinstance(one, testing.capture):
            every = 10 if options["inner"] == 7 else 1
            assert [record.step for record in one.records] == list(range(0, 103, every))
            assert one.values("x") == states[::every]


def test_keys_are_those_of_the_chain():
    seen = []

    def step(key, state):
        return jax.random.key_data(key)

    with testing.capture() as logger:
        spoolax.simulate(step, jnp.zeros(2, jnp.uint32), 4, key=KEY, logger=logger, inner=3)
    seen = logger.values("value")
    chain = itertools.islice(spoolax.key_chain(KEY), 4)
    assert seen == [jax.random.key_data(key).tolist() for key in chain]


def test_warm_up_is_not_logged_and_has_keys_of_its_own():
    with testing.capture() as logger:
        final = run(10, warmup=25, inner=10, logger=logger)
    assert [record.step for record in logger.records] == list(range(10))
    assert final["n"] == 35
    assert logger.values("n") == list(range(26, 36))
    first = jax.random.fold_in(KEY, 0)

    def step(key, state):
        return state | jnp.all(jax.random.key_data(key) == jax.random.key_data(first))

    assert not spoolax.simulate(step, False, 0, key=KEY, warmup=50)


def test_a_run_can_be_resumed():
    whole = run(60)
    half = run(30, inner=8)
    with testing.capture() as logger:
        rest = spoolax.simulate(walk, half, 30, key=KEY, start_step=30, inner=7, logger=logger)
    assert rest["x"].tobytes() == whole["x"].tobytes()
    assert [record.step for record in logger.records] == list(range(30, 60))


def test_the_state_that_was_given_stays_there():
    state = start()
    state["n"] = jnp.array(0)
    before = np.array(state["x"])
    final = spoolax.simulate(walk, state, 5, key=KEY)
    assert not state["x"].is_deleted()
    assert (np.asarray(state["x"]) == before).all()
    again = spoolax.simulate(walk, state, 5, key=KEY)
    assert again["x"].tobytes() == final["x"].tobytes()


def test_the_step_is_compiled_once():
    traced = 0

    def step(key, x):
        nonlocal traced
        traced += 1
        return x + 1

    for inner, warmup in ((1, 0), (5, 3), (100, 100)):
        spoolax.simulate(step, jnp.float32(0), 20, key=KEY, inner=inner, warmup=warmup)
    seen = traced
    spoolax.simulate(step, jnp.float32(0), 33, key=KEY, inner=4, logger=testing.capture(every=3))
    # It is looked at once more in each call, for the types, but compiled no more.
    assert traced <= seen + 1


def test_ctrl_c_finishes_the_step_and_closes_the_loggers(tmp_path, caplog):
    class Interrupting(loggers.Logger):
        def log(self, state, step):
            if step == 12:
                os.kill(os.getpid(), signal.SIGINT)

    captured = testing.capture()
    before = signal.getsignal(signal.SIGINT)
    composite = loggers.CompositeLogger(Interrupting(), captured)
    final = run(100, logger=composite)
    assert final["n"] == 13
    assert captured.values("n") == list(range(1, 14))
    assert not captured.is_open
    assert signal.getsignal(signal.SIGINT) is before
    assert "Interrupted after 13 of 100 steps" in caplog.text


def test_a_second_ctrl_c_interrupts():
    class Twice(loggers.Logger):
        def log(self, state, step):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    captured = testing.capture()
    with pytest.raises(KeyboardInterrupt):
        run(10, logger=loggers.CompositeLogger(captured, Twice()))
    assert not captured.is_open


def test_an_exception_closes_the_loggers_in_reverse():
    told = []

    class Spy(loggers.Logger):
        def __init__(self, name):
            self.name = name

        def log(self, state, step):
            if self.name == "b" and step == 3:
                raise spoolax.StopRun("enough")

        def __exit__(self, kind, error, trace):
            told.append((self.name, str(error)))

    with pytest.raises(spoolax.StopRun, match="enough"):
        run(10, logger=loggers.CompositeLogger(Spy("a"), Spy("b")))
    assert told == [("b", "enough"), ("a", "enough")]


def test_an_open_logger_is_used_and_left_open():
    with testing.capture() as logger:
        state = run(5, logger=logger)
        spoolax.simulate(walk, state, 5, key=KEY, start_step=5, logger=logger)
        assert logger.is_open
    assert [record.step for record in logger.records] == list(range(10))


def test_a_logger_that_fails_does_not_end_the_run():
    class Failing(loggers.Logger):
        def log(self, state, step):
            raise ValueError("broken")

        def wants(self, step):
            raise ValueError("broken")

    reached = []

    def step(key, x):
        jax.debug.callback(reached.append, x)
        return x + 1

    with pytest.raises(ValueError, match="broken"):
        spoolax.simulate(step, 0, 20, key=KEY, logger=Failing())
    jax.effects_barrier()
    assert len(reached) == 20
    captured = testing.capture()
    with pytest.raises(ValueError, match="broken"):
        run(5, logger=loggers.CompositeLogger(Failing(), captured))
    assert not captured.is_open
    assert len(captured.records) == 5


def test_many_steps_can_be_counted():
    numbers = (np.int64(3), np.uint8(2))
    assert run(numbers[0], inner=numbers[1])["n"] == 3
    final = spoolax.simulate(lambda k, x: x + 1, 0, 3, key=KEY, start_step=2**31 + 5)
    assert final == 3
    with pytest.raises(ValueError, match="at most"):
        spoolax.simulate(lambda k, x: x + 1, 0, 3, key=KEY, start_step=2**32)
    with pytest.raises(TypeError, match="one key"):
        spoolax.simulate(lambda k, x: x + 1, 0, 3, key=0)


def test_anything_that_logs_can_be_the_logger():
    class Plain:
        def __init__(self):
            self.seen = []

        def __enter__(self):
            return self

        def log(self, state, step):
            self.seen.append((step, int(state["n"])))

        def __exit__(self, *error):
            self.seen.append("closed")

    plain = Plain()
    run(3, logger=plain, inner=10)
    assert plain.seen == [(0, 1), (1, 2), (2, 3), "closed"]


def test_states_may_hold_keys_and_be_spread_over_devices():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    state = {"key": jax.random.key(0), "x": jax.device_put(jnp.arange(4.0), spread)}

    def step(key, state):
        return {"key": jax.random.fold_in(state["key"], 1), "x": state["x"] * 2.0}

    with testing.capture(every=2) as logger:
        final = spoolax.simulate(step, state, 5, key=KEY, logger=logger, inner=5)
    assert final["x"].sharding.is_equivalent_to(spread, 1)
    assert final["x"].tolist() == [0, 32, 64, 96]
    assert logger.values("x")[0] == [0, 2, 4, 6]


def test_what_a_step_logs_can_be_tapped():
    def step(key, x):
        spoolax.log({"x": x})
        return x + 1

    seen = []
    final = spoolax.simulate(
        spoolax.tap(step, lambda logs: seen.append(int(logs["x"]))), 0, 10, key=KEY, inner=4
    )
    spoolax.flush()
    assert final == 10
    assert seen == list(range(10))


def test_no_steps_are_no_trouble():
    with testing.capture() as logger:
        assert run(0, logger=logger)["n"] == 0
    assert logger.records == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": -1}, "n_steps"),
        ({"n_steps": 2.5}, "n_steps"),
        ({"inner": 0}, "inner"),
        ({"warmup": True}, "warmup"),
        ({"logger": print}, "context manager"),
        ({"logger": [loggers.NullLogger()]}, "CompositeLogger"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(errors.SpoolaxError, match=message):
        run(**options)


def test_a_step_that_changes_the_state_is_refused_in_the_users_terms():
    with pytest.raises(
        TypeError, match=r"state\['x'\] is float32\[2\] before the step, and float32\[3\]"
    ):
        spoolax.simulate(lambda k, s: {"x": jnp.zeros(3)}, {"x": jnp.zeros(2)}, 1, key=KEY)
    with pytest.raises(TypeError, match="must return a state like"):
        spoolax.simulate(lambda k, s: (s, s), jnp.zeros(2), 1, key=KEY)
    with pytest.raises(TypeError, match=r"state is int32\[\] before the step, and float32\[\]"):
        spoolax.simulate(lambda k, s: s * jnp.float32(0.5), jnp.array(1), 1, key=KEY)
    with pytest.raises(ZeroDivisionError) as caught:
        spoolax.simulate(lambda k, s: 1 // 0, 1.0, 1, key=KEY)
    assert any("spoolax.simulate" in note for note in caught.value.__notes__)


def test_what_is_compiled_of_a_method_does_not_die_with_an_equal_one():
    class Model:
        def step(self, key, x):
            return x + 1

    cache = _weak_cache.WeakCache(methods=False)

    def made(f):
        return cache.get(f, None, lambda reference: reference)

    model = Model()
    first = made(model.step)
    second = made(model.step)
    del first
    assert second()(KEY, 1) == 2

    def function(x):
        return x

    assert made(function) is made(function), "and of a function it is kept"
