"""What programs that listen are compiled to for GPUs and TPUs, on a machine that has none.

A GPU waits for the host in every iteration of a loop whose number of iterations is not known when
it is compiled, and at every conditional.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from compile_for import loops, optimized
from jax import lax

import spoolax

X = jnp.ones(8)


def silent(logs):
    pass


def advance(x, i):
    return jnp.sin(x) + i


def scan(x, report=lambda values: None, length=1000):
    def body(x, i):
        x = advance(x, i)
        return x, report({"sum": x.sum()})

    return lax.scan(body, x, jnp.arange(float(length)))


def by_hand(x):
    return scan(x, lambda values: values)


def logged(x):
    return scan(x, lambda values: spoolax.log(values) and None)[0]


def nested(x):
    def outer(x, i):
        x, _ = scan(x + i, lambda values: spoolax.log(values) and None, 10)
        spoolax.log({"outer": x.sum()})
        return x, None

    return lax.scan(outer, x, jnp.arange(100.0))[0]


def while_loop(x):
    def body(x):
        spoolax.log({"sum": x.sum()})
        return advance(x, 1.0)

    return lax.while_loop(lambda x: x.sum() < 1e6, body, x)


def sharded(x):
    mesh = jax.sharding.AbstractMesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    return jax.shard_map(logged, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def slope(x):
    return jax.grad(lambda x: logged(x).sum())(x)


PROGRAMS = {
    "scan": logged,
    "nested": nested,
    "while": while_loop,
    "vmap": jax.vmap(logged),
    "grad": slope,
    "shard_map": sharded,
    "outside of loops": lambda x: spoolax.log({"x": x}) and x,
}
LISTENERS = {
    "spool": lambda f: spoolax.spool(f, capacity=100),
    "reduce": lambda f: spoolax.spool(f, interval=10, reduce="mean", capacity=100),
    "tap": lambda f: spoolax.tap(f, silent),
    "tap, interval": lambda f: spoolax.tap(f, silent, interval=10),
    "watch": lambda f: spoolax.watch(f, silent, carry=True),
    "watch_nan": lambda f: spoolax.watch_nan(f, silent),
    "progress": spoolax.progress,
}


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_everything_compiles(listener, platform):
    """All programs as one, which is compiled sooner than each by itself."""

    def medley(x):
        return [f(x) if name != "vmap" else f(x[None]) for name, f in PROGRAMS.items()]

    loops(LISTENERS[listener](medley), X, platform=platform)


@pytest.mark.parametrize("listener", ["spool", "tap", "tap, interval", "watch", "progress"])
def test_a_scan_has_a_known_length_on_gpus_and_no_conditionals(listener):
    """And launches no more than one kernel more in every iteration than outputs by hand."""
    (hand,) = loops(by_hand, X, platform="cuda")
    innermost, *around = loops(LISTENERS[listener](logged), X, platform="cuda")
    assert innermost.trips is not None
    assert "conditional" not in innermost.kernels
    assert sum(innermost.kernels.values()) <= sum(hand.kernels.values()) + 1
    assert len(around) <= 1


@pytest.mark.parametrize(("name", "length"), [("scan", 1000), ("nested", 10)])
def test_the_alarm_keeps_the_known_length_of_innermost_scans_on_gpus(name, length):
    """They are there once more for when it goes off, and neither has conditionals."""
    found = loops(spoolax.watch_nan(PROGRAMS[name], silent), X, platform="cuda")
    blocks = [loop for loop in found if loop.trips is not None]
    assert [length % loop.trips for loop in blocks] == [0]
    innermost = [loop for loop in found if "conditional" not in loop.kernels]
    (again,) = (loop for loop in innermost if loop.trips is None)
    assert len(innermost) == 2
    (hand,) = loops(by_hand, X, platform="cuda")
    for loop in (*blocks, again):
        assert sum(loop.kernels.values()) <= sum(hand.kernels.values())


def test_the_alarm_waits_for_the_host_once_in_an_iteration_of_a_while_loop():
    """As the loop does without it."""
    innermost, *_ = loops(spoolax.watch_nan(while_loop, silent), X, platform="cuda")
    assert "conditional" not in innermost.kernels


def test_only_the_innermost_of_nested_scans_has_no_conditionals():
    """It is where the time goes: the one around it pauses, now and then, between its iterations."""
    found = loops(spoolax.tap(nested, silent), X, platform="cuda")
    assert [loop.trips for loop in found if "conditional" not in loop.kernels][:1] == [10]


def test_a_while_loop_waits_for_the_host_once_in_an_iteration():
    """As it does without us: there is no conditional in it."""
    innermost, *_ = loops(spoolax.tap(while_loop, silent), X, platform="cuda")
    assert innermost.trips is None
    assert "conditional" not in innermost.kernels


def test_a_long_scan_pauses_between_loops_of_known_length():
    """The host decides after how many of them it is called."""

    def long(x):
        return scan(x, lambda values: spoolax.log(values) and None, 1_000_000)[0]

    innermost, around = loops(spoolax.tap(long, silent), X, platform="cuda")
    assert innermost.trips is not None
    assert 1_000_000 % innermost.trips == 0
    assert around.trips is None


def test_reels_are_not_padded_on_tpus():
    """Three numbers of 1000 iterations take up 3000 words, not 128000."""

    def three(x):
        return scan(x, lambda values: spoolax.log({"a": x[0], "b": x[1], **values}) and None)[0]

    text = optimized(spoolax.tap(three, silent), X, platform="tpu")
    assert set(re.findall(r"u32\[[\d,]*000[\d,]*\]\{[^}]*\}", text)) == {"u32[3000]{0:T(1024)}"}


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_step_in_a_block_hands_over_all_it_logs_in_one_call(platform):
    """At its end, and its outputs do not wait for that."""

    def step(x):
        spoolax.log({"sum": x.sum()})
        x = advance(x, 1.0)
        spoolax.log({"x": x})
        return x

    with spoolax.listening(silent):
        text = optimized(step, X, platform=platform)
    assert "conditional(" not in text
    assert "while(" not in text
    calls = [line for line in text.splitlines() if re.search("custom-call|send\\(", line)]
    hosts = [line for line in calls if re.search("callback|send\\(", line)]
    assert hosts
    if platform == "cuda":
        (call,) = hosts
        name = call.split("=")[0].strip().lstrip("%")
        (root,) = (line for line in text.split("ENTRY")[1].splitlines() if "ROOT" in line)
        assert name not in root


def test_what_several_gpus_stream_is_not_gathered():
    """Each of them hands over what it has. There is an exchange at the beginning, of 32 numbers."""

    def f(x):
        def body(x, i):
            x = advance(x, i)
            spoolax.log({"x": x, "i": i})
            return x, None

        spoolax.log({"first": x})
        return lax.scan(body, x, jnp.arange(1000.0))[0]

    text = optimized(spoolax.tap(f, silent), jnp.ones((8, 100)), platform="cuda", devices=4)
    assert len(re.findall(r"callback.*f32\[1000,2,100\]", text)) == 2  # In a pause, and at the end.
    exchanges = re.findall(r" = (.*) (?:all-|collective-|reduce-scatter)[a-z-]*\(", text)
    assert {shape for one in exchanges for shape in re.findall(r"\w+\[[\d,]*\]", one)} == {
        "s32[32]"
    }
