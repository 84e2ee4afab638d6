"""`with listening(...)`: what is logged in a block reaches its callback, whoever compiles it."""

import asyncio
import functools
import io
import signal
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import (
    assert_equal_to_the_bit,
    expected_of,
    f_of,
    medley,
    medleys,
    plain,
    plain_gradient,
    program_of,
    programs,
    total,
)
from jax import lax
from lanes import assert_same_entries, joined
from programs import PROGRAMS, XS

import spoolax
from spoolax.errors import LogTypeError, MixedKeyError, UnheardLogWarning
from spoolax.fit import curve_fit
from spoolax.loggers import JsonlLogger, RingBufferLogger


def steps_as_logged(seen, expected):
    """Forget the steps of entries that were logged without one."""
    stepped = {key for _, key, _, steps in expected if steps}
    for logs in seen:
        if not stepped.intersection(logs):
            assert list(logs.steps) == ["step"]
            logs.steps.clear()
    return joined(seen)


def heard(call, *args, **options):
    """What a call returns, and what is heard of it."""
    seen = []
    with spoolax.listening(seen.append, **options):
        y = call(*args)
    return y, seen


@programs()
def test_entries_and_outputs_are_those_of_tap(name):
    """Jitted and not, in the first call and in the next."""
    f = jax.jit(f_of(name))
    for _ in range(2):
        y, seen = heard(f, XS)
        assert_equal_to_the_bit(y, plain(name))
        entries = steps_as_logged(seen, expected_of(name))
        assert_same_entries(entries, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs(reverse=True)
def test_the_forward_pass_of_a_derivative_is_heard_once(name):
    y, seen = heard(jax.jit(jax.grad(total(f_of(name)))), XS)
    assert_equal_to_the_bit(y, plain_gradient(name))
    entries = steps_as_logged(seen, expected_of(name))
    assert_same_entries(entries, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@medleys()
def test_what_is_not_jitted_is_heard_as_well(names):
    """Each operation is a program of its own then."""
    f = medley(names)
    y, seen = heard(f, XS)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), y, jax.jit(f)(XS))
    for name in names:
        mine = [logs for logs in seen if program_of(next(iter(logs))) is PROGRAMS[name]]
        expected = [
            (lane, f"{name}: {key}", value, steps) for lane, key, value, steps in expected_of(name)
        ]
        entries = steps_as_logged(mine, expected)
        assert_same_entries(entries, expected, PROGRAMS[name].lanes, rtol=1e-5)


def train_step(x, traces=None):
    if traces is not None:
        traces.append(x)
    spoolax.log({"x": x})
    y = 2 * x
    spoolax.log({"y": y}, tags="late")
    return y


def test_a_block_compiles_once_whatever_its_callback():
    """And outside of it, everything is as if it had never been."""
    traces = []
    step = jax.jit(functools.partial(train_step, traces=traces))
    before = step.lower(1.0).as_text()
    step(1.0)
    assert len(traces) == 1
    for _ in range(3):
        _, seen = heard(step, 1.0)
        assert [list(logs) for logs in seen] == [["x"], ["y"]]
        assert len(traces) == 2
    with RingBufferLogger(9) as logger, logger.listening():
        step(1.0)
    assert len(logger.records) == 2
    assert len(traces) == 2
    step(1.0)
    assert len(traces) == 2
    assert step.lower(1.0).as_text() == before
    _, seen = heard(step, 1.0, tags="late")  # Other options are another program.
    assert [list(logs) for logs in seen] == [["y"]]
    assert len(traces) == 3


def test_steps_count_the_calls():
    step = jax.jit(train_step)
    seen, x = [], 1.0
    with spoolax.listening(seen.append):
        for i in range(50):
            x = step(x) / 2
            spoolax.log({"python": i, "same": x})
            spoolax.log({"named": i}, epoch=i)
    assert [list(logs) for logs in seen] == [["x"], ["y"], ["python", "same"], ["named"]] * 50
    for logs in seen[:3]:
        assert list(logs.steps) == ["step"]
    for number, logs in enumerate(seen):
        ((name, steps),) = logs.steps.items()
        assert set(map(int, steps.values())) == {number // 4}
        assert name == ("epoch" if "named" in logs else "step")
    assert [int(logs["python"]) for logs in seen if "python" in logs] == list(range(50))


def test_steps_go_on_with_the_iterations_of_loops():
    @jax.jit
    def run(x):
        return lax.scan(lambda x, _: (x + 1, spoolax.log({"x": x}) and None), x, length=4)[0]

    seen = []
    with spoolax.listening(seen.append):
        run(run(0))
    assert [int(logs["x"]) for logs in seen] == list(range(8))
    assert [int(logs.step["x"]) for logs in seen] == list(range(8))


@pytest.mark.parametrize("interval", [None, 10, 50])
def test_steps_count_iterations_that_are_not_heard(interval):
    """Those between, and those that log nothing."""

    @jax.jit
    def epoch(x):
        def body(x, i):
            spoolax.log({"x": x})
            lax.cond(i % 2 == 1, lambda: spoolax.log({"odd": x}) and None, lambda: None)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(100))[0]

    with spoolax.listening(collect=True, interval=interval) as logs:
        x = 0
        for _ in range(3):
            x = epoch(x)
    assert len(logs["x"]) == 300 // (interval or 1)
    np.testing.assert_array_equal(logs.step["x"], logs["x"])
    if interval is None:
        np.testing.assert_array_equal(logs.step["odd"], logs["odd"])


def test_blocks_in_blocks_all_get_it():
    """Unless one of them keeps it for itself."""
    step = jax.jit(train_step)
    for keep_logs, outer_gets in ((True, ["x", "y", "eager"]), (False, ["x"])):
        inner, outer = [], []
        with (
            spoolax.listening(outer.append),
            spoolax.listening(inner.append, ["y", "eager"], keep_logs=keep_logs),
        ):
            step(1.0)
            spoolax.log({"eager": 1})
        assert [next(iter(logs)) for logs in inner] == ["y", "eager"]
        assert [next(iter(logs)) for logs in outer] == outer_gets
    one, two = [], []
    with spoolax.listening(one.append), spoolax.listening(two.append):  # The same options.
        step(1.0)
    assert len(one) == len(two) == 2


def test_spool_and_tap_inside_take_what_they_take():
    def f(x):
        spoolax.log({"mine": x, "other": 2 * x})
        return x

    for inside, got in (
        (lambda seen: spoolax.spool(f, "mine"), ["other"]),
        (lambda seen: spoolax.spool(f, keep_logs=True), ["mine", "other"]),
        (lambda seen: spoolax.tap(f, seen.append, "mine"), ["other"]),
        (lambda seen: spoolax.tap(f, seen.append, "mine", keep_logs=True), ["mine", "other"]),
        (lambda seen: jax.jit(spoolax.tap(f, seen.append, "mine")), ["other"]),
        (lambda seen: spoolax.tap(f, seen.append), []),
    ):
        tapped = []
        call = inside(tapped)
        for _ in range(2):
            _, seen = heard(call, 1.0)
            assert [key for logs in seen for key in logs] == got


def test_programs_that_watch_themselves_are_not_heard():
    """Only what is logged is, not what `watch` and `progress` see."""

    def f(x):
        return lax.scan(lambda x, _: (x + 1, spoolax.log({"x": x}) and None), x, length=3)[0]

    watched = []
    _, seen = heard(spoolax.watch(f, carry=True, callback=watched.append), 0)
    assert len(watched) == 3
    assert [list(logs) for logs in seen] == [["x"]] * 3


@pytest.mark.parametrize("name", ["nested_scans", "while_loop_in_scan", "training_loop"])
def test_watching_sees_what_watch_sees(name):
    f = jax.jit(f_of(name))
    seen, wanted = [], []
    spoolax.watch(f, wanted.append, carry=True, where="scan[0]/**")(XS)
    spoolax.flush()
    with spoolax.watching(seen.append, carry=True, where="scan[0]/**"):
        y = f(XS)
    assert_equal_to_the_bit(y, plain(name))
    assert len(seen) == len(wanted) > 0
    for one, other in zip(seen, wanted, strict=True):
        assert list(one) == list(other)
        assert one.origin.iteration == other.origin.iteration
        jax.tree.map(np.testing.assert_array_equal, dict(one), dict(other))


def sqrts(x):
    return lax.fori_loop(0, 9, lambda i, x: jnp.sqrt(x) - 0.6, x)


def test_watching_nan_reports_and_stops():
    f, found = jax.jit(sqrts), []
    with spoolax.watching_nan(found.append):
        assert np.isfinite(jax.jit(jnp.sin)(1.0))
        jnp.sin(1.0)
    assert not found
    with spoolax.watching_nan(found.append):
        assert np.isnan(f(9.0))
    assert len(found) == 1
    assert found[0].origin.iteration == (5,)
    assert "sqrt" in str(found[0])
    with pytest.raises(spoolax.StopRun, match="sqrt"), spoolax.watching_nan(print, stop=True):
        f(9.0)
    assert np.isnan(f(9.0))
    assert len(found) == 1


def test_progress_shows_bars_for_what_runs_in_a_block(monkeypatch):
    """Those that take long enough to be seen."""
    shown, hidden = io.StringIO(), io.StringIO()
    f = jax.jit(sqrts)
    with spoolax.progress(file=hidden):
        f(9.0)
    monkeypatch.setattr("spoolax._watch.progress.SLOW", 0.0)
    shown.isatty = lambda: True
    with spoolax.progress(file=shown, description="fit"):
        f(9.0)
        spoolax.log({"not": 1})
    assert not hidden.getvalue()
    assert "fit scan[0]: 100%" in shown.getvalue()


def test_blocks_of_all_kinds_go_together():
    def f(x):
        def body(x, _):
            spoolax.log({"x": x})
            return x + 1, None

        return lax.scan(body, x, length=3)[0]

    step, heard, watched, found = jax.jit(f), [], [], []
    for _ in range(2):
        with (
            spoolax.listening(heard.append),
            spoolax.watching(watched.append, carry=True),
            spoolax.watching_nan(found.append),
        ):
            assert step(0.0) == 3.0
    assert [float(logs["x"]) for logs in heard] == [0, 1, 2] * 2
    assert [float(logs["scan[0]/carry[0]"]) for logs in watched] == [1, 2, 3] * 2
    assert not found


def test_fits_and_simulations_are_heard():
    """Which compile their programs themselves, and keep them."""
    x = np.linspace(0, 4, 50)

    def fit():
        fitted, _ = curve_fit(lambda x, a, b: a * jnp.exp(-b * x), x, 2.5 * np.exp(-1.3 * x))
        return fitted.tolist()

    def simulate():
        def step(key, x):
            del key
            spoolax.log({"x": x})
            return x + 1

        return float(spoolax.simulate(step, jnp.float32(0), 4, key=jax.random.key(0), inner=2))

    for run, key, count in ((fit, "cost", None), (simulate, "x", 4)):
        before = run()
        for _ in range(2):
            y, seen = heard(run)
            assert y == before == run()
            assert len(seen) == count or (count is None and len(seen) > 3)
            assert all(key in logs for logs in seen)


def test_collected_logs_are_there_when_the_block_ends():
    step = jax.jit(train_step)
    seen = []
    with spoolax.listening(seen.append, collect=True, prefix="a/") as logs:
        for i in range(3):
            step(float(i))
        assert not logs
    assert logs["a/x"].tolist() == [0, 1, 2]
    assert logs.step["a/x"].tolist() == [0, 1, 2]
    assert len(seen) == 6
    with spoolax.listening(collect=True) as logs:
        pass
    assert logs == {}


def test_a_logger_is_opened_unless_it_is_open(tmp_path):
    step = jax.jit(train_step)
    with spoolax.listening(JsonlLogger(tmp_path / "a.jsonl")):
        step(1.0)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) >= 2
    with RingBufferLogger(10) as logger:
        with spoolax.listening(logger):
            step(1.0)
        assert logger.is_open
        assert len(logger.records) == 2


def test_runs_of_seeds_are_opened_in_a_block():
    """They get what their functions log, and the block what is logged beside them."""

    def train(key):
        def body(x, i):
            x = x + jax.random.uniform(jax.random.fold_in(key, i))
            spoolax.log({"x": x}, step=i)
            return x, None

        return lax.scan(body, 0.0, jnp.arange(3))[0]

    with RingBufferLogger(100) as logger, logger.listening(), RingBufferLogger(100) as runs:

        @jax.jit
        @jax.vmap
        def run(key):
            return runs.tap(train, runs.init(key))(key)

        ends = run(jax.random.split(jax.random.key(0), 4))
        spoolax.log({"best": ends.max()})
    for end, one in zip(ends, runs.runs.values(), strict=True):
        assert [record.step for record in one.records] == [0, 1, 2]
        assert one.records[-1].values["x"] == end
    ((best,),) = (list(record.values.values()) for record in logger.records)
    assert best == ends.max()


def test_entries_are_printed_without_a_callback(capsys):
    with spoolax.listening():
        jax.jit(train_step)(1.0)
    assert capsys.readouterr().out.splitlines() == ["step=0  x=1", "step=0  y=2"]


def test_threads_do_not_mix():
    """Each with a block of its own, and one without."""
    step = jax.jit(train_step)
    barrier = threading.Barrier(3)
    heard_by = [[], []]

    def run(number):
        barrier.wait()
        if number == 2:
            for _ in range(100):
                step(7.0).block_until_ready()
            return
        with spoolax.listening(heard_by[number].append):
            for _ in range(100):
                step(float(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, seen in enumerate(heard_by):
        assert [float(logs["x"]) for logs in seen if "x" in logs] == [number] * 100
        assert len(seen) == 200


def test_all_threads_are_heard_if_that_is_asked_for():
    """Those with blocks of their own by both, and not the one that delivers."""
    step, seen, own = jax.jit(train_step), [], []

    def callback(logs):
        seen.append(logs)
        step(float(100 + len(seen)))  # On spoolax's own thread.

    def run(number):
        if number:
            step(float(number)).block_until_ready()
            return
        with spoolax.listening(own.append):
            step(0.0)

    with spoolax.listening(callback, "x", all_threads=True):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        step(3.0)
    assert sorted(float(logs["x"]) for logs in seen) == [0, 1, 2, 3]
    assert len(own) == 2
    step(4.0)
    spoolax.flush()
    assert len(seen) == 4


def test_tasks_that_take_turns_lose_nothing():
    """They share their thread, and so do their blocks. Other threads have their own."""
    step = jax.jit(train_step)
    one, two, thread = [], [], []

    async def work(seen, start, count):
        with spoolax.listening(seen.append, "x"):
            for i in range(count):
                step(float(start + i))
                await asyncio.sleep(0.001)

    def in_thread():
        with spoolax.listening(thread.append, "x"):
            step(1000.0)

    async def main():
        await asyncio.gather(work(one, 0, 3), work(two, 100, 6), asyncio.to_thread(in_thread))

    before = str(jax.make_jaxpr(step)(1.0))
    asyncio.run(main())
    for seen, wanted in ((one, {0, 1, 2}), (two, set(range(100, 106))), (thread, {1000})):
        got = [float(logs["x"]) for logs in seen]
        assert wanted <= set(got)
        assert len(got) == len(set(got))
    assert [float(logs["x"]) for logs in thread] == [1000]
    assert str(jax.make_jaxpr(step)(1.0)) == before


def test_a_stop_of_steps_on_several_devices_leaves_none_waiting():
    """Those that have been started after it end as well."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    x, seen = jax.device_put(jnp.arange(4.0), spread), []

    @jax.jit
    def step(x):
        spoolax.log({"sum": x.sum()})

        def body(x, _):
            spoolax.log({"in": x.sum()})
            return x + x.sum() * 0, None

        return lax.scan(body, x + 1, length=2)[0]

    def callback(logs):
        seen.append(logs)
        if "sum" in logs and logs.step["sum"] == 3:
            raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun, match="enough"), spoolax.listening(callback):
        for _ in range(1000):
            x = step(x)
    assert len(seen) == 10


def test_a_stop_before_collectives_leaves_no_device_waiting():
    """The program fails when all of them are through, not as soon as that is known."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    x, seen = jax.device_put(jnp.ones((200, 200)), spread), []

    @jax.jit
    def step(x):
        def body(total, i):
            spoolax.log({"i": i})
            return total + x.sum(), None

        total, _ = lax.scan(body, 0.0, jnp.arange(1000))
        for _ in range(6):
            x = jnp.sin(x @ x.T @ x)
            x = x / x.sum()
        return x + total

    def callback(logs):
        seen.append(int(logs["i"]))
        if len(seen) == 4:
            raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun, match="enough"), spoolax.listening(callback):
        for _ in range(100):
            step(x)
    assert seen == [0, 1, 2, 3]


def test_ctrl_c_in_a_loop_of_short_steps():
    """It does not end up as an error of the program that it comes into."""
    step, seen = jax.jit(train_step), []
    for _ in range(5):
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt), spoolax.listening(seen.append):
            timer.start()
            while True:
                step(1.0)
        timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(seen) % 2 == 0


def test_what_was_logged_before_a_failing_host_call_is_delivered():
    """Also if the call depends on nothing."""

    def fail(_):
        raise RuntimeError("too large")

    @jax.jit
    def step(x):
        spoolax.log({"x": x})
        call = functools.partial(jax.pure_callback, fail, jax.ShapeDtypeStruct((), jnp.float32))
        return lax.cond(x > 2, lambda: call(np.int32(0)), lambda: x)

    seen = []
    with pytest.raises(Exception, match="too large"), spoolax.listening(seen.append):
        for i in range(5):
            step(float(i)).block_until_ready()
    assert [float(logs["x"]) for logs in seen] == [0, 1, 2, 3]


def test_collected_keys_that_do_not_fit_together_do_not_spoil_the_others():
    @jax.jit
    def step(x):
        spoolax.log({"all": x})
        spoolax.log({"sum": x.sum()})

    for error in (None, KeyError("mine")):
        with (
            pytest.raises(KeyError if error else MixedKeyError, match="mine" if error else "all"),
            spoolax.listening(collect=True) as logs,
        ):
            for size in (8, 8, 5):
                step(jnp.ones(size))
            if error:
                raise error
        assert logs["sum"].tolist() == [8, 8, 5]
        assert "all" not in logs


def test_a_callback_may_open_a_block():
    inner, outer = [], []

    def callback(logs):
        outer.append(logs)
        with spoolax.listening(inner.append):
            spoolax.log({"inside": 1})

    with spoolax.listening(callback):
        spoolax.log({"outside": 1})
    assert [list(logs) for logs in (*outer, *inner)] == [["outside"], ["inside"]]


def test_programs_on_other_devices_are_waited_for():
    """Those that are busy when the block ends, on any device."""

    @jax.jit
    def slow(x):
        y = lax.fori_loop(0, 300, lambda _, y: jnp.tanh(y @ y), x)
        spoolax.log({"sum": y.sum()})
        return y

    seen = []
    with spoolax.listening(seen.append):
        for device in jax.local_devices()[:2] * 2:
            slow(jax.device_put(jnp.eye(100), device))
    assert len(seen) == 4


def test_donated_arguments_are_heard_before_they_are_gone():
    @functools.partial(jax.jit, donate_argnums=0)
    def step(x):
        spoolax.log({"first": x[0], "all": x})
        return x + 1

    seen, x = [], jnp.zeros(100)
    with spoolax.listening(seen.append):
        for _ in range(20):
            spoolax.log({"before": x})
            x = step(x)
    assert [float(logs["first"]) for logs in seen if "first" in logs] == list(range(20))
    for name in ("all", "before"):
        rows = [logs[name] for logs in seen if name in logs]
        np.testing.assert_array_equal(np.stack(rows), np.arange(20.0)[:, None] + np.zeros(100))


def test_a_slow_callback_makes_python_wait(monkeypatch):
    """What is logged does not pile up without limit."""
    monkeypatch.setattr("spoolax._tap.backlog.MOST_BYTES", 1 << 20)
    monkeypatch.setattr("spoolax._tap.backlog.MANY_BYTES", 1 << 19)
    seen, most = [], 0
    x = np.ones(1 << 13)

    def slow(logs):
        time.sleep(0.002)
        seen.append(logs)

    with spoolax.listening(slow):
        for i in range(100):
            spoolax.log({"x": x, "i": i})
            most = max(most, i - len(seen))
    assert [int(logs["i"]) for logs in seen] == list(range(100))
    assert most < 40


def test_a_failing_callback_is_raised_at_the_end():
    step = jax.jit(train_step)
    calls = []

    def fails(logs):
        calls.append(logs)
        raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError, match="out of paper"), spoolax.listening(fails):
        for _ in range(3):
            step(1.0)
    assert len(calls) == 6
    spoolax.flush()  # It has been raised.


@pytest.mark.parametrize("kind", ["steps", "loop", "python"])
def test_a_callback_stops_what_runs(kind):
    def callback(logs):
        if logs["i"] == 5:
            raise spoolax.StopRun("enough")

    @jax.jit
    def one(i):
        spoolax.log({"i": i})
        return i + 1

    @jax.jit
    def forever(i):
        return lax.while_loop(lambda i: i >= 0, lambda i: one(i), i)

    i = 0
    with pytest.raises(spoolax.StopRun, match="enough"), spoolax.listening(callback, latency=0.01):
        if kind == "loop":
            jax.block_until_ready(forever(i))
        while True:
            if kind == "python":
                spoolax.log({"i": i})
                i += 1
            else:
                i = one(int(i))
    assert int(i) < 1_000_000


def test_an_error_in_the_block_comes_out_as_it_is():
    seen = []
    with pytest.raises(KeyError, match="mine"), spoolax.listening(seen.append):
        jax.jit(train_step)(1.0)
        raise KeyError("mine")
    assert len(seen) == 2
    assert spoolax.spool(train_step)(1.0)[1] == {"x": 1.0, "y": 2.0}


def test_what_is_logged_outside_is_not_heard():
    step = jax.jit(train_step)
    seen = []
    listening = spoolax.listening(seen.append)
    with listening:
        step(1.0)
    step(1.0)
    compiled = None
    with listening:  # Again.
        compiled = step.lower(1.0).compile()
        compiled(1.0)
    assert len(seen) == 4
    compiled(1.0)
    spoolax.flush()
    assert len(seen) == 4


def test_a_block_that_hears_nothing_of_a_compiled_function_says_so():
    @jax.jit
    def step(x):
        spoolax.log({"x": x})
        return x + 1

    compiled = step.lower(1.0).compile()
    said = r"(?s)Nothing was heard.*test_listening.py:\d+.*call the jitted function"
    with pytest.warns(UnheardLogWarning, match=said), spoolax.listening(collect=True) as logs:
        compiled(1.0)
    assert not logs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with spoolax.listening(collect=True) as logs:
            step(1.0)
        with spoolax.listening(collect=True, argnames="y"):
            pass  # It did not ask for everything.
        with pytest.raises(ZeroDivisionError), spoolax.listening():
            1 / 0  # noqa: B018
    assert len(logs["x"]) == 1


def test_bad_use():
    with pytest.raises(LogTypeError, match=r"listening\(argnames=...\)"):
        spoolax.listening("loss")

    @jax.jit
    def inside(x):
        with spoolax.listening():
            return x

    with pytest.raises(LogTypeError, match="being compiled"):
        inside(1.0)
    listening = spoolax.listening()
    with listening, pytest.raises(LogTypeError, match="open already"), listening:
        pass
    with RingBufferLogger(1) as logger, warnings.catch_warnings():
        warnings.simplefilter("error", UnheardLogWarning)
        with logger.listening():
            spoolax.log({"x": 1})
        with pytest.raises(UnheardLogWarning, match=r"with logger.listening\(\)"):
            spoolax.log({"x": 1})
