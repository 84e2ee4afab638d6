"""Delivery: errors in callbacks, stopping, flushing, back-pressure, threads, forks, the exit."""

import contextlib
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax._tap import backlog, runs
from spoolax._tap import host as _host

pytestmark = pytest.mark.usefixtures("unoptimized")


def count_up(x, length=1000):
    def body(x, _):
        spoolax.log({"x": x})
        return x + 1, None

    return jax.lax.scan(body, x, length=length)[0]


def forever(x):
    def body(x):
        spoolax.log({"x": x})
        return (x + 1) % 1_000_000

    return jax.lax.while_loop(lambda x: x >= 0, body, x)


def run(source, **env):
    """Run a program of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_failing_callback_is_reported_once_and_raised_by_flush(caplog):
    """The program returns the right result, and the callback is called for the other entries."""
    seen = []

    def fails(logs):
        seen.append(int(logs["x"]))
        if logs["x"] % 2:
            raise ValueError("no odd numbers")

    with caplog.at_level(logging.ERROR, "spoolax"):
        y = spoolax.tap(count_up, fails)(0)
        with pytest.raises(ValueError, match="no odd numbers") as caught:
            spoolax.flush()
    assert int(y) == 1000
    assert seen == list(range(1000))
    (record,) = caplog.records
    assert "fails" in record.getMessage()
    assert record.exc_info[1] is caught.value
    assert "500 times" in caught.value.__notes__[0]
    spoolax.flush()  # It is raised once.


def test_other_callbacks_go_on_when_one_fails():
    """And if several fail, all of it is raised."""
    seen = []

    def fails(logs):
        raise ValueError("no")

    def fails_too(logs):
        raise KeyError("no")

    for callback in (fails, seen.append, fails_too):
        spoolax.tap(count_up, callback)(0)
    with pytest.raises(ExceptionGroup) as caught:
        spoolax.flush()
    assert {type(error) for error in caught.value.exceptions} == {ValueError, KeyError}
    assert len(seen) == 1000


def test_stop_run_ends_a_loop_that_would_not():
    """The tapped function raises what the callback raised."""
    seen = []

    def enough(logs):
        seen.append(int(logs["x"]))
        if logs["x"] == 10:
            raise spoolax.StopRun("that will do")

    with pytest.raises(spoolax.StopRun, match="that will do"):
        jax.block_until_ready(spoolax.tap(forever, enough)(0))
    spoolax.flush()
    assert seen == list(range(11))
    # Inside another `jit`: unless JAX has returned by then.
    with pytest.raises((spoolax.StopRun, jax.errors.JaxRuntimeError), match="that will do"):
        jax.block_until_ready(jax.jit(spoolax.tap(forever, enough))(0))
    spoolax.flush()
    # The next program is not affected.
    assert int(spoolax.tap(count_up, seen.append)(0)) == 1000
    spoolax.flush()


def test_a_program_that_fails_delivers_what_it_logged_before():
    """Here, because a callback of its own raises."""

    def refuse(x):
        raise ValueError("not this one")

    def f(x):
        x = count_up(x)
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.int32), x)

    def in_loop(x):
        def body(x, i):
            spoolax.log({"x": x})
            jax.debug.callback(lambda i: i == 50 and refuse(i), i)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(1000))[0]

    def wait_for(y):
        jax.block_until_ready(y)
        jax.effects_barrier()

    for program, count in ((f, 1000), (in_loop, 50)):
        seen = []
        with pytest.raises(jax.errors.JaxRuntimeError, match="not this one"):
            wait_for(spoolax.tap(program, seen.append)(0))
        spoolax.flush()
        assert len(seen) >= count


def test_callbacks_may_call_jax():
    """On the worker, also while the program waits for it, and also tapped programs."""
    inner, outer = [], []

    @jax.jit
    def heavy(x):
        m = jnp.full((200, 200), x)
        return (m @ m).sum()

    def callback(logs):
        outer.append(float(heavy(jnp.float32(logs["x"]))))
        if len(outer) % 100 == 1:
            spoolax.tap(count_up, inner.append)(0)

    spoolax.tap(count_up, callback)(0.0)
    spoolax.flush()
    assert len(outer) == 1000
    assert len(inner) == 10_000


def test_flush_in_a_callback_is_refused():
    """It would wait for itself."""
    spoolax.tap(count_up, lambda logs: spoolax.flush())(0)
    with pytest.raises(TypeError, match="wait for itself"):
        spoolax.flush()


def test_flush_waits_for_programs_of_other_threads():
    """And each callback gets the entries of its own program only."""
    seen = {i: [] for i in range(4)}

    def work(i):
        for _ in range(5):
            spoolax.tap(count_up, seen[i].append)(1000 * i)

    threads = [threading.Thread(target=work, args=(i,)) for i in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spoolax.flush()
    for i, logs in seen.items():
        want = list(range(1000 * i, 1000 * i + 1000))
        assert [int(one["x"]) for one in logs] == want * 5


def test_one_function_in_several_threads_keeps_its_runs_apart():
    """The same compiled program, with one callback for each run."""
    tapped = {i: [] for i in range(4)}

    def work(i):
        spoolax.tap(count_up, tapped[i].append)(float(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in tapped]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spoolax.flush()
    for i, logs in tapped.items():
        assert [float(one["x"]) for one in logs] == [float(i + n) for n in range(1000)]


def test_a_slow_callback_makes_the_program_wait(monkeypatch):
    """The queue stays within its bounds."""
    monkeypatch.setattr(backlog, "MOST_ENTRIES", 5000)
    most = []

    def slow(logs):
        most.append(_host.host._backlog.entries)
        time.sleep(0.001)

    y = spoolax.tap(lambda x: count_up(x, 2_000_000), slow, batch=True)(0)
    spoolax.flush()
    assert int(y) == 2_000_000
    # A chunk that is larger than the bound is taken when the queue is empty.
    assert max(most) <= 16384


def test_a_slow_callback_may_drop(monkeypatch, caplog):
    """What is dropped is counted, and warned about once."""
    monkeypatch.setattr(backlog, "MOST_ENTRIES", 5000)
    seen = []

    def slow(logs):
        seen.append(len(logs["x"]))
        time.sleep(0.01)

    tapped = spoolax.tap(lambda x: count_up(x, 300_000), slow, batch=True, overflow="drop")
    with caplog.at_level(logging.WARNING, "spoolax"):
        tapped(0)
        spoolax.flush()
    assert tapped.dropped > 0
    assert sum(seen) + tapped.dropped == 300_000
    assert len(caplog.records) == 1


def test_only_entries_that_happened_count_as_dropped(monkeypatch):
    """Not what a branch did not log."""
    monkeypatch.setattr(backlog, "MOST_ENTRIES", 50)

    def f(x):
        def body(x, i):
            jax.lax.cond(i % 2 == 0, lambda: spoolax.log({"x": x}) and None, lambda: None)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(1000))[0]

    seen = []
    tapped = spoolax.tap(f, lambda logs: (seen.append(logs), time.sleep(0.01)), overflow="drop")
    tapped(0)
    spoolax.flush()
    assert len(seen) + tapped.dropped == 500
    assert tapped.dropped > 0


def test_a_callback_that_waits_for_a_program_that_waits_for_it(monkeypatch):
    """There is no deadlock: the queue gives way when nothing moves."""
    monkeypatch.setattr(backlog, "MOST_ENTRIES", 10)
    monkeypatch.setattr(_host, "STUCK", 0.2)
    inner = []
    nested = jax.jit(spoolax.tap(lambda x: count_up(x, 30), inner.append))

    def callback(logs):
        if int(logs["x"]) % 50 == 0:
            thread = threading.Thread(target=lambda: jax.block_until_ready(nested(0)))
            thread.start()
            thread.join()

    spoolax.tap(lambda x: count_up(x, 100), callback)(0)
    spoolax.flush()
    spoolax.flush()
    assert len(inner) == 60


def test_flush_does_not_wait_for_what_comes_later():
    """A program that goes on for ever, on another thread, does not keep it from returning."""
    stop = threading.Event()

    def callback(logs):
        if stop.is_set():
            raise spoolax.StopRun("enough")

    def work():
        with contextlib.suppress(spoolax.StopRun, jax.errors.JaxRuntimeError):
            jax.block_until_ready(spoolax.tap(forever, callback, batch=True)(0))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    for _ in range(3):
        spoolax.flush()
    stop.set()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.once
def test_memory_stays_flat_however_long_the_run_is():
    """Millions of entries through a slow callback."""
    out, _ = run(
        """
        import resource, time
        import jax, jax.numpy as jnp
        import spoolax

        def f(n):
            def body(i):
                spoolax.log({"i": i, "v": jnp.full(8, i)})
                return i + 1
            return jax.lax.while_loop(lambda i: i < n, body, 0)

        total = 0
        def slow(logs):
            global total
            total += len(logs["i"])
            time.sleep(0.01)

        tapped = spoolax.tap(f, slow, batch=True)
        def peak():
            spoolax.flush()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        tapped(2_000_000)
        before = peak()
        tapped(6_000_000)
        after = peak()
        print(total, after - before)
        """
    )
    total, grown = map(int, out.split())
    assert total == 8_000_000
    assert grown < 100_000  # In kB; all of it would be 240 MB.


def test_everything_is_delivered_at_exit():
    """Without a flush, also if the entries come at the very end."""
    out, _ = run(
        """
        import jax, spoolax
        def f(x):
            def body(x, i):
                spoolax.log({"x": x})
                return x + 1, None
            return jax.lax.scan(body, x, length=3)[0]
        def show(logs):
            print("got", int(logs["x"]))
        spoolax.tap(f, show)(0)
        jax.jit(spoolax.tap(f, show))(10)
        """
    )
    assert out.split() == [
        "got",
        "0",
        "got",
        "1",
        "got",
        "2",
        "got",
        "10",
        "got",
        "11",
        "got",
        "12",
    ]


def test_an_error_in_a_callback_is_not_lost_at_exit():
    """It is on stderr, with its traceback, though nobody asked for logging."""
    _, err = run(
        """
        import spoolax
        def f(x):
            spoolax.log({"x": x})
            return x
        def fails(logs):
            raise ValueError("so it goes")
        spoolax.tap(f, fails)(0)
        """
    )
    assert "so it goes" in err
    assert "Traceback" in err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_hang():
    """Its own flush returns at once, also while the parent still delivers.

    It leaves as children of `multiprocessing` do: JAX itself may crash if it exits otherwise.
    """
    out, _ = run(
        """
        import os, time, warnings
        import spoolax, jax
        warnings.simplefilter("ignore")
        def f(x):
            def body(x, i):
                spoolax.log({"x": x})
                return x + 1, None
            return jax.lax.scan(body, x, length=100)[0]
        seen = []
        def slow(logs):
            time.sleep(0.005)
            seen.append(logs)
        spoolax.tap(f, slow)(0)
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            spoolax.flush()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        spoolax.flush()
        print(os.waitstatus_to_exitcode(status), len(seen))
        """
    )
    assert out.split() == ["7", "100"]


def test_the_number_of_runs_that_are_remembered_is_bounded():
    """Also of those inside of `jit`, whose end nobody announces."""
    f = jax.jit(spoolax.tap(lambda x: count_up(x, 2), lambda logs: None))
    g = spoolax.tap(lambda x: count_up(x, 2), lambda logs: None)
    under_way = set(_host.host.runs._under_way)  # Such as failed, in other tests.
    for _ in range(50):
        f(0)
        g(0)
    spoolax.flush()
    assert not _host.host.runs._registered
    assert len(_host.host.runs._registered) <= 2
    assert set(_host.host.runs._under_way) <= under_way
    assert len(_host.host.runs._over) <= runs.KEPT_RUNS
    with pytest.raises(TypeError):
        spoolax.tap(lambda x: x + "1", print)(0)
    assert len(_host.host.runs._registered) <= 2


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bool", "bfloat16"])
def test_narrow_numbers_come_out_of_long_while_loops(dtype):
    """To the bit, though some come by way of the host, and others are left at the end."""

    def f(x):
        def body(carry):
            i, x = carry
            spoolax.log({"x": x})
            return i + 1, x[::-1]

        return jax.lax.while_loop(lambda carry: carry[0] < 3000, body, (0, x))[1]

    x = jnp.arange(5).astype(dtype)
    _, logs = spoolax.spool(f)(x)
    assert logs["x"].dtype == x.dtype
    for start in (0, 1):
        expected = np.asarray(x[::-1] if start else x).tobytes() * 1500
        assert np.asarray(logs["x"][start::2]).tobytes() == expected
