"""Programs that are over before anybody could see entries return them, and call nobody."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax._tap import backlog, receive

pytestmark = pytest.mark.usefixtures("unoptimized")


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with every call of the host."""
    made = []
    receive_once = receive.Receiver.__call__

    def counted(self, asked, *args):
        made.append(asked.loop)
        return receive_once(self, asked, *args)

    monkeypatch.setattr(receive.Receiver, "__call__", counted)
    return made


def steps(x, n):
    """Log before a loop of n iterations, in it, in one inside of it, and after it."""

    def body(carry):
        i, x = carry
        spoolax.log({"x": x}, i=i)
        x = lax.fori_loop(0, 2, lambda j, x: spoolax.log({"inner": x}) and x + 0.5, x)
        return i + 1, x

    spoolax.log({"n": n})
    _, x = lax.while_loop(lambda carry: carry[0] < n, body, (0, x))
    spoolax.log({"last": x})
    x, _ = lax.scan(lambda x, _: (spoolax.log({"y": x}) and x - 1.0, None), x, length=3)
    return x


def expected(x, n):
    entries = [("n", n)]
    for _ in range(n):
        entries += [("x", x), ("inner", x), ("inner", x + 0.5)]
        x += 1.0
    return [*entries, ("last", x), ("y", x), ("y", x - 1.0), ("y", x - 2.0)]


def recorder():
    seen = []

    def callback(logs):
        ((key, value),) = logs.items()
        seen.append((key, float(value)))

    return callback, seen


def settled(tapped, *args):
    """Call a tapped function until it is known how long it takes."""
    for _ in range(3):
        tapped(*args)
        spoolax.flush()


def test_short_programs_call_the_host_no_more_once_that_is_known(calls):
    """And what they log is the same, in the same order, whichever way it came."""
    callback, seen = recorder()
    tapped = spoolax.tap(steps, callback, latency=1000.0)
    for _ in range(5):
        seen.clear()
        calls.clear()
        assert tapped(1.0, 4) == 2.0
        spoolax.flush()
        assert seen == expected(1.0, 4)
    assert not calls


def test_a_loop_that_is_longer_than_before_is_live_again(calls):
    """What was logged before it comes first, though it has waited for the end until then."""
    callback, seen = recorder()
    tapped = spoolax.tap(steps, callback)
    settled(tapped, 1.0, 2)
    seen.clear()
    calls.clear()
    n = 60_000
    assert tapped(1.0, n) == n + 1.0 - 3.0
    spoolax.flush()
    assert seen == expected(1.0, n)
    assert "while[0]" in calls


def test_arguments_of_other_shapes_have_a_pace_of_their_own(calls):
    """Else a program might begin with a chunk that takes hours."""
    tapped = spoolax.tap(lambda x: steps(jnp.sum(x), 3), lambda logs: None)
    settled(tapped, jnp.ones(3))
    calls.clear()
    tapped(jnp.ones(4))
    spoolax.flush()
    assert calls


def test_programs_that_follow_each_other_are_delivered_in_order():
    """Though nobody waits for one before the next is started."""
    callback, seen = recorder()
    tapped = spoolax.tap(steps, callback, latency=1000.0)
    settled(tapped, 0.0, 2)
    seen.clear()
    for i in range(100):
        tapped(float(i), 2)
    spoolax.flush()
    assert seen == [entry for i in range(100) for entry in expected(float(i), 2)]


def test_a_stop_that_comes_too_late_is_raised_by_flush():
    """As in every program that was over by then."""

    def stop(logs):
        if stopping:
            raise spoolax.StopRun("enough")

    stopping = []
    tapped = spoolax.tap(steps, stop, latency=1000.0)
    settled(tapped, 0.0, 2)
    stopping.append(True)
    tapped(0.0, 2)
    with pytest.raises(spoolax.StopRun, match="enough"):
        spoolax.flush()


def test_a_short_program_that_becomes_long_can_be_stopped():
    """It calls the host then, and the stop comes out of it as it is."""
    stop = False

    def callback(logs):
        if stop:
            raise spoolax.StopRun("enough")

    def f(x, n):
        return lax.while_loop(lambda x: x < n, lambda x: spoolax.log({"x": x}) and x + 1, x)

    tapped = spoolax.tap(f, callback, latency=0.01)
    settled(tapped, 0, 3)
    stop = True
    with pytest.raises(spoolax.StopRun, match="enough"):
        jax.block_until_ready(tapped(0, 1 << 30))
    spoolax.flush()  # Once is enough.


def test_a_callback_that_fails_gets_what_follows():
    """The error is raised once."""
    callback, seen = recorder()

    def fails(logs):
        callback(logs)
        if logs.get("last") == 2.0:
            raise ValueError("no")

    tapped = spoolax.tap(steps, fails, latency=1000.0)
    settled(tapped, 1.0, 2)
    seen.clear()
    tapped(0.0, 2)
    with pytest.raises(ValueError, match="no"):
        spoolax.flush()
    assert seen == expected(0.0, 2)


def test_what_cannot_be_kept_is_dropped_and_counted(monkeypatch):
    """How much that is turns out when the program has ended."""
    monkeypatch.setattr(backlog, "MOST_BYTES", 200)

    def slow(logs):
        seen.append(logs)
        time.sleep(0.05)

    seen = []
    tapped = spoolax.tap(steps, slow, overflow="drop", latency=1000.0)
    settled(tapped, 0.0, 1)
    before = len(seen) + tapped.dropped
    for _ in range(4):
        tapped(0.0, 1)
    spoolax.flush()
    assert tapped.dropped
    assert len(seen) + tapped.dropped == before + 4 * len(expected(0.0, 1))


def test_nothing_waits_for_a_program_that_may_fail(calls):
    """One that calls functions of the user's sends at once, however short it is."""

    def f(x):
        spoolax.log({"x": x})
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), jnp.float32), x)

    tapped = spoolax.tap(f, lambda logs: None, latency=1000.0)
    settled(tapped, jnp.float32(1.0))
    calls.clear()
    tapped(jnp.float32(1.0))
    spoolax.flush()
    assert calls


def failing(fails, branch):
    """Log in a loop and after it; call a function of the user's where `branch` says so."""

    def refuse(x):
        if fails:
            raise ValueError("not this one")
        return x

    def call(x):
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), x)

    def f(x, most):
        def body(x, _):
            spoolax.log({"x": x})
            x = lax.cond(x > most, call, lambda x: x, x) if branch == "in a loop" else x
            return x + 1, None

        x, _ = lax.scan(body, x, length=5)
        spoolax.log({"last": x})
        if branch == "in a call":
            return jax.jit(lambda x: lax.cond(x > most, call, lambda x: x, x))(x)
        return x

    return f


@pytest.mark.parametrize("branch", ["in a call", "in a loop"])
def test_a_call_that_is_not_made_sends_nothing(calls, branch):
    """Checks that call the host only to raise do not make a program wait."""
    callback, seen = recorder()
    tapped = spoolax.tap(failing(False, branch), callback, latency=1000.0)
    settled(tapped, jnp.float32(0.0), 9.0)
    calls.clear()
    seen.clear()
    assert float(tapped(jnp.float32(0.0), 9.0)) == 5.0
    spoolax.flush()
    assert not calls
    entries = [*(("x", float(i)) for i in range(5)), ("last", 5.0)]
    assert seen == entries
    assert float(tapped(jnp.float32(0.0), -1.0)) == 5.0  # Now the call is made.
    spoolax.flush()
    assert calls
    assert seen == entries * 2


@pytest.mark.parametrize("branch", ["in a call", "in a loop"])
def test_what_was_logged_before_a_failure_is_delivered(branch):
    """Whenever the check fails: after the first call, nothing is sent otherwise."""
    callback, seen = recorder()
    tapped = spoolax.tap(failing(True, branch), callback, latency=1000.0)
    settled(tapped, jnp.float32(0.0), 9.0)
    seen.clear()
    # Which of them depends on whether JAX waits for the program.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="not this one"):
        jax.block_until_ready(tapped(jnp.float32(0.0), 2.5))
    spoolax.flush()
    entries = [*(("x", float(i)) for i in range(5)), ("last", 5.0)]
    assert seen == entries[: 4 if branch == "in a loop" else 6]


def test_a_test_that_calls_the_host_is_evaluated_once():
    """Also when a chunk is over just then; and what was logged before it comes before it."""
    called = []

    def test(x):
        return jax.pure_callback(
            lambda x: called.append(float(x)) or np.bool_(x < 7), jax.ShapeDtypeStruct((), bool), x
        )

    def f(x):
        return lax.while_loop(test, lambda x: spoolax.log({"x": x}) and x + 1, x)

    callback, seen = recorder()
    tapped = spoolax.tap(f, callback, latency=1e-9)
    for _ in range(3):
        called.clear()
        seen.clear()
        assert float(tapped(0.0)) == 7.0
        spoolax.flush()
        assert called == [float(i) for i in range(8)]
        assert seen == [("x", float(i)) for i in range(7)]


def test_programs_that_differ_in_more_than_shapes_may_have_other_loops():
    """They share a pace, and nothing else."""

    def f(x):
        spoolax.log({"first": x})
        if jnp.issubdtype(x.dtype, jnp.integer):
            x = lax.fori_loop(0, 2, lambda i, x: spoolax.log({"whole": x}) and x + 1, x)
        return lax.while_loop(lambda x: x < 4, lambda x: spoolax.log({"x": x}) and x + 1, x)

    callback, seen = recorder()
    tapped = spoolax.tap(f, callback, latency=1000.0)
    for _ in range(4):
        seen.clear()
        assert (tapped(0), tapped(2.5)) == (4, 4.5)
        spoolax.flush()
        assert seen == [
            *[("first", 0), ("whole", 0), ("whole", 1), ("x", 2), ("x", 3)],
            *[("first", 2.5), ("x", 2.5), ("x", 3.5)],
        ]


def test_what_programs_have_left_takes_turns():
    """It is given back when another line has its turn, and goes on after that."""

    def slow():
        callback, seen = recorder()

        def wait(logs):
            callback(logs)
            time.sleep(0.03)

        return spoolax.tap(steps, wait, latency=1000.0), seen

    (first, seen_first), (second, seen_second) = slow(), slow()
    for _ in range(3):
        first(0.0, 2)
        second(1.0, 2)
    spoolax.flush()
    assert seen_first == expected(0.0, 2) * 3
    assert seen_second == expected(1.0, 2) * 3
