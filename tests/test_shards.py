"""Loops inside of `shard_map` that are tapped: live, on every device, and in step."""

import functools
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.dispatch import runtime_tokens
from jax.sharding import PartitionSpec as P

import spoolax
from spoolax import log
from spoolax._tap import receive
from spoolax._tap._devices.in_step import InStep
from spoolax.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("unoptimized")


def shards(f=None, shape=None, axes=("d",), **options):
    """Map a function over all devices."""
    if f is None:
        return functools.partial(shards, shape=shape, axes=axes, **options)
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(shape or (jax.device_count(),), axes, axis_types=types)
    return jax.shard_map(f, mesh=mesh, in_specs=P(axes), out_specs=P(axes), **options)


def xs():
    return jnp.arange(float(jax.device_count()))


def maybe(key, value):
    """Log in a branch, which returns nothing."""
    log({key: value})


def scan(x):
    def body(x, i):
        log({"x": x[0]}, step=i)
        lax.cond(x[0] % 2 > 0, lambda: maybe("odd", x[0]), lambda: None)
        return x + 1, x

    log({"before": x[0]})
    x, ys = lax.scan(body, x, jnp.arange(7))
    log({"after": ys})
    return x


def while_loop(x):
    log({"before": x[0]})
    x = lax.while_loop(lambda x: x[0] < 9, lambda x: log({"x": x[0]}) and x + 2, x)
    log({"after": x[0]})
    return x


def scan_in_scan(x):
    def body(x, i):
        log({"x": x[0]})
        x = lax.scan(lambda x, _: (log({"inner": x[0]}) and x + 1, None), x, length=3)[0]
        log({"y": x[0]})
        return x, None

    return lax.scan(body, x, jnp.arange(4))[0]


def while_in_scan(x):
    def body(x, i):
        log({"i": i})
        bound = 4.0 * (i + 1).astype(x.dtype)
        x = lax.while_loop(lambda x: x[0] < bound, lambda x: log({"x": x[0]}) and x + 2, x)
        return lax.while_loop(lambda x: x[0] > 3, lambda x: log({"y": x[0]}) and x - 1, x), None

    return lax.scan(body, x, jnp.arange(4))[0]


def loops_in_while(x):
    def body(x):
        x = lax.while_loop(lambda x: x[0] % 5 > 1, lambda x: log({"x": x[0]}) and x + 1, x)
        log({"y": x[0]})
        return lax.scan(lambda x, _: (log({"z": x[0]}) and x + 1, None), x, length=2)[0]

    return lax.while_loop(lambda x: x[0] < 20, body, x)


def branches(x):
    def down(x):
        log({"down": x[0]})
        return lax.scan(lambda x, _: (log({"d": x[0]}) and x - 1, None), x, length=2)[0]

    def up(x):
        log({"up": x[0]})
        return lax.while_loop(lambda x: x[0] < 5, lambda x: log({"u": x[0]}) and x + 1, x)

    x = lax.cond(x[0] > 0, down, up, x)
    log({"end": x[0]})
    return x


def branches_in_scan(x):
    return lax.scan(lambda x, _: (branches(x), None), x, length=5)[0]


def large(x):
    def body(x, i):
        log({"large": jnp.full((130, 130), x[0])}, step=i)
        lax.cond(x[0] > 1, lambda: maybe("some", jnp.full((130, 130), x[0])), lambda: None)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(20))[0]


def calls_python(x):
    def body(x):
        log({"x": x[0]})
        lax.cond(x[0] > 3, lambda: jax.debug.callback(lambda _: None, x[0]), lambda: None)
        return lax.scan(lambda x, _: (log({"y": x[0]}) and x + 1, None), x, length=2)[0]

    return lax.while_loop(lambda x: x[0] < 9, body, x)


PROGRAMS = [
    scan,
    while_loop,
    scan_in_scan,
    while_in_scan,
    loops_in_while,
    branches,
    branches_in_scan,
    large,
    calls_python,
]


def histories(seen, devices):
    """What each device logged, in order, taken from the entries of all of them."""
    found = [[] for _ in range(devices)]
    for logs in seen:
        ((key, value),) = logs.items()
        valid = logs.valid[key]
        for device in range(devices):
            its, did = (value[device], valid[device]) if np.ndim(valid) else (value, valid)
            if did:
                origin = logs.origin.path, logs.origin.iteration
                found[device].append((origin, key, np.ravel(its)[0], np.shape(its)))
    return found


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("rows", [None, 3], ids=["room", "little room"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_every_device_logs_what_it_would_alone(f, rows, check, monkeypatch):
    """In the same order, live as well as returned, and what belongs together in one entry."""
    if rows:
        monkeypatch.setattr("spoolax._tap._reels.reel.MOST_ROWS", rows)
        monkeypatch.setattr("spoolax._tap._reels.reel.MOST_BYTES_OF_ALL", 0)
    alone = []
    for x in xs():
        seen = []
        spoolax.tap(f, seen.append)(x[None])
        spoolax.flush()
        alone.append(histories(seen, 1)[0])
    seen = []
    mapped = shards(f, check_vma=check)
    tapped = spoolax.tap(mapped, seen.append, latency=1000.0)
    for _ in range(3):
        seen.clear()
        assert tapped(xs()).tolist() == jax.jit(mapped)(xs()).tolist()
        spoolax.flush()
        assert histories(seen, len(alone)) == alone
        places = [(*logs, logs.origin.path, logs.origin.iteration) for logs in seen]
        assert len(places) == len(set(places))


def test_entries_that_do_not_differ_come_once():
    """Along each axis of the mesh, unless only some devices are there."""

    def f(x):
        def body(x, i):
            log({"all": lax.psum(x[0], ("a", "b"))}, step=i)
            log({"b": lax.psum(x[0], "a")}, step=i)
            return x + 1, None

        x = lax.scan(body, x, jnp.arange(3))[0]

        def count(carry):
            log({"n": carry[1]})
            return carry[0] + 1, carry[1] + 1

        return lax.while_loop(lambda carry: carry[0][0] < 5, count, (x, 0))[0]

    for shape in ((2, 1), (1, 2)):
        seen = []
        spoolax.tap(shards(f, shape, ("a", "b")), seen.append)(jnp.arange(2.0))
        spoolax.flush()
        assert [logs["all"] for logs in seen if "all" in logs] == [1, 3, 5]
        origin = [logs.origin for logs in seen if "b" in logs][-1]
        assert origin.device == tuple(map(str, jax.devices()[: shape[1]]))
        assert origin.coordinates == tuple({"b": i} for i in range(shape[1]))
        origin = [logs.origin for logs in seen if "n" in logs][-1]
        places = itertools.product(*map(range, shape))
        assert origin.coordinates == tuple({"a": a, "b": b} for a, b in places)
        assert [logs["b"].shape for logs in seen if "b" in logs] == [(shape[1],)] * 3
        assert [logs.valid["n"].tolist() for logs in seen if "n" in logs] == [
            [True, True],
            [True, False],
        ]


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_a_stop_reaches_all_devices_in_the_same_iteration(check):
    """They exchange numbers in every iteration, and would wait for each other else."""

    def forever(x):
        x = lax.while_loop(lambda x: x[0] < 50, lambda x: log({"a": x[0]}) and x + 7, 9 * x)

        def body(carry):
            i, x = carry
            log({"i": i, "x": x[0]})
            return i + 1, x + lax.psum(x, "d")

        return lax.while_loop(lambda carry: carry[0] >= 0, body, (0, x))[1]

    for stop_at in (2, 200):
        seen = []

        def callback(logs, seen=seen, stop_at=stop_at):
            seen.append(logs)
            if len(seen) == stop_at:
                raise spoolax.StopRun("enough")

        with pytest.raises(spoolax.StopRun, match="enough"):
            spoolax.tap(shards(forever, check_vma=check), callback)(xs())
        spoolax.flush()
        i = [int(logs["i"][0]) for logs in seen if "i" in logs]
        assert len(seen) == stop_at
        assert i == list(range(len(i)))


def test_a_scan_is_live():
    """One that would take days can be stopped."""

    def days(x):
        def body(x, i):
            log({"i": i})
            return x * lax.psum(x, "d"), None

        return lax.scan(body, x, jnp.arange(1 << 28))[0]

    def callback(logs):
        if logs["i"] == 5:
            raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun, match="enough"):
        spoolax.tap(shards(days), callback)(xs())


@pytest.mark.parametrize("where", ["around", "inside"])
def test_taps_inside_of_another_program_get_the_same(where):
    seen = []
    if where == "around":
        program = spoolax.tap(shards(loops_in_while), seen.append)
    else:
        program = shards(spoolax.tap(loops_in_while, seen.append))
    want = []
    spoolax.tap(shards(loops_in_while), want.append)(xs())
    for _ in range(2):
        seen.clear()
        jax.jit(lambda x: 2 * program(x))(xs())
        spoolax.flush()
        devices = jax.device_count()
        assert histories(seen, devices) == histories(want, devices)


def test_short_programs_do_not_call_the_host(monkeypatch):
    """What every device has left is returned."""
    calls = []
    for kind in (receive.Receiver, InStep):
        call = kind.__call__
        monkeypatch.setattr(
            kind, "__call__", lambda self, *args, call=call: calls.append(1) or call(self, *args)
        )
    tapped = spoolax.tap(shards(scan_in_scan), print, latency=1000.0)
    for _ in range(4):
        calls.clear()
        tapped(xs())
        spoolax.flush()
    assert not calls


def test_what_was_logged_around_it_is_in_order():
    """Also if a program was known to be short, and then is not."""
    seen = []

    def f(x, n):
        log({"first": x.sum()})
        x = lax.scan(lambda x, _: (log({"a": x.sum()}) and x + 1, None), x, length=2)[0]

        def loop(x):
            log({"b": x[0]})
            return lax.while_loop(lambda x: x[0] < n, lambda x: log({"c": x[0]}) and x + 1, x)

        x = shards(loop)(x)
        log({"d": x.sum()})
        return lax.scan(lambda x, _: (log({"e": x.sum()}) and x + 1, None), x, length=2)[0]

    tapped = spoolax.tap(f, lambda logs: seen.extend(logs))
    for n in (5, 5, 5, 30_000):
        seen.clear()
        tapped(xs(), float(n))
        spoolax.flush()
        assert seen == ["first", "a", "a", "b", *["c"] * (n - 2), "d", "e", "e"]


@pytest.mark.parametrize("embed", [jax.jit, lambda f: f], ids=["jit(tap)", "tap"])
def test_what_is_logged_after_it_waits_for_slow_devices(embed, monkeypatch):
    """One device hands it over for all, perhaps before the others have handed over anything."""
    call, seen = InStep.__call__, []

    def slow(self, asked, is_alone, orders, *given):
        if given[0 if not asked.pauses else 2] == 1:
            time.sleep(0.2)
        return call(self, asked, is_alone, orders, *given)

    monkeypatch.setattr(InStep, "__call__", slow)

    def f(x):
        x = shards(lambda x: lax.scan(lambda x, i: (log({"a": x[0]}) and x, None), x, length=3)[0])(
            x
        )
        log({"b": 1.0})
        return lax.scan(lambda x, _: (log({"c": 2.0}) and x + 1, None), x, length=2)[0]

    embed(spoolax.tap(f, lambda logs: seen.extend(logs), latency=0))(xs())
    spoolax.flush()
    assert seen == ["a", "a", "a", "b", "c", "c"]


def test_the_compiler_has_nothing_to_complain_about(capfd):
    """It warns of arrays that it has to bring together for one device without being told so."""

    def f(x):
        log({"b": 1.0})
        return shards(scan)(x)

    seen = []
    jax.jit(spoolax.tap(f, seen.append))(xs())
    spoolax.flush()
    assert len(seen) == 10 + len([logs for logs in seen if "odd" in logs])
    assert not capfd.readouterr().err


def test_a_failing_program_delivers_what_it_sent():
    def fails(x):
        def body(x, i):
            log({"i": i})
            return x + jax.pure_callback(check, jax.ShapeDtypeStruct((), x.dtype), i), None

        return lax.scan(body, x, jnp.arange(10))[0]

    def check(i):
        if i == 5:
            raise RuntimeError("five")
        return np.float32(1)

    seen = []
    with pytest.raises(Exception, match="five"):
        jax.block_until_ready(spoolax.tap(shards(fails), seen.append)(xs()))
    spoolax.flush()
    runtime_tokens.clear()  # Or else JAX raises it again, whoever waits for something next.
    assert [int(logs["i"]) for logs in seen] == list(range(6))


@pytest.mark.parametrize("how", ["tap", "jit(tap)", "listening"])
def test_a_call_that_fails_on_one_device_is_raised(how):
    """The others do not wait for it: nothing that we do takes all of them."""

    def check(v):
        if v[0] == 3:
            raise RuntimeError("three")
        return np.ones_like(v)

    def fails(x):
        def body(x, _):
            log({"x": x[0]})
            return x - jax.pure_callback(check, jax.ShapeDtypeStruct((1,), x.dtype), x), None

        return lax.scan(body, x, length=20)[0]

    seen, f = [], shards(fails)
    with pytest.raises(Exception, match="three"):
        if how == "listening":
            with spoolax.listening(seen.append):
                jax.block_until_ready(jax.jit(f)(xs() * 0 - xs() + 4))
        else:
            tapped = spoolax.tap(f, seen.append)
            jax.block_until_ready((tapped if how == "tap" else jax.jit(tapped))(4 - xs()))
    runtime_tokens.clear()
    spoolax.flush()
    assert len(seen) >= 2


@pytest.mark.parametrize("loops", [False, True])
def test_the_alarm_does_not_wait_for_devices_that_wait_for_it(loops):
    """What went wrong is found by running the `shard_map` again, on the same devices."""

    def root(x):
        return lax.fori_loop(0, 3, lambda i, x: jnp.sqrt(x - 0.25), x) if loops else jnp.sqrt(x - 1)

    found = []
    y = spoolax.watch_nan(shards(root), found.append)(xs())
    spoolax.flush()
    np.testing.assert_array_equal(y, jax.jit(shards(root))(xs()))
    assert [nan.primitive for nan in found] == ["shard_map"]


def test_where_it_is_not_possible_to_stream_a_while_loop_the_error_says_so():
    with pytest.raises(UnsupportedError, match=r"\['x'\].*while_loop.*shard_map.*spoolax.tap"):
        spoolax.tap(shards(while_loop), print, interval=2)(xs())
    with pytest.raises(UnsupportedError, match=r"\['x'\].*while_loop.*shard_map.*spoolax.tap"):
        spoolax.tap(shards(while_loop), print, reduce="sum")(xs())


def test_explicit_meshes_are_streamed_as_well():
    """Where arrays have their shardings in their types."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    seen = []

    def body(x):
        def step(x, i):
            log({"sum": x.sum()}, step=i)
            return jnp.sin(x), None

        return lax.scan(step, x, jnp.arange(3))[0]

    with jax.set_mesh(mesh):
        spec = jax.sharding.PartitionSpec("d")
        x = jax.device_put(jnp.arange(4.0), spec)
        f = jax.shard_map(body, in_specs=spec, out_specs=spec)
        for _ in range(2):
            y = spoolax.tap(f, seen.append)(x)
        spoolax.flush()
        np.testing.assert_array_equal(y, jax.jit(f)(x))
    assert [int(logs.step["sum"][0]) for logs in seen] == [0, 1, 2] * 2
    assert [logs["sum"].shape for logs in seen] == [(2,)] * 6


@pytest.mark.parametrize("check", [True, False])
def test_axes_of_a_mesh_may_be_left_to_the_compiler(check):
    """A device logs what it would if only the axes that are mapped were there."""
    mesh = jax.make_mesh((2, 1), ("d", "rest"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    seen = []
    f = jax.shard_map(
        scan,
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        axis_names={"d"},
        check_vma=check,
    )
    y = jax.jit(spoolax.tap(f, seen.append, argnames="x"))(xs())
    spoolax.flush()
    np.testing.assert_array_equal(y, jax.jit(f)(xs()))
    assert [logs["x"].tolist() for logs in seen] == [[i, i + 1] for i in range(7)]
