"""Stopping a program: by a callback, or by Ctrl-C; on several devices, and over processes."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from stops import forever, spread

import spoolax

SCRIPT = pathlib.Path(__file__).with_name("stops.py")


def run(*args):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, args)],
        env={**os.environ, **flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


class Stop:
    """A callback that asks for a stop when it has seen enough."""

    def __init__(self, after):
        self.after, self.seen = after, []

    def __call__(self, logs):
        self.seen.append(logs)
        if len(self.seen) == self.after:
            raise spoolax.StopRun("enough")


def test_a_stop_leaves_all_loops_that_a_program_is_in():
    """What is logged on the way out did not happen."""

    def inner(x):
        def body(x):
            spoolax.log({"inner": x})
            return x + 1

        x = lax.while_loop(lambda x: x % 5 != 0, body, x)
        spoolax.log({"after": x})
        return x + 1

    def outer(x):
        x, _ = lax.scan(lambda x, _: (inner(x), None), x, length=10**9)
        spoolax.log({"end": x})
        return lax.while_loop(lambda x: True, inner, x)

    callback = Stop(after=23)
    with pytest.raises(spoolax.StopRun, match="enough"):
        spoolax.tap(outer, callback)(1)
    spoolax.flush()
    expected, i = [], 1
    while len(expected) < 23:
        while i % 5:
            expected.append(("inner", i))
            i += 1
        expected.append(("after", i))
        i += 1
    assert [(*logs, *map(int, logs.values())) for logs in callback.seen] == expected[:23]


def test_nothing_is_computed_from_a_loop_that_was_cut_off():
    """The second loop would not end, and the check would fail."""
    ran = []

    def f(x):
        def body(x, i):
            spoolax.log({"i": i})
            return x, jnp.float32(1)

        _, steps = lax.scan(body, x, jnp.arange(10**7))
        y = lax.while_loop(lambda y: y < 1, lambda y: y + steps[-1], 0.0)
        return jax.pure_callback(lambda y: ran.append(y) or y, jnp.float32(0), y)

    with pytest.raises(spoolax.StopRun):
        spoolax.tap(f, Stop(after=3))(0.0)
    assert not ran


def test_a_stop_that_comes_too_late_is_raised_by_flush():
    def f(x):
        spoolax.log({"x": x})
        return x

    def stop(logs):
        is_over.wait(60)
        raise spoolax.StopRun("enough")

    for _ in range(3):
        is_over = threading.Event()
        spoolax.tap(f, stop)(1.0)
        is_over.set()
        with pytest.raises(spoolax.StopRun, match="enough"):
            spoolax.flush()
        spoolax.flush()


def test_a_loop_that_sends_only_large_entries_can_be_stopped():
    def large(x):
        def body(carry, i):
            spoolax.log({"x": carry, "i": i})
            return carry + 1.0, None

        return lax.scan(body, x, jnp.arange(1 << 24))[0]

    callback = Stop(after=3)
    with pytest.raises(spoolax.StopRun):
        spoolax.tap(large, callback)(jnp.zeros(1 << 15))
    spoolax.flush()
    assert [int(logs["i"]) for logs in callback.seen] == [0, 1, 2]


@pytest.mark.parametrize("inside", ["tap(f)", "jit(tap(f))"])
def test_a_stop_leaves_no_device_waiting(inside):
    callback = Stop(after=20)
    stopping = spoolax.tap(forever, callback)
    if inside == "tap(f)":
        with pytest.raises(spoolax.StopRun, match="enough"):
            stopping(spread(jnp.arange(1.0, 5.0)))
    else:  # JAX has returned by then, and nothing of ours is there to raise it.
        with pytest.raises(jax.errors.JaxRuntimeError, match="StopRun: enough"):
            jax.block_until_ready(jax.jit(stopping)(spread(jnp.arange(1.0, 5.0))))
    spoolax.flush()
    assert [int(logs["i"]) for logs in callback.seen] == list(range(20))


@pytest.mark.parametrize("jit", [jax.jit, lambda f: jax.jit(jax.vmap(f))], ids=["jit", "vmap"])
def test_a_stop_comes_out_of_another_jit_on_one_device(jit):
    """If another part of the program is tapped as well, it does not matter."""
    callback, others = Stop(after=20), []

    def f(x):
        spoolax.tap(lambda x: spoolax.log({"x": x}), others.append)(x)
        return spoolax.tap(forever, callback)(x)

    program = jit(f)
    for _ in range(2):
        with pytest.raises(spoolax.StopRun, match="enough"):
            program(jnp.ones((2, 4)))
        spoolax.flush()
        assert len(callback.seen) == 20
        callback.seen.clear()
    assert len(others) == 2


def test_the_alarm_stops_a_program_on_several_devices():
    def fails(x):
        return lax.fori_loop(0, 1 << 30, lambda i, x: jnp.log(x - jnp.sum(x) * 0.01), x)

    with pytest.raises(spoolax.StopRun, match="NaN"):
        spoolax.watch_nan(fails, print, stop=True)(spread(jnp.arange(1.0, 5.0)))


def test_ctrl_c_ends_a_program_at_its_next_call(tmp_path):
    """With `KeyboardInterrupt`, and everything that was logged until then in its place."""
    results = result(run("interrupts", tmp_path / "log.jsonl"))
    assert results.pop("handler") == ["default_int_handler", True]
    assert len(results) == 13
    assert results == {name: ["KeyboardInterrupt", True] for name in results}


def test_a_stop_reaches_all_processes():
    """Each of them raises it, four times in a row; the entries arrive on the first.

    So do those of what runs in a block.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = [result(process) for process in [run(i, port) for i in range(2)]]
    assert first == [["StopRun"] * 4, [*range(21)] * 4, [10, 14, 18]]
    assert second == [["StopRun"] * 4, [], []]


def test_a_program_that_is_left_running_may_return_random_keys():
    """It is asked whether it has ended, on several devices and inside of another `jit`."""
    tapped = jax.jit(spoolax.tap(lambda key: spoolax.log({"x": 1}) and key, lambda logs: None))
    key = jax.random.key(0)
    assert tapped(key) == key
    spoolax.flush()
