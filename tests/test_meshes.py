"""Programs on several devices of one process: arrays stay where they are."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.dispatch import runtime_tokens
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spoolax
from spoolax._listen import in_pieces
from spoolax._tap import runs
from spoolax._tap._meaning import reeling

SCRIPT = pathlib.Path(__file__).with_name("meshes.py")
KINDS = [AxisType.Auto, AxisType.Explicit]
COLLECTIVES = re.compile(r" (all-\w+|collective-\w+|reduce-scatter)(-start)?\(")


def spread(x, kind):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))
    return jax.device_put(x, NamedSharding(mesh, P("d")))


def steps(x):
    """Log large arrays, small ones, numbers, and keys, in a loop and outside of it."""

    def body(x, i):
        x = jnp.sin(x) + 1
        spoolax.log(
            {"x": x, "row": x[:, :16], "i": i, "keys": jax.random.split(jax.random.key(0), x.shape)}
        )
        return x, None

    spoolax.log({"first": x})
    spoolax.log({"key": jax.random.key(3)})
    return lax.scan(body, x, jnp.arange(5))[0]


def expected(x):
    made = []
    for _ in range(5):
        x = np.asarray(jax.jit(lambda x: jnp.sin(x) + 1)(x))
        made.append(x)
    return made


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_spooled_is_not_gathered(kind):
    x = spread(jnp.ones((4, 1000)), kind)
    program = jax.jit(spoolax.spool(steps)).lower(x).compile().as_text()
    assert not COLLECTIVES.search(program)
    _, logs = spoolax.spool(steps)(x)
    for key, spec in {"x": P(None, "d"), "row": P(None, "d"), "first": P("d")}.items():
        whole = NamedSharding(x.sharding.mesh, spec)
        assert logs[key].sharding.is_equivalent_to(whole, logs[key].ndim), key
    np.testing.assert_array_equal(logs["x"], np.stack(expected(np.ones((4, 1000), np.float32))))


def halvings(x):
    """The same in a loop of unknown length."""

    def body(carry):
        i, x = carry
        x = jnp.sin(x) + 1
        spoolax.log({"x": x, "row": x[:, :16], "i": i}, step=i)
        return i + 1, x

    return lax.while_loop(lambda carry: carry[0] < 5, body, (0, x))[1]


def folded(old, new):
    return old + 2 * new


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    "options",
    [
        *({"capacity": 4, "overflow": overflow} for overflow in ("last", "first", "thin")),
        *({"reduce": how} for how in ("mean", "std", "last", folded)),
        {"interval": 2, "capacity": 4},
        {"interval": 2, "reduce": "max", "capacity": 4},
    ],
    ids=lambda options: " ".join(str(getattr(one, "__name__", one)) for one in options.values()),
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_loops_carry_is_not_gathered(kind, options):
    rows = jnp.arange(160.0).reshape(4, 40)
    x, spool = spread(rows, kind), spoolax.spool(halvings, **options)
    program = jax.jit(spool).lower(x).compile().as_text()
    assert not COLLECTIVES.search(program)
    (_, logs), (_, expected) = spool(x), spool(rows)
    for key in ("x", "row"):
        spec = P("d") if logs[key].ndim == 2 else P(None, "d")
        whole = NamedSharding(x.sharding.mesh, spec)
        assert logs[key].sharding.is_equivalent_to(whole, logs[key].ndim), key
    for key in expected:
        np.testing.assert_allclose(logs[key], expected[key], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_long_while_loops_that_are_spooled_stay_where_they_are(kind):
    rows = jnp.arange(160.0).reshape(4, 40)
    x = spread(rows, kind)
    (_, logs), (_, expected) = spoolax.spool(halvings)(x), spoolax.spool(halvings)(rows)
    whole = NamedSharding(x.sharding.mesh, P(None, "d"))
    assert logs["x"].sharding.is_equivalent_to(whole, 3)
    np.testing.assert_allclose(logs["x"], expected["x"], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_programs_that_stream_exchange_nothing_for_that(kind):
    """Devices hand over what they have. Only that of somebody else is asked who it is, once."""
    x = spread(jnp.ones((4, 1000)), kind)
    program = jax.jit(spoolax.tap(steps, print)).lower(x).compile().as_text()
    assert "f32[5,2,1000]" in program  # What a device has of the reel.
    exchanges = [line for line in program.splitlines() if COLLECTIVES.search(line)]
    assert all(re.search(r" = s32\[32\]\S* all-reduce\(", line) for line in exchanges)
    parts = dict(re.findall(r"^(?:ENTRY )?%(\S+) \(.*?\{\n(.*?)^\}", program, re.M | re.S))
    bodies = [parts[name] for name in re.findall(r"while\(.*body=%([^\s,]+)", program)]
    assert bodies
    assert not any(COLLECTIVES.search(body) for body in bodies)
    innermost = [body for body in bodies if " while(" not in body]
    assert not any("callback" in body for body in innermost)


def test_streaming_from_eight_devices_exchanges_nothing(tmp_path):
    """Wherever arrays are on them, and of whichever type; and they arrive as from one device."""
    assert_nothing_is_exchanged("evenly", 12, tmp_path)


def test_long_while_loops_on_eight_devices_are_spooled_without_an_exchange(tmp_path):
    """Though what they have no room for goes by way of the host."""
    assert_nothing_is_exchanged("spooled", 2, tmp_path)


def assert_nothing_is_exchanged(what, count, path):
    """Run something on eight devices, and look at so many programs that it is compiled to."""
    assert on_eight_devices(what, "--xla_dump_hlo_as_text", f"--xla_dump_to={path}") == 0
    dumped = path.glob("*.jit__body.cpu_after_optimizations.txt")
    programs = [text for text in map(pathlib.Path.read_text, dumped) if " while(" in text]
    spread = [text for text in programs if "num_partitions=1," not in text]
    assert len(spread) >= count
    for program in spread:
        assert "callback" in program
        assert not COLLECTIVES.search(program)


def test_rows_that_eight_devices_have_different_numbers_of_arrive():
    assert on_eight_devices("unevenly") == 0


def on_eight_devices(what, *flags):
    flags = " ".join(["--xla_force_host_platform_device_count=8", *flags])
    env = {**os.environ, "XLA_FLAGS": flags, "NPROC": "16"}
    return subprocess.run([sys.executable, SCRIPT, what], env=env, timeout=300).returncode


@pytest.mark.parametrize("how", ["tap", "jit(tap)", "listening"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_streamed_arrives_whole(kind, how):
    x, seen = spread(jnp.ones((4, 1000)), kind), []
    if how == "listening":
        with spoolax.listening(seen.append):
            jax.jit(steps)(x)
    else:
        tapped = spoolax.tap(steps, seen.append)
        for _ in range(2):
            y = (tapped if how == "tap" else jax.jit(tapped))(x)
            assert y.sharding.is_equivalent_to(x.sharding, 2)
        spoolax.flush()
        half = len(seen) // 2
        assert [list(logs) for logs in seen[:half]] == [list(logs) for logs in seen[half:]]
        seen = seen[half:]
    assert [list(logs) for logs in seen] == [["first"], ["key"], *[["x", "row", "i", "keys"]] * 5]
    for i, (logs, value) in enumerate(
        zip(seen[2:], expected(np.ones((4, 1000), np.float32)), strict=True)
    ):
        np.testing.assert_array_equal(logs["x"], value)
        np.testing.assert_array_equal(logs["row"], value[:, :16])
        assert logs["i"] == i
    np.testing.assert_array_equal(seen[0]["first"], np.ones((4, 1000)))
    assert seen[1]["key"] == jax.random.key(3)


@pytest.mark.parametrize("devices", [1, 2])
def test_arrays_of_any_size_arrive_whether_they_are_packed_or_not(devices, monkeypatch):
    """How a program is laid out depends on how many devices it may run on."""
    monkeypatch.setattr(reeling, "most_devices", lambda: devices)
    sizes, seen = [0, 1, 8, 9, 1024, 1025], []

    def f(x):
        def body(x, i):
            spoolax.log({str(n): x + i + jnp.arange(n, dtype=x.dtype) for n in sizes})
            return x + 1, None

        return lax.scan(body, x, jnp.arange(3, dtype=x.dtype))[0]

    spoolax.tap(f, seen.append)(jnp.float32(0))
    spoolax.flush()
    for i, logs in enumerate(seen):
        for n in sizes:
            np.testing.assert_array_equal(logs[str(n)], 2 * i + np.arange(n, dtype=np.float32))
    assert len(seen) == 3


def test_arrays_of_which_every_device_has_a_copy_are_streamed_from_explicit_meshes():
    """Their types say which mesh they are on, though they are not sharded."""
    mesh, seen = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,)), []
    x = jax.device_put(jnp.ones((4, 1000)), NamedSharding(mesh, P()))
    for tapped in (spoolax.tap(steps, seen.append), jax.jit(spoolax.tap(steps, seen.append))):
        tapped(x)
        spoolax.flush()
        assert [next(iter(logs)) for logs in seen] == ["first", "key", *["x"] * 5]
        for logs, value in zip(seen[2:], expected(np.ones((4, 1000), np.float32)), strict=True):
            np.testing.assert_array_equal(logs["x"], value)
        seen.clear()


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["tap", "jit(tap)"])
@pytest.mark.parametrize("pieces", [True, False])
def test_what_devices_have_handed_over_arrives_if_one_of_them_fails(jit, pieces, monkeypatch):
    """Unless it is in pieces, some of which are missing."""
    monkeypatch.setattr(in_pieces, "PATIENCE", 1.0)
    start = np.array([0.0, 0.0, 0.0, 3.0], np.float32)
    seen, x = [], spread(start, AxisType.Auto)

    def fail(x):
        if np.any(x == 7):
            raise ValueError("a device has failed")

    def f(x):
        def body(x, i):
            x = x + 1
            jax.debug.callback(fail, x, partitioned=True)
            spoolax.log({"x": x, "i": i} if pieces else {"i": i})
            return x, None

        return lax.scan(body, x, jnp.arange(6))[0]

    with pytest.raises(Exception, match="a device has failed"):
        jax.block_until_ready(jit(spoolax.tap(f, seen.append, latency=0))(x))
    runtime_tokens.clear()  # Or else JAX raises it again, whoever waits for something next.
    spoolax.flush()
    assert [logs["i"] for logs in seen] == [*range(3 if pieces else 6)]
    for logs in seen if pieces else []:
        np.testing.assert_array_equal(logs["x"], start + logs["i"] + 1)


def test_devices_wait_until_one_of_them_has_reported_what_went_wrong():
    """However long that takes: it may stop the program, and they must agree on that."""
    found, x = [], spread(jnp.arange(1.0, 5.0), AxisType.Auto)

    def report(nan):
        time.sleep(1.5)
        found.append(nan)

    def f(x):
        return lax.scan(lambda x, _: (jnp.log(x), None), x, length=50)[0]

    with pytest.raises(spoolax.StopRun, match="infinity"):
        spoolax.watch_nan(f, report, stop=True)(x)
    assert len(found) == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_stop_is_the_same_for_all_devices_of_a_mesh(kind):
    """None of them would end if another had stopped, as they wait for each other."""
    seen, x = [], spread(jnp.arange(1.0, 5.0), kind)

    def stop(logs):
        seen.append(logs)
        if len(seen) == 50:
            raise spoolax.StopRun("enough")

    def f(x):
        def body(carry):
            i, x = carry
            x = x / x.sum()
            spoolax.log({"i": i, "x": x})
            return i + 1, x

        return lax.while_loop(lambda carry: carry[0] < 1 << 30, body, (0, x))

    tapped = spoolax.tap(f, stop, latency=0.001)
    for program, error in ((tapped, spoolax.StopRun), (jax.jit(tapped), RuntimeError)):
        with pytest.raises(error, match="enough"):
            jax.block_until_ready(program(x))
        spoolax.flush()
        assert [logs["i"] for logs in seen] == [*range(50)]
        seen.clear()


def test_programs_that_end_meanwhile_do_not_make_a_long_one_forgotten(monkeypatch):
    """Its devices would not agree any more on what it has handed over, and when it stops."""
    monkeypatch.setattr(runs, "KEPT_RUNS", 5)
    seen, x = [], spread(jnp.ones(4), AxisType.Auto)
    others_ran = threading.Event()

    def long(x):
        def body(x, i):
            jax.debug.callback(lambda i: others_ran.wait(60) if i == 3 else None, i)
            spoolax.log({"i": i, "x": x})
            return x / x.sum(), None

        return lax.scan(body, x, jnp.arange(300))[0]

    y = jax.jit(spoolax.tap(long, seen.append, latency=0))(x)
    short = jax.jit(spoolax.tap(steps, lambda logs: None, latency=0))
    for _ in range(20):
        short(jax.device_put(jnp.ones((1, 3)), jax.devices()[1]))
    others_ran.set()
    jax.block_until_ready(y)
    spoolax.flush()
    assert [logs["i"] for logs in seen] == [*range(300)]


def test_a_device_does_not_get_far_ahead_of_a_slow_one():
    """What it hands over would pile up, and a stop would take long."""
    x, made = spread(np.arange(2.0, dtype=np.float32), AxisType.Auto), []

    def slow(x):
        made.append(float(x[0]))
        if x[0] >= 1000:
            time.sleep(0.05)

    def f(x):
        def body(x, i):
            jax.debug.callback(slow, 1000 * x, partitioned=True)
            spoolax.log({"i": i, "x": x})
            return x, None

        return lax.scan(body, x, jnp.arange(10_000))[0]

    def stop(logs):
        if logs["i"] == 20:
            raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun):
        spoolax.tap(f, stop, latency=0)(x)
    assert made.count(0.0) < 300


def test_programs_that_other_threads_have_started_are_waited_for():
    """Also if they run on several devices, and nobody has waited for their outputs."""
    seen, x = [], spread(jnp.ones((4, 3)), AxisType.Auto)
    tapped = jax.jit(spoolax.tap(steps, seen.append))
    thread = threading.Thread(target=lambda: [tapped(x) for _ in range(5)])
    thread.start()
    thread.join()
    spoolax.flush()
    assert len(seen) == 5 * 7


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_arrays_alone_are_streamed(kind):
    """Without a number to pack, which is on the mesh by itself."""
    seen, x = [], spread(jnp.ones((4, 1000)), kind)

    def f(x):
        def body(x, _):
            spoolax.log({"x": x, "few": x[:, :2]})
            return x + 1, None

        return lax.scan(body, x, length=3)[0]

    for tapped in (spoolax.tap(f, seen.append), jax.jit(spoolax.tap(f, seen.append))):
        tapped(x)
        spoolax.flush()
        assert [logs["x"][3, 999] for logs in seen] == [1, 2, 3]
        assert [logs["few"].tolist() for logs in seen] == [[[n] * 2] * 4 for n in (1, 2, 3)]
        seen.clear()


def test_transfers_may_be_guarded_on_several_devices():
    seen, x = [], spread(jnp.ones((4, 3)), AxisType.Auto)
    tapped = spoolax.tap(steps, seen.append)
    with jax.transfer_guard("disallow"):
        tapped(x)
    spoolax.flush()
    assert len(seen) == 7


@pytest.mark.parametrize("how", ["jit(tap)", "listening"])
def test_programs_do_not_wait_for_what_they_have_handed_over(how, monkeypatch):
    """Others may, for a moment, in case that devices have failed."""
    monkeypatch.setattr(in_pieces, "GRACE", 1000.0)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    seen, x = [], jnp.ones(2)

    def f(x):
        def body(x, i):
            spoolax.log({"i": i, "x": x})
            return x + 1, None

        return lax.scan(body, x, jnp.arange(5))[0]

    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))

    def call():
        if how == "listening":
            with spoolax.listening(seen.append):
                jax.jit(mapped)(x)
        else:
            jax.jit(spoolax.tap(mapped, seen.append))(x)
            spoolax.flush()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert [logs["i"][0] for logs in seen] == [*range(5)]
