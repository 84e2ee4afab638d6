"""What each logger is for."""

import dataclasses
import http.server
import io
import json
import logging
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax import errors, loggers, testing
from spoolax.loggers import (
    EveryNStep,
    EverySeconds,
    LogSpaced,
    Once,
    Steps,
    _console,
    _history,
)
from spoolax.loggers._protocol import view as _view
from spoolax.loggers._protocol.frequency import Schedule


def count(n):
    """A program that logs the numbers below n, and their squares apart."""

    def body(i, _):
        spoolax.log({"i": i}, step=i)
        spoolax.log({"square": i * i}, step=i)
        return i + 1, None

    return lax.scan(body, 0, length=n)[0]


def five():
    return count(5)


class Spy(spoolax.Logger):
    """Says what happens to it."""

    def __init__(self, name, told, fails=()):
        self.name, self.told, self.fails = name, told, fails

    def tell(self, what):
        self.told.append(f"{self.name} {what}")
        if what.split()[0] in self.fails:
            raise ValueError(f"{self.name} {what}")

    def __enter__(self):
        self.tell("enters")

    def log(self, state, step):
        self.tell(f"logs {step}")

    def __exit__(self, kind, error, trace):
        self.tell("exits" if error is None else f"exits with {error}")


# Frequencies.


@pytest.mark.parametrize(
    ("frequency", "steps"),
    [
        (EveryNStep(1), list(range(12))),
        (EveryNStep(5), [0, 5, 10]),
        (Steps(3, 6), [3, 4, 5]),
        (Steps(10), [10, 11]),
        (Once(), [0]),
        (Once() & Steps(4), [4]),
        (Steps(0, 3) | EveryNStep(5), [0, 1, 2, 5, 10]),
        (Steps(0, 8) & EveryNStep(3), [0, 3, 6]),
        ((Steps(0, 8) & EveryNStep(3)) | Steps(11), [0, 3, 6, 11]),
        (LogSpaced(1), [0, 1, 10]),
    ],
)
def test_frequencies_say_which_steps(frequency, steps):
    schedule = Schedule(frequency)
    assert [step for step in range(12) if schedule.take(step)] == steps
    assert Schedule(frequency).take(steps[0]), "a frequency has no memory"


def test_log_spaced_steps_are_the_rounded_powers():
    powers = {0, *(round(10 ** (k / 7)) for k in range(7 * 5 + 1))}
    assert {step for step in range(10**5 + 1) if LogSpaced(7).due(step)} == powers


def test_seconds_are_counted_from_the_last_time():
    now = 100.0
    schedule = Schedule(EverySeconds(5), clock=lambda: now)
    taken = []
    for step in range(10):
        now += 2.0
        if schedule.take(step):
            taken.append(step)
    assert taken == [0, 3, 6, 9]


def test_frequencies_are_values():
    assert Once() | EveryNStep(3) == Once() | EveryNStep(3)
    assert len({EveryNStep(3), EveryNStep(3), Steps(0, 3)}) == 2
    assert repr((Once() | Steps(1)) & EveryNStep(2)).startswith("(Once() | Steps(")


@pytest.mark.parametrize(
    "make",
    [
        lambda: EveryNStep(0),
        lambda: EveryNStep(2.5),
        lambda: EverySeconds(0),
        lambda: LogSpaced(0),
        lambda: loggers.PrintLogger(every="often"),
        lambda: loggers.NullLogger().every(True),
        lambda: Once() | 3,
    ],
)
def test_frequencies_without_meaning_are_refused(make):
    with pytest.raises((ValueError, TypeError)):
        make()


def test_entries_of_several_calls_take_turns():
    """Else the second of two `log` calls would never be due."""
    with testing.capture(every=EverySeconds(3600)) as logger:
        logger.tap(five)()
    assert logger.values("i") == [0]
    assert logger.values("square") == [0]


# Several at once.


def test_several_are_opened_in_order_and_closed_in_reverse():
    told = []
    with loggers.CompositeLogger(Spy("a", told), Spy("b", told)) as logger:
        logger.log({}, 0)
    assert told == ["a enters", "b enters", "a logs 0", "b logs 0", "b exits", "a exits"]
    assert loggers.MultiLogger is loggers.CompositeLogger


def test_if_one_cannot_be_opened_those_before_it_are_closed():
    told = []
    with pytest.raises(ValueError, match="b enters"):
        loggers.CompositeLogger(
            Spy("a", told), Spy("b", told, fails=["enters"]), Spy("c", told)
        ).__enter__()
    assert told == ["a enters", "b enters", "a exits with b enters"]


def test_if_one_fails_the_others_go_on_and_the_error_is_raised_at_the_end(caplog):
    told = []
    broken = Spy("b", told, fails=["logs"])
    with (
        pytest.raises(ValueError, match="b logs 0") as caught,
        loggers.CompositeLogger(Spy("a", told), broken, Spy("c", told)) as logger,
    ):
        logger.log({}, 0)
        logger.log({}, 1)
    assert [line for line in told if "logs" in line] == [
        f"{name} logs {step}" for step in range(2) for name in "abc"
    ]
    assert told[-3:] == ["c exits", "b exits", "a exits"]
    assert "2 times" in caught.value.__notes__[0]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1, "reported once"


def test_if_several_fail_all_errors_are_raised():
    told = []
    with (
        pytest.raises(ExceptionGroup) as caught,
        loggers.CompositeLogger(
            Spy("a", told, fails=["logs"]), Spy("b", told, fails=["exits"])
        ) as logger,
    ):
        logger.log({}, 0)
    assert sorted(map(str, caught.value.exceptions)) == ["a logs 0", "b exits"]


def test_what_fails_in_a_logger_does_not_hide_what_failed_in_the_run():
    told = []
    with (
        pytest.raises(KeyError) as caught,
        loggers.CompositeLogger(Spy("a", told, fails=["logs", "exits"])) as logger,
    ):
        logger.log({}, 0)
        raise KeyError("the run")
    assert any("a logs 0" in note for note in caught.value.__notes__)


def test_a_plain_context_manager_with_log_can_be_one_of_several():
    class Plain:
        def __init__(self):
            self.steps = []

        def __enter__(self):
            return self

        def log(self, state, step):
            self.steps.append(step)

        def __exit__(self, *error):
            pass

    plain = Plain()
    with loggers.CompositeLogger(plain, loggers.NullLogger()) as logger:
        logger.tap(five)()
    assert plain.steps == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(TypeError, match="no logger"):
        loggers.CompositeLogger(print)


def test_one_that_stops_the_run_does_so_after_the_others_have_the_entry():
    captured = testing.capture()
    stopping = loggers.CheckLogger(lambda state: state["x"] < 3)
    with (
        pytest.raises(spoolax.StopRun),
        loggers.CompositeLogger(stopping, captured) as logger,
    ):
        for i in range(10):
            logger.log({"x": i}, i)
    assert captured.values("x") == [0, 1, 2, 3]


# The protocol.


def test_an_error_of_a_stream_is_raised_when_the_logger_is_closed():
    told = []
    with pytest.raises(ValueError, match="a logs 0"), Spy("a", told, fails=["logs"]) as logger:
        logger.tap(five)()
    spoolax.flush()  # Nothing is left to be raised.
    assert len(told) == 12


def test_errors_of_other_sinks_are_left_to_flush():
    def fails(logs):
        raise ValueError("mine")

    with testing.capture() as logger:
        spoolax.tap(five, fails)()
        logger.tap(five)()
    with pytest.raises(ValueError, match="mine"):
        spoolax.flush()


def test_a_method_may_call_that_of_its_base_class():
    class Derived(Spy):
        def __enter__(self):
            super().__enter__()
            self.told.append("derived")

        def log(self, state, step):
            super().log(state, step)

        def __exit__(self, *error):
            super().__exit__(*error)

    told = []
    with Derived("a", told) as logger:
        logger.log({}, 0)
    assert told == ["a enters", "derived", "a logs 0", "a exits"]


def test_one_that_could_not_be_opened_cannot_be_used():
    spy = Spy("a", [], fails=["enters"])
    with pytest.raises(ValueError, match="a enters"):
        spy.__enter__()
    with pytest.raises(errors.LoggerStateError, match="could not be opened"):
        spy.log({}, 0)


def test_a_logger_may_wait_for_others_in_its_own_log(tmp_path):
    """The thread that delivers wants to log as well, while the user's waits for it."""

    class Checkpoints(spoolax.Logger):
        def log(self, state, step):
            with loggers.JsonlLogger(tmp_path / f"{step}.jsonl") as one:
                one.log({"x": 1.0}, step)

    with Checkpoints() as logger:
        logger.tap(lambda: count(40))()
        for i in range(5):
            logger.log({"x": 1.0}, i)


def test_a_logger_may_be_opened_by_a_callback():
    seen = []

    def callback(logs):
        with testing.capture() as inner:
            inner.tap(five)()
        time.sleep(0.02)  # What it has delivered by now is not what `flush` waits for.
        seen.append(inner.values("i"))

    spoolax.tap(lambda x: spoolax.log({"x": x}) and x, callback)(1.0)
    spoolax.flush()
    assert seen == [[0, 1, 2, 3, 4]]


def test_a_broken_logger_is_reported_once_however_often_it_is_used(caplog):
    with pytest.raises(ValueError, match="a logs 0"), Spy("a", [], fails=["logs"]) as logger:
        for _ in range(5):
            logger.tap(five)()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_no_logger_hides_an_error_of_the_run():
    class Hiding(Spy):
        def __exit__(self, *error):
            return True

    with pytest.raises(RuntimeError, match="crash"), Hiding("a", []):
        raise RuntimeError("crash")


def test_values_of_one_name_are_refused():
    with testing.capture() as logger, pytest.raises(ValueError, match="called 'a/b'"):
        logger.log({"a": {"b": 1.0}, "a/b": 2.0}, 0)


def test_lanes_that_did_not_log_do_not_count():
    def f(n):
        def body(i):
            spoolax.log({"y": 1.0 / (n - i)})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, jnp.float32(0))

    lanes = jnp.array([2.0, 5.0])
    with loggers.CheckLogger(lambda logs: np.isfinite(logs["y"])) as logger:
        logger.tap(jax.vmap(f))(lanes)
    entries = []
    spoolax.tap(jax.vmap(f), entries.append)(lanes)
    spoolax.flush()
    with testing.capture() as logger:
        logger.log(entries[-1], 4)  # On this thread.
    assert logger.records[0].valid["y"].tolist() == [False, True]


def test_large_arrays_of_numpy_are_counted():
    view = _view.View(None)
    assert view.copies({"x": np.zeros(1000), "y": 1.0}).nbytes == 8008


def test_curves_are_drawn_of_any_numbers():
    for values in (
        [1.0, 100.0, -math.inf],
        [1e308, -1e308],
        [0.0, 5e-324],
        [math.nan],
        [],
        [1.0, 1.0],
    ):
        assert len(_console.sparkline(values)) == len(values)
    assert _console.sparkline([0, 1, 2, 7]) == "▁▂▃█"
    history = _history.History(4)
    for step in range(10):
        history.add(1, step)
    assert history.curve()[1][-1] == 9


def test_steps_are_named_or_iterations_or_counted():
    def f(x):
        spoolax.log({"before": x})

        def body(x, i):
            spoolax.log({"anonymous": x})
            spoolax.log({"named": x}, epoch=10 * i, step=100 * i)
            spoolax.log({"first": x}, epoch=10 * i, other=i)

            def inner(x, j):
                spoolax.log({"inner": x})
                return x, None

            return lax.scan(inner, x, None, length=2)[0], None

        return lax.scan(body, x, jnp.arange(2))[0]

    with testing.capture() as logger:
        tapped = logger.tap(f)
        tapped(1.0)
        tapped(1.0)

    def steps(key):
        return [record.step for record in logger.records if key in record.values]

    assert steps("before") == [0, 1]
    assert steps("anonymous") == [0, 1, 0, 1]
    assert steps("named") == [0, 100, 0, 100]
    assert steps("first") == [0, 10, 0, 10]
    assert steps("inner") == list(range(8))


def test_states_are_any_pytree_of_numbers():
    class Inner(NamedTuple):
        b: object
        a: object

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        x: object
        rest: object

    state = State(jnp.ones(2), {"z": Inner(1, np.float32(2)), "a": [True, None, "text"]})
    with testing.capture() as logger:
        logger.log(state, 0)
        logger.log(jnp.float32(3), 1)
    values = {name: np.asarray(x).tolist() for name, x in logger.records[0].values.items()}
    assert values == {
        "x": [1, 1],
        "rest/z/b": 1,
        "rest/z/a": 2,
        "rest/a/0": True,
        "rest/a/2": "text",
    }
    assert list(logger.records[1].values) == ["value"]


def test_views_are_compiled_if_that_changes_nothing():
    calls = []

    def view(state):
        calls.append(1)
        return {"z": state["x"].sum(), "a": {"first": state["x"][0]}}

    with testing.capture(view=view) as logger:
        for i in range(5):
            logger.log({"x": jnp.arange(3.0) + i}, i)
    assert len(calls) == 1
    assert list(logger.records[0].values) == ["z", "a/first"], "in the order of the view"
    assert logger.values("z") == [3.0 + 3 * i for i in range(5)]
    for view in (
        lambda state: {"x": float(state["x"])},  # It reads numbers,
        lambda state: {"x": state["x"], "i": len(calls)},  # returns others than arrays,
        lambda state: {"x": np.asarray(state["x"])},
    ):
        with testing.capture(view=view) as logger:
            for i in range(3):
                calls.append(1)
                logger.log({"x": jnp.float32(i)}, i)
        assert logger.values("x") == [0, 1, 2]
        if "i" in logger.records[0].values:
            first, *_, last = logger.values("i")
            assert last == first + 2
    with testing.capture(view=lambda state: state) as logger:
        logger.log({"x": 0.1}, 0)  # and this one would lose digits.
    assert logger.values("x") == [0.1]


def test_a_state_of_something_else_is_refused_with_the_way_out():
    with testing.capture() as logger:
        with pytest.raises(TypeError, match="give the logger a `view`"):
            logger.log(object(), 0)
        with pytest.raises(TypeError, match="'a/b'"):
            logger.log({"a": {"b": object()}}, 0)


def test_a_state_that_was_donated_is_refused_with_the_way_out():
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    with testing.capture() as logger, pytest.raises(ValueError, match="'x' has been donated"):
        logger.log({"x": x}, 0)


def test_log_is_not_for_traced_functions():
    def f(x):
        logger.log({"x": x}, 0)
        return x

    with testing.capture() as logger, pytest.raises(TypeError, match=r"use `spoolax\.log`"):
        jax.jit(f)(1.0)


def test_arrays_on_several_devices_and_numpy_arrays_are_copied():
    there = jax.device_put(jnp.arange(3), jax.devices()[1])
    mine = np.zeros(3)
    with testing.capture() as logger:
        logger.log({"here": jnp.arange(2), "there": there, "mine": mine}, 0)
        mine += 1
    assert logger.values("mine") == [[0, 0, 0]]
    assert logger.values("there") == [[0, 1, 2]]


# Runs.


def seeded(key, n):
    def body(carry):
        i, x = carry
        spoolax.log({"x": x, "n": n}, step=i)
        return i + 1, x + jax.random.uniform(jax.random.fold_in(key, i))

    return lax.while_loop(lambda carry: carry[0] < n, body, (0, jnp.float32(0)))[1]


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("compiled", [True, False])
def test_each_lane_has_a_run_of_its_own(way, compiled):
    def run(key, n):
        return getattr(logger, way)(seeded, logger.init(key))(key, n)

    keys, lengths = jax.random.split(jax.random.key(0), 3), jnp.array([4, 0, 2])
    batched = jax.vmap(run)
    with testing.capture() as logger:
        out = (jax.jit(batched) if compiled else batched)(keys, lengths)
    assert out.tobytes() == jax.jit(jax.vmap(seeded))(keys, lengths).tobytes()
    for number, one in logger.runs.items():
        with testing.capture() as alone:
            alone.tap(seeded)(keys[number], lengths[number])
        assert one.values("x") == alone.values("x")
        assert [record.step for record in one.records] == list(range(lengths[number]))
        assert "spoolax.run" not in "".join(name for r in one.records for name in r.steps)


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"reduce": "mean"}])
def test_vmaps_further_in_stay_axes_of_the_values(seeds, lanes, options):
    def f(x):
        def one(x):
            def body(x, i):
                spoolax.log({"x": x}, step=i)
                return x + 1, None

            return lax.scan(body, x, jnp.arange(3))[0]

        return jax.vmap(one)(x)

    def run(key, x):
        return logger.tap(f, logger.init(key), **options)(x)

    x = jnp.arange(1.0 * seeds * lanes).reshape(seeds, lanes)
    with testing.capture() as logger:
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds), x)
    assert len(logger.runs) == seeds
    for number, one in logger.runs.items():
        with testing.capture() as alone:
            alone.tap(f, **options)(x[number])
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


def test_a_stop_that_comes_too_late_still_counts_as_a_failure(tmp_path):
    """The program is over before anybody has looked."""
    ring = loggers.RingBufferLogger(3, tmp_path / "last.jsonl")
    check = loggers.CheckLogger(lambda logs: logs["i"] < 3, keys="i")
    composite = loggers.CompositeLogger(ring, check)
    with pytest.raises(spoolax.StopRun, match="At step 3"), composite as logger:
        logger.spool(five)()
    assert (tmp_path / "last.jsonl").exists()


def test_steps_are_numbers():
    with testing.capture() as logger:
        for step in (np.int64(3), jnp.int32(4), 2.5, 3.0, -1):
            logger.log({"x": 1}, step)
        for step in ("a", None, True, [1]):
            with pytest.raises(TypeError, match="step is a number"):
                logger.log({"x": 1}, step)
    assert [record.step for record in logger.records] == [3, 4, 2.5, 3, -1]
    assert [type(record.step) for record in logger.records] == [int, int, float, int, int]


# Lines of JSON.


def test_json_lines_hold_every_kind_of_number(tmp_path):
    values = {
        "nan": float("nan"),
        "inf": jnp.array([1.0, jnp.inf, -jnp.inf]),
        "half": jnp.bfloat16(1.5),
        "empty": jnp.zeros((0, 2)),
        "flag": jnp.array(True),
        "complex": 1 + 2j,
        "text": "hello\nworld",
        "deep": {"er": np.int64(2**53 + 1)},
    }
    path = tmp_path / "new/directory/log.jsonl"
    with loggers.JsonlLogger(path) as logger:
        logger.log(values, 3)
    (text,) = path.read_text().splitlines()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["inf"] == [1.0, "Infinity", "-Infinity"]
    (line,) = loggers.read_jsonl(path)
    assert math.isnan(line["nan"])
    assert line["inf"] == [1.0, math.inf, -math.inf]
    assert (line["half"], line["empty"], line["flag"]) == (1.5, [], True)
    assert (line["complex"], line["text"], line["deep/er"]) == ([1, 2], "hello\nworld", 2**53 + 1)
    assert line["_step"] == 3


def test_json_lines_say_which_lanes_logged(tmp_path):
    def f(n):
        def body(i):
            spoolax.log({"i": i}, at=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    with loggers.JsonlLogger(tmp_path / "log.jsonl") as logger:
        logger.tap(jax.vmap(f))(jnp.array([1, 2]))
    assert [line["i"] for line in loggers.read_jsonl(logger.path)] == [[0, 0], [None, 1]]


def test_json_lines_go_on_after_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"_step": 0, "x": 1}\n{"_step": 1, "x"')
    with loggers.JsonlLogger(path) as logger:
        logger.log({"x": 2}, 2)
    assert [line["_step"] for line in loggers.read_jsonl(path)] == [0, 2]


def test_json_lines_are_there_after_a_kill(tmp_path):
    code = f"""
        import os, signal, spoolax
        from spoolax.loggers import JsonlLogger
        with JsonlLogger({str(tmp_path / "log.jsonl")!r}) as logger:
            for i in range(1000):
                logger.log({{"x": i}}, i)
            spoolax.flush()
            logger.log({{"x": -1}}, 1000)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    lines = list(loggers.read_jsonl(tmp_path / "log.jsonl"))
    assert [line["x"] for line in lines[:1000]] == list(range(1000))


def test_files_that_cannot_be_written_are_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "old.jsonl").write_text("kept")
    for logger in (
        loggers.JsonlLogger(tmp_path),
        loggers.JsonlLogger(tmp_path / "file/log.jsonl"),
        loggers.JsonlLogger(tmp_path / "old.jsonl", "x"),
        loggers.RingBufferLogger(3, tmp_path),
        loggers.PlotLogger(tmp_path / "file/plot.png"),
    ):
        with pytest.raises(OSError, match="|".join(["directory", "exists"])):
            logger.__enter__()
    assert (tmp_path / "old.jsonl").read_text() == "kept"
    with pytest.raises(TypeError, match=r"must end with one of .*\.png"):
        loggers.PlotLogger(tmp_path / "plot.what").__enter__()
    with pytest.raises(ValueError, match="mode"):
        loggers.JsonlLogger("x", mode="r")


# The others.


def test_the_last_entries_are_in_a_file_after_a_crash(tmp_path):
    path = tmp_path / "last.jsonl"

    def run(fails):
        with loggers.RingBufferLogger(3, path) as logger:
            for i in range(10):
                logger.log({"x": jnp.float32(i)}, i)
            if fails:
                raise RuntimeError("crash")

    run(fails=False)
    assert not path.exists()
    with pytest.raises(RuntimeError, match="crash") as caught:
        run(fails=True)
    assert [line["x"] for line in loggers.read_jsonl(path)] == [7, 8, 9]
    assert str(path) in caught.value.__notes__[0]


def test_a_violation_stops_a_program_with_a_message():
    def positive(logs):
        return logs["i"] < 3

    def forever(x):
        def body(i):
            spoolax.log({"i": i}, step=i)
            spoolax.log({"other": x})
            return i + 1

        return lax.while_loop(lambda i: i >= 0, body, 0)

    with (
        pytest.raises(spoolax.StopRun, match=r"At step 3, `positive` does not hold: i=3"),
        loggers.CheckLogger(positive, keys="i") as logger,
    ):
        logger.tap(forever)(1.0)
    with (
        pytest.raises(spoolax.StopRun, match=r"At step 4, i grew: value=4"),
        loggers.CheckLogger(lambda i: i < 3, every=4, message="i grew") as logger,
    ):
        for i in range(10):
            logger.log(i, i)


class Server:
    """A real HTTP server, which answers as it is told."""

    def __init__(self, statuses=()):
        self.received, statuses = [], list(statuses)
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = statuses.pop(0) if statuses else 200
                received.append((status, body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


def test_a_webhook_is_called_on_condition():
    with Server() as server:
        with loggers.WebhookLogger(server.url, lambda values: values["x"] > 2) as logger:
            for i, x in enumerate([0, 3, 4, 1, float("inf")]):
                logger.log({"x": jnp.float32(x)}, i)
        assert [body for _, body in server.received] == [
            {"event": "condition", "step": 1, "values": {"x": 3.0}},
            {"event": "condition", "step": 4, "values": {"x": "Infinity"}},
        ]


def test_a_webhook_is_called_at_the_end_and_on_failure():
    with Server() as server:
        with loggers.WebhookLogger(server.url, body=lambda event: {"text": event}) as logger:
            logger.log({"x": 1}, 7)
        with (
            pytest.raises(RuntimeError),
            loggers.WebhookLogger(server.url, "failure"),
        ):
            raise RuntimeError("crash")
        with loggers.WebhookLogger(server.url, "failure"):
            pass
    (_, first), (_, second) = server.received
    assert first == {"text": {"event": "end", "step": 7, "values": {"x": 1}}}
    assert second == {
        "event": "failure",
        "step": None,
        "values": {},
        "error": "RuntimeError: crash",
    }


def test_a_webhook_is_called_again_if_the_server_has_trouble():
    with Server([500, 503]) as server, loggers.WebhookLogger(server.url, "end"):
        pass
    assert [status for status, _ in server.received] == [500, 503, 200]


def test_a_webhook_that_is_refused_is_reported_at_the_end():
    with Server([404]) as server:
        with (
            pytest.raises(ConnectionError, match="after 1 attempts"),
            loggers.WebhookLogger(server.url, "end"),
        ):
            pass
        assert len(server.received) == 1
    with (
        pytest.raises(ConnectionError, match="after 2 attempts"),
        loggers.WebhookLogger(server.url, "end", retries=1, timeout=1),
    ):
        pass
    with (
        pytest.raises(ConnectionError, match="control characters"),
        loggers.WebhookLogger("http://local host/", retries=0),
    ):
        pass
    with pytest.raises(TypeError), loggers.WebhookLogger(server.url, body=lambda event: object()):
        pass
    with pytest.raises(ValueError, match="URL"):
        loggers.WebhookLogger("example")
    with pytest.raises(ValueError, match="timeout"):
        loggers.WebhookLogger(server.url, timeout=None)
    with pytest.raises(ValueError, match="when"):
        loggers.WebhookLogger(server.url, "sometimes")


def test_a_picture_is_drawn_anew_as_the_run_goes(tmp_path):
    path = tmp_path / "plot.png"
    with loggers.PlotLogger(path, ["a", "b"]) as logger:
        logger.log({"a": 1.0, "b": jnp.ones(3), "c": 2}, 0)
        spoolax.flush()
        first = path.read_bytes()
        logger.log({"a": 2.0, "b": jnp.ones(3), "c": 2}, 1)
    assert first[:4] == b"\x89PNG"
    assert path.read_bytes() != first
    assert os.listdir(tmp_path) == ["plot.png"], "no drafts are left"
    assert set(logger._curves) == {"a", "b"}


def test_the_profiler_runs_for_the_window_alone(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda path: told.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: told.append("stop"))

    def run(start, end, steps=range(6), **options):
        told.clear()
        with loggers.ProfileLogger(tmp_path, start, end, **options) as logger:
            for step in steps:
                told.append(step)  # The step runs,
                logger.log(jnp.float32(step), step)  # and then this is called.
        return told.copy()

    assert run(2, 3) == [0, 1, "start", 2, 3, "stop", 4, 5]
    assert run(0, 0) == ["start", 0, "stop", 1, 2, 3, 4, 5]
    assert run(4, 100) == [0, 1, 2, 3, "start", 4, 5, "stop"]
    assert run(10, 20) == [0, 1, 2, 3, 4, 5]
    assert run(10, 11, range(10, 14), first_step=10) == ["start", 10, 11, "stop", 12, 13]
    with pytest.raises(RuntimeError, match="crash"), loggers.ProfileLogger(tmp_path, 0, 5):
        raise RuntimeError("crash")
    assert told[-1] == "stop"
    with pytest.raises(ValueError, match="empty"):
        loggers.ProfileLogger(tmp_path, 3, 2)


def test_the_profiler_is_released_when_the_run_raises(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="crash"), loggers.ProfileLogger(tmp_path, 0, 5):
            jnp.ones(3).block_until_ready()
            raise RuntimeError("crash")
    assert list(pathlib.Path(tmp_path).rglob("*.xplane.pb"))


def test_the_logger_of_python_gets_levels_and_fields(caplog):
    caplog.set_level("INFO", "training")

    def level(values):
        return "error" if values["x"] > 1 else logging.INFO

    with loggers.PythonLogger("training", level, extra={"job": 7}) as logger:
        logger.log({"x": jnp.float32(1)}, 0)
        logger.log({"x": jnp.float32(2)}, 1)
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("INFO", "step 0  x=1")
    assert (second.levelname, second.step, second.job) == ("ERROR", 1, 7)
    assert float(second.data["x"]) == 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_the_postfix_of_the_state():
    for file in (Terminal(), io.StringIO()):
        with loggers.TqdmLogger(3, lambda state: {"x": state[0]}, file=file) as logger:
            for i in range(3):
                logger.log((jnp.float32(0.25), "big"), i)
        assert "3/3" in file.getvalue()
        assert "x=0.25" in file.getvalue()
    assert file.getvalue().count("\n") == 1, "one line in a batch job"
    assert "\r" not in file.getvalue()


def test_a_postfix_that_raises_does_not_stop_the_run():
    file = io.StringIO()
    with (
        pytest.raises(KeyError, match="nothing"),
        loggers.TqdmLogger(3, lambda state: state["nothing"], file=file) as logger,
    ):
        for i in range(3):
            logger.log({"x": 1}, i)
    assert "3/3" in file.getvalue()


def test_a_table_shows_how_values_are_doing():
    file = Terminal()
    with loggers.ConsoleLogger(file=file, title="run", total=50) as logger:
        for i in range(50):
            logger.log({"[loss]": 1 / (1 + i), "x": jnp.ones(4), "bad": float("nan")}, i)
    shown = file.getvalue()
    for text in ("run", "[loss]", "0.02", "mean of 4", "nan", "step 49 of 50", "steps/s", "█"):
        assert text in shown, text


def test_lines_in_a_batch_job_are_few_but_the_last_is_there():
    file = io.StringIO()
    with loggers.ConsoleLogger(file=file) as logger:
        for i in range(1000):
            logger.log({"x": i}, i)
    lines = file.getvalue().splitlines()
    assert lines[0] == "step 0  x=0"
    assert lines[-1] == "step 999  x=999"
    assert "\x1b" not in file.getvalue()


def test_bars_count_steps_whatever_is_logged_in_them():
    def run(logger):
        with logger:
            logger.tap(five)()  # Two entries in each step.
        return file.getvalue()

    for make in (loggers.TqdmLogger, lambda n, file: loggers.TqdmLogger(n, file=file).every(2)):
        file = io.StringIO()
        assert "5/5" in run(make(5, file=file))
    file = io.StringIO()
    spoolax.simulate(
        lambda key, x: x + 1,
        0,
        100,
        key=jax.random.key(0),
        inner=10,
        logger=loggers.TqdmLogger(100, file=file).every(30),
    )
    assert "100/100" in file.getvalue()


def test_what_every_wraps_can_be_asked():
    with loggers.RingBufferLogger(10).every(2) as logger:
        logger.tap(five)()
    assert [record.step for record in logger.records] == [0, 0, 2, 2, 4, 4]
    with pytest.raises(AttributeError):
        _ = logger.nothing
    assert repr(loggers.RingBufferLogger(3)) == "<RingBufferLogger(3), new>"


def test_a_plot_says_if_it_has_nothing_to_draw(tmp_path, caplog):
    with loggers.PlotLogger(tmp_path / "a.png", "lo*") as logger:
        logger.log({"loss": 1.0, "lost": 2.0, "x": 1}, 0)
    assert set(logger._curves) == {"loss", "lost"}
    with loggers.PlotLogger(tmp_path / "b.png", "loose") as logger:
        logger.log({"loss": 1.0}, 0)
    assert "no key matches 'loose'. There were 'loss'." in caplog.text


# Progress bars of programs.


def shown(f, *args, **options):
    file = io.StringIO()
    out = spoolax.progress(f, file=file, **options)(*args)
    spoolax.flush()
    return out, file.getvalue()


def test_a_scan_has_a_total_and_a_while_loop_a_counter():
    def f(x):
        x = lax.scan(lambda x, _: (jnp.sin(x), x), x, None, length=30)[0]
        return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, jnp.cos(c[1])), (0, x))[1]

    out, text = shown(f, 1.0)
    assert out.tobytes() == jax.jit(f)(1.0).tobytes()
    first, second = text.splitlines()
    assert first.startswith("f scan[0]: 100%")
    assert "30/30" in first
    assert second.startswith("f while[1]: 7it")


def test_a_fraction_gives_a_while_loop_a_bar():
    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    _, text = shown(f, 8, fraction=lambda carry: carry[0] / 10)
    assert "80%" in text
    lanes = jax.vmap(f)
    _, text = shown(lanes, jnp.array([2, 10]), fraction=lambda carry: carry[0].min() / 10)
    assert "20%" in text


def test_lanes_share_a_bar_and_maps_have_one():
    def f(x):
        return lax.map(jnp.sin, x).sum()

    x = jnp.ones((4, 6))
    file = io.StringIO()
    out = jax.jit(jax.vmap(spoolax.progress(f, file=file)))(x)
    spoolax.flush()
    assert out.tobytes() == jax.jit(jax.vmap(f))(x).tobytes()
    (line,) = file.getvalue().splitlines()
    assert "6/6" in line


def test_bars_nest_if_the_inner_loop_is_slow():
    from spoolax._watch import progress as _progress

    def f(x):
        def outer(x, _):
            return lax.scan(lambda x, _: (x + 1, None), x, None, length=4)[0], None

        return lax.scan(outer, x, None, length=3)[0]

    file, now = io.StringIO(), 0.0

    def clock():
        nonlocal now
        now += 0.4
        return now

    bars = _progress.Bars("f", file, clock)
    told = []

    def tell(logs):
        told.append(logs)
        bars(logs)

    tapped = spoolax.progress(f)
    tapped._sink.callback = tell
    tapped._sink.latency = 0  # Every iteration by itself.
    assert tapped(0) == 12
    spoolax.flush()
    text = file.getvalue()
    assert "f scan[0]: 100%" in text
    assert "3/3" in text
    assert "\n└ scan[0]/scan[0]:" in "\n" + text


def test_no_loop_no_bar():
    with pytest.warns(errors.NothingSelectedWarning, match="no loop"):
        shown(lambda x: x + 1, 1.0)
    with pytest.raises(ValueError, match="depth"):
        spoolax.progress(five, depth=0)


def test_bars_are_closed_when_the_program_fails():
    def fails(i):
        if i == 5:
            raise ValueError("the program fails")
        return i

    def f(x):
        def body(x, i):
            return x + jax.pure_callback(fails, i, i), None

        return lax.scan(body, x, jnp.arange(10))[0]

    file = io.StringIO()
    tapped = spoolax.progress(f, file=file)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program fails"):
        jax.block_until_ready(tapped(1))
    spoolax.flush()
    assert "5/10" in file.getvalue()


# Lines of optimizers.


class Number:
    """Something that is read when it is printed."""

    def __init__(self, value):
        self.value, self.read_by = value, None

    def __float__(self):
        self.read_by = threading.current_thread().name
        return self.value


def test_iterations_are_printed_by_another_thread_in_order(capsys):
    cost = Number(0.5)
    for i in range(3):
        spoolax.log_iteration_async(i, cost, jnp.float32(i), "note", verbose=2)
    spoolax.log_convergence_async("done", 3, cost.value, 0.1, jnp.float32(0))
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:17] for line in lines[:3]] == [f"Iteration      {i}:" for i in range(3)]
    assert lines[0].endswith("note")
    assert lines[3].startswith("Converged after 3 iterations")
    assert cost.read_by == "spoolax"


@pytest.mark.parametrize(("verbose", "printed"), [(0, []), (1, [0, 10, 20]), (2, list(range(25)))])
def test_verbose_says_which_iterations(verbose, printed, capsys):
    def solve(x):
        def body(carry):
            i, x = carry
            spoolax.log_iteration_async(i, x, x, verbose=verbose)
            return i + 1, x * 0.5

        i, x = lax.while_loop(lambda carry: carry[0] < 25, body, (0, x))
        spoolax.log_convergence_async("it ended", i, x, 0.1, x, verbose=verbose)
        return x

    def found():
        spoolax.flush()
        lines = capsys.readouterr().out.splitlines()
        assert bool(verbose) == any("Converged after 25" in line for line in lines)
        return [int(line.split()[1][:-1]) for line in lines if line.startswith("Iteration")]

    plain = jax.jit(lambda x: lax.fori_loop(0, 25, lambda i, x: x * 0.5, x))
    for _ in range(2):  # The second time from the cache.
        assert jax.jit(solve)(1.0) == plain(1.0)
        assert found() == printed
    with jax.disable_jit():
        solve(jnp.float32(1))
    assert found() == printed
    for i in range(25):
        spoolax.log_iteration_async(jnp.int32(i), 1.0, 1.0, verbose=verbose)
    spoolax.log_convergence_async("it ended", 25, 1.0, 0.1, 0.0, verbose=verbose)
    assert found() == printed


def test_iterations_of_lanes_are_printed_while_they_last(capsys):
    def solve(n):
        def body(i):
            spoolax.log_iteration_async(i, n * 1.0, 0.0, verbose=2)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    with jax.numpy_dtype_promotion("standard"):
        jax.jit(jax.vmap(solve))(jnp.array([1, 3]))
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [float(line.split()[4].strip(",")) for line in lines] == [1, 3, 3, 3]


def test_iterations_are_printed_as_they_were(capsys):
    cost, donate = np.ones(()), jax.jit(lambda x: x * 0.5, donate_argnums=0)
    for i in range(3):
        spoolax.log_iteration_async(i, cost, 1.0, verbose=2)
        cost *= 0.5
    gone = jnp.ones(())
    donate(gone)
    spoolax.log_iteration_async(3, gone, 1.0, verbose=2)
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert ["1.000000e+00" in lines[0], "5.000000e-01" in lines[1], "2.5" in lines[2]] == [True] * 3
    assert "cost = (donated)" in lines[3]


def test_a_spool_around_does_not_see_them():
    def f(x):
        spoolax.log_iteration_async(x, x, x, verbose=2)
        spoolax.log({"x": x})
        return x

    _, logs = spoolax.spool(f)(1.0)
    assert list(logs) == ["x"]
    with pytest.raises(ValueError, match="verbose"):
        spoolax.log_iteration_async(0, 0, 0, verbose=3)


def test_arrays_and_tracers_are_arrays():
    found = []
    jax.jit(lambda x: found.append(spoolax.is_jax_array(x)))(1.0)
    assert found == [True]
    assert not spoolax.is_jax_array([jnp.ones(1)])
