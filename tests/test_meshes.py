"""Programs on several devices of one process: arrays stay where they are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spoolax
from spoolax._tap._meaning import reeling

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
def test_loops_that_stream_exchange_nothing_between_pauses(kind):
    """What is gathered is gathered where the host is called."""
    x = spread(jnp.ones((4, 1000)), kind)
    program = jax.jit(spoolax.tap(steps, print)).lower(x).compile().as_text()
    parts = dict(re.findall(r"^(?:ENTRY )?%(\S+) \(.*?\{\n(.*?)^\}", program, re.M | re.S))
    bodies = [parts[name] for name in re.findall(r"while\(.*body=%([^\s,]+)", program)]
    innermost = [body for body in bodies if " while(" not in body]
    assert any("f32[5,2,1000]" in body for body in innermost)  # What a device has of the reel.
    assert "host_call" in program
    for body in innermost:
        assert not COLLECTIVES.search(body)
        assert "host_call" not in body


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
