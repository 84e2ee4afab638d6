"""The driver of simulations."""

import asyncio
import io
import itertools
import os
import signal
import subprocess
import sys
import time

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


class Interrupting(loggers.Logger):
    """Presses Ctrl-C after a step."""

    def __init__(self, at=12):
        self.at = at

    def log(self, state, step):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_finishes_the_step_and_closes_the_loggers():
    captured = testing.capture()
    before = signal.getsignal(signal.SIGINT)
    composite = loggers.CompositeLogger(Interrupting(), captured)
    with pytest.warns(errors.InterruptedWarning, match="Interrupted after 13 of 100 steps") as told:
        final = run(100, logger=composite)
    assert told[0].filename == __file__
    assert final["n"] == 13
    assert captured.values("n") == list(range(1, 14))
    assert not captured.is_open
    assert signal.getsignal(signal.SIGINT) is before
    assert captured.ending == ("interrupted", "Interrupted after 13 of 100 steps.")
    assert spoolax.interrupted()
    run(1)
    assert not spoolax.interrupted()


@pytest.mark.once
def test_a_script_can_tell_that_ctrl_c_ended_it_and_so_can_its_files(tmp_path):
    code = """if True:
        import sys, jax, jax.numpy as jnp, spoolax
        from spoolax.loggers import *
        from spoolax.storage import WriterGroupConfig
        schema = {"frames": WriterGroupConfig(lambda x: {"x": x}, 10)}
        logger = CompositeLogger(
            HDF5StorageWriter("frames.h5", schema, jnp.zeros(3)), SaveLogger("all.h5", every=10)
        )
        print("begins", flush=True)
        key = jax.random.key(0)
        x = spoolax.simulate(
            lambda key, x: x + 1, jnp.zeros(3), 10**9, key=key, logger=logger, inner=10
        )
        print(int(x[0]))
        sys.exit(130 if spoolax.interrupted() else 0)
    """
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True) as script:
        script.stdout.readline()
        path = tmp_path / "all.h5"
        while script.poll() is None:
            time.sleep(0.1)
            if path.exists() and spoolax.open(path).steps_run:
                script.send_signal(signal.SIGINT)
                break
        out, told = script.communicate(timeout=60)
    assert script.returncode == 130, told
    assert "InterruptedWarning: Interrupted after" in told
    for name in ("all.h5", "frames.h5"):
        with spoolax.open(tmp_path / name) as reader:
            assert (reader.status, reader.steps_run) == ("interrupted", int(out))
            assert reader.reason == f"Interrupted after {int(out)} of 1000000000 steps."


def test_ctrl_c_in_the_last_step_is_not_lost():
    """Everything has run, so the run has finished; but the script can tell."""
    captured = testing.capture()
    with pytest.warns(errors.InterruptedWarning, match="after 13 of 13 steps"):
        run(13, logger=loggers.CompositeLogger(Interrupting(), captured))
    assert captured.ending == ("finished", "")
    assert spoolax.interrupted()


def test_ctrl_c_that_means_something_else_is_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        final = run(20, logger=Interrupting())
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert final["n"] == 20


def test_ctrl_c_ends_a_run_in_a_coroutine():
    """And cancels nothing: the coroutine goes on with the state."""

    async def main():
        final = run(100, logger=Interrupting())
        await asyncio.sleep(0)
        return final

    with pytest.warns(errors.InterruptedWarning, match="Interrupted after 13 of 100 steps"):
        assert asyncio.run(main())["n"] == 13
    assert spoolax.interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_during_warm_up_opens_no_logger():
    def step(key, x):
        jax.debug.callback(lambda x: os.kill(os.getpid(), signal.SIGINT) if x == 3 else None, x)
        return x + 1

    captured = testing.capture()
    with pytest.warns(errors.InterruptedWarning, match="during warm-up, after"):
        final = spoolax.simulate(step, 0, 5, key=KEY, warmup=100_000, logger=captured)
    assert 3 < final < 100_000
    assert captured.ending is None
    assert spoolax.interrupted()


def test_a_logger_that_was_open_says_that_a_run_in_it_was_interrupted():
    """Unless another one has come to its end since."""
    with loggers.CompositeLogger(Interrupting(), testing.capture()) as logger:
        with pytest.warns(errors.InterruptedWarning):
            run(100, logger=logger)
    for one in (logger, *logger.loggers):
        assert one.ending == ("interrupted", "Interrupted after 13 of 100 steps.")
    with loggers.CompositeLogger(Interrupting(), testing.capture()) as logger:
        with pytest.warns(errors.InterruptedWarning):
            half = run(100, logger=logger)
        spoolax.simulate(walk, half, 87, key=KEY, start_step=13, logger=logger)
    assert logger.ending.status == logger.loggers[1].ending.status == "finished"


def test_a_logger_that_fails_is_heard_of_though_the_run_is_interrupted():
    class Failing(loggers.Logger):
        def log(self, state, step):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run(100, logger=loggers.CompositeLogger(Failing(), Interrupting()))
    assert spoolax.interrupted()


def test_the_warning_says_where_the_last_entries_are(tmp_path):
    last = loggers.RingBufferLogger(3, tmp_path / "last.jsonl", view=lambda s: {"n": s["n"]})
    with pytest.warns(errors.InterruptedWarning, match="The last 3 entries .*last.jsonl"):
        run(100, logger=loggers.CompositeLogger(Interrupting(), last))
    assert [line["n"] for line in loggers.read_jsonl(tmp_path / "last.jsonl")] == [11, 12, 13]


def test_a_second_ctrl_c_interrupts():
    class Twice(loggers.Logger):
        def log(self, state, step):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    captured = testing.capture()
    with pytest.raises(KeyboardInterrupt):
        run(10, logger=loggers.CompositeLogger(captured, Twice()))
    assert not captured.is_open
    assert captured.ending == ("interrupted", "KeyboardInterrupt")
    assert spoolax.interrupted()


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


def is_near(state):
    return (state["n"] > 20) & (jnp.abs(state["x"][0]).max() > 0.25)


@pytest.fixture(scope="module")
def trajectory():
    """Every state of a run, and after which steps `is_near` is true."""
    with testing.capture() as logger:
        run(logger=logger)
    states = [jnp.array(x, jnp.float32) for x in logger.values("x")]
    near = [i for i, x in enumerate(states) if is_near({"x": x, "n": i + 1})]
    assert any((i + 1) % 16 == 0 for i in near)
    return states, near


def test_a_run_stops_when_its_goal_is_reached(trajectory):
    """At exactly that step, with the same bits as without a goal, whatever `inner` is."""
    states, near = trajectory
    for options, every in (
        ({}, 1),
        ({"inner": 1000}, 1),
        ({"inner": 7, "donate": False}, 1),
        ({"inner": 50, "check_every": 5}, 5),
        ({"inner": 3, "check_every": 16}, 16),
    ):
        stop = next(i for i in near if (i + 1) % every == 0)
        for wanted in (1, 10, None):
            logger = loggers.NullLogger() if wanted is None else testing.capture(every=wanted)
            final = run(until=is_near, logger=logger, **options)
            assert final["n"] == stop + 1, options
            assert final["x"].tobytes() == np.asarray(states[stop]).tobytes(), options
            assert logger.ending == ("finished", f"`is_near` was true after step {stop}.")
            if wanted is not None:
                steps = list(range(0, stop + 1, wanted))
                assert [record.step for record in logger.records] == steps
                for record in logger.records:
                    expected = np.asarray(states[record.step])
                    assert record.values["x"].tobytes() == expected.tobytes()


def test_a_goal_that_is_never_reached_changes_nothing():
    reference, logger = run(warmup=7), testing.capture(every=10)
    final = run(warmup=7, until=lambda state: state["n"] < 0, inner=20, logger=logger)
    assert final["x"].tobytes() == reference["x"].tobytes()
    assert logger.ending == ("finished", "")
    assert [record.step for record in logger.records] == list(range(0, 103, 10))


def test_steps_are_counted_up_to_the_goal():
    class Counting(loggers.Logger):
        def __enter__(self):
            self.logged, self.left_out = [], 0

        def log(self, state, step):
            self.logged.append(step)

        def wants(self, step):
            return step % 20 == 0

        def skipped(self, steps):
            self.left_out += steps

    logger = Counting()
    final = run(until=lambda state: state["n"] == 57, inner=8, logger=logger)
    assert final["n"] == 57
    assert (logger.logged, logger.left_out) == ([0, 20, 40], 54)


def test_a_run_with_a_goal_can_be_resumed_and_interrupted():
    goal = {"until": lambda state: state["n"] == 40, "check_every": 10}
    half = run(15, **goal)
    final = spoolax.simulate(walk, half, 80, key=KEY, start_step=15, **goal)
    assert final["n"] == 40
    assert final["x"].tobytes() == run(40)["x"].tobytes()
    captured = testing.capture()
    with pytest.warns(errors.InterruptedWarning):
        final = run(logger=loggers.CompositeLogger(Interrupting(), captured), **goal)
    assert captured.ending.status == "interrupted"
    assert captured.values("n") == list(range(1, final["n"] + 1))


def test_the_device_need_not_wait_for_the_host_to_read_a_test():
    """Steps are dispatched ahead of that, and those after the goal do not run."""
    happened, ran = [], []

    class Seeing(loggers.Logger):
        def log(self, state, step):
            happened.append(("logged", step))

        def wants(self, step):  # Asked when the step has been dispatched.
            happened.append(("dispatched", step))
            return True

    def step(key, x):
        jax.debug.callback(lambda x: ran.append(int(x)), x)
        return x + 1

    final = spoolax.simulate(step, 0, 30, key=KEY, until=lambda x: x == 20, logger=Seeing())
    jax.effects_barrier()
    assert final == 20
    assert sorted(ran) == [i for what, i in happened if what == "logged"] == list(range(20))
    for i in range(20):
        assert happened.index(("dispatched", i + 4)) < happened.index(("logged", i))


def test_a_logger_can_say_that_the_goal_is_reached():
    class Enough(loggers.Logger):
        def log(self, state, step):
            if step == 20:
                raise spoolax.Converged("flat")

    class Plain:
        def __enter__(self):
            return self

        def log(self, state, step):
            pass

        def __exit__(self, kind, error, trace):
            self.error = error

    for options in ({}, {"until": lambda state: state["n"] > 90}):
        captured, plain = testing.capture(), Plain()
        final = run(logger=loggers.CompositeLogger(captured, Enough(), plain), **options)
        assert final["n"] == 21
        assert captured.ending == ("finished", "flat")
        assert captured.values("n")[:21] == list(range(1, 22))
        assert plain.error is None

    class Writing(loggers.WritingLogger):
        def write(self, record):
            if record.step == 20:
                raise spoolax.Converged("flat")

    logger = Writing(view=lambda state: {"n": state["n"]})
    assert 21 <= run(10**6, logger=logger)["n"] < 10**6
    assert logger.ending == ("finished", "flat")
    logger = Writing()
    assert run(21, logger=logger)["n"] == 21, "also after the last step"
    assert logger.ending == ("finished", "flat")


def test_a_goal_is_compiled_once():
    traced = []

    def until(state):
        traced.append(1)
        return state["n"] > 50

    for inner in (1, 5, 50):
        run(until=until, inner=inner, check_every=inner, warmup=inner)
    seen = len(traced)
    run(until=until, inner=3, check_every=2, logger=testing.capture(every=5))
    assert len(traced) <= seen + 1


def logging_walk(key, state):
    state = walk(key, state)
    spoolax.log({"n": state["n"], "largest": jnp.abs(state["x"]).max()})

    def inner(i, y):
        spoolax.log({"y": y}, inner=i)
        return y / 2

    jax.lax.fori_loop(0, 2, inner, 1.0)
    return state


def test_what_a_step_logs_reaches_the_logger():
    """With the number of the step, whatever `inner` is, and with the same trajectory to the bit."""
    reference = run(50)
    for options in ({}, {"inner": 20, "warmup": 3, "start_step": 5}, {"donate": False}):
        first, warm = options.get("start_step", 0), options.get("warmup", 0)
        logger, states = testing.capture(), testing.capture(every=10, view=lambda s: {"n": s["n"]})
        bar = loggers.TqdmLogger(file=io.StringIO())
        both = loggers.CompositeLogger(states, loggers.CompositeLogger(bar, logger).every(1))
        final = spoolax.simulate(logging_walk, start(), 50, key=KEY, logger=both, **options)
        if not (first or warm):
            assert final["x"].tobytes() == reference["x"].tobytes()
        numbers = list(range(first, first + 50))
        logged = [r for r in logger.records if "largest" in r.values]
        assert [r.step for r in logged] == numbers
        assert [r.values["n"] for r in logged] == list(range(warm + 1, warm + 51))
        deeper = [r for r in logger.records if "y" in r.values]
        assert [r.step for r in deeper] == [n for n in numbers for _ in range(2)]
        assert [r.steps["inner"] for r in deeper] == [0, 1] * 50
        assert [r.step for r in logger.records if "x" in r.values] == numbers, "states as before"
        assert states.values("n") == [n + warm + 1 - first for n in numbers if n % 10 == 0]


def logs_twice(key, x):
    spoolax.log({"before": x})
    x = x + 1
    spoolax.log({"after": x})
    return x


def is_large(x):
    return x >= 17


@pytest.mark.parametrize("until", [None, lambda x: x < 0, is_large])
def test_what_a_step_logs_comes_before_its_state(until):
    """And after the state of the step before it, however many steps run without the host."""
    for inner, check_every, every, donate in (
        *((1, 1, None, True), (1, 1, None, False), (5, 1, None, True)),
        *((5, 3, None, True), (5, 1, 4, True), (20, 4, 4, False)),
    ):
        options = {"inner": inner, "donate": donate}
        if until is not None:
            options |= {"until": until, "check_every": check_every}
        logger = testing.capture(every=every)
        spoolax.simulate(logs_twice, jnp.float32(0), 20, key=KEY, logger=logger, **options)
        steps = -(-17 // check_every) * check_every if until is is_large else 20
        expected = [
            (step, name)
            for step in range(0, steps, every or 1)
            for name in ("before", "after", "value")
        ]
        assert [(r.step, *r.values) for r in logger.records] == expected


def test_what_a_step_logs_is_thinned_out_and_does_not_count_as_steps(tmp_path):
    save = loggers.SaveLogger(tmp_path / "a.h5", every=10)
    thin = testing.capture().every(10)
    spoolax.simulate(
        logging_walk, start(), 50, key=KEY, logger=loggers.CompositeLogger(save, thin), inner=5
    )
    logs = spoolax.load(tmp_path / "a.h5")
    assert logs["largest"].shape == (5,)
    assert logs.step["largest"].tolist() == [0, 10, 20, 30, 40]
    with spoolax.open(tmp_path / "a.h5") as reader:
        assert reader.steps_run == 50
    assert [r.step for r in thin.records if "largest" in r.values] == [0, 10, 20, 30, 40]


def test_a_step_of_its_own_and_a_goal_stay():
    def step(key, x):
        spoolax.log({"x": x}, step=10 * x)
        return x + 1

    with testing.capture() as logger:
        final = spoolax.simulate(
            step, 0, 9, key=KEY, logger=logger, until=lambda x: x == 4, inner=9
        )
    assert final == 4
    assert [r.step for r in logger.records if "x" in r.values] == [0, 10, 20, 30]


def test_the_program_is_compiled_once_for_all_loggers():
    traced = 0

    def step(key, x):
        nonlocal traced
        traced += 1
        spoolax.log({"x": x})
        return x + 1

    for _ in range(3):
        spoolax.simulate(step, 0, 9, key=KEY, logger=testing.capture(), inner=4)
        seen, traced = traced, 0
    assert seen <= 1, "it is looked at once more in each call"


def test_a_step_that_logs_nothing_is_not_tapped(monkeypatch):
    def tap(self, *args):
        raise AssertionError("tapped")

    monkeypatch.setattr(loggers.Logger, "tap", tap)
    assert run(3, logger=testing.capture())["n"] == 3
    assert spoolax.simulate(logging_walk, start(), 3, key=KEY)["n"] == 3, "nor without a logger"


def test_it_is_said_if_no_logger_takes_what_a_step_logs():
    class Own(loggers.Logger):
        def log(self, state, step):
            assert state["n"] == step + 1

    plain, viewed = Own(), loggers.PrintLogger(every=100, view=lambda state: {})
    for logger in (plain, loggers.CompositeLogger(Own(), viewed)):
        with pytest.warns(errors.NothingSelectedWarning, match=r"'largest', 'n', 'y'.*py:") as told:
            spoolax.simulate(logging_walk, start(), 3, key=KEY, logger=logger)
        assert told[0].filename == __file__


def test_a_logger_that_fails_on_what_a_step_logs_does_not_end_the_run():
    class Failing(loggers.WritingLogger):
        def write(self, record):
            if "largest" in record.values:
                raise ValueError("broken")

    captured, failing = testing.capture(), Failing()
    with pytest.raises(ValueError, match="broken"):
        both = loggers.CompositeLogger(captured, failing)
        spoolax.simulate(logging_walk, start(), 20, key=KEY, logger=both)
    assert captured.ending == failing.ending == ("finished", "")
    assert len(captured.values("largest")) == 20


def test_a_logger_can_stop_at_what_a_step_logs():
    """The state is not lost with it."""

    class Enough(testing.capture):
        def write(self, record):
            super().write(record)
            if record.step == 20 and "largest" in record.values:
                raise self.error

    for options in ({}, {"until": lambda state: state["n"] < 0}):
        logger = Enough()
        logger.error = spoolax.Converged("flat")
        final = spoolax.simulate(logging_walk, start(), 10**6, key=KEY, logger=logger, **options)
        assert 21 <= final["n"] < 10**6
        assert logger.values("largest")[-1] == jnp.abs(final["x"]).max()
        assert logger.ending == ("finished", "flat")
    logger = Enough()
    logger.error = spoolax.StopRun("no")
    with pytest.raises(spoolax.StopRun, match="no"):
        spoolax.simulate(logging_walk, start(), 10**6, key=KEY, logger=logger)
    assert logger.ending == ("interrupted", "no")


def test_ctrl_c_loses_nothing_of_what_steps_log():
    captured = testing.capture()
    with pytest.warns(errors.InterruptedWarning):
        logger = loggers.CompositeLogger(Interrupting(), captured)
        final = spoolax.simulate(logging_walk, start(), 100, key=KEY, logger=logger)
    assert final["n"] == 13
    assert len(captured.values("largest")) == 13
    assert captured.ending.status == "interrupted"


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
        ({"check_every": 0}, "check_every"),
        ({"until": True}, "until"),
        ({"until": lambda state: state["x"] > 0}, r"one boolean.*bool\[8,8\]"),
        ({"until": lambda state: state["n"]}, r"one boolean.*int32\[\]"),
        ({"until": lambda state: (state["n"] > 0, 1)}, "one boolean"),
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
