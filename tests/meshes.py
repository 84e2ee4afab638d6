"""Programs on meshes of eight devices: a script that `test_meshes.py` runs.

Arrays of all types are streamed from them, and compared with what one device logs.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spoolax

WHOLE = jnp.arange(16.0 * 48).reshape(16, 48) / 100
SPECS = [P("a", "b"), P(None, ("b", "a")), P()]


def step(x, i):
    """Log arrays of all kinds."""
    x = x / 2 + 1
    keys = jax.random.split(jax.random.key(0), x.shape[:1])
    kinds = {"int4": jnp.int4, "float8": jnp.float8_e4m3fn, "half": jnp.bfloat16}
    others = {name: x.astype(dtype) for name, dtype in kinds.items()}
    spoolax.log({"x": x, "i": i, "keys": keys, "flags": x > 2, "c": x + 1j, **others})
    return x


def logged(x):
    """Log in a loop and outside of it."""
    spoolax.log({"first": x})
    return lax.scan(lambda x, i: (step(x, i), None), x, jnp.arange(6))[0]


def endless(x):
    """Log in a loop that hands over to the host what it has no room for."""

    def body(carry):
        i, x = carry
        return i + 1, step(x, i)

    return lax.while_loop(lambda carry: carry[0] < 1300, body, (0, x))[1]


def assert_equal(seen, expected):
    assert len(seen) == len(expected)
    for logs, others in zip(seen, expected, strict=True):
        assert list(logs) == list(others)
        for one, other in zip(logs.values(), others.values(), strict=True):
            assert one.dtype == other.dtype
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                one, other = map(jax.random.key_data, (one, other))
            np.testing.assert_array_equal(one, other)


def evenly():
    """On meshes with devices in any order, or with some of them."""
    expected = []
    spoolax.tap(logged, expected.append)(WHOLE)
    spoolax.flush()
    devices = np.array(jax.devices())
    for grid in (devices.reshape(4, 2), devices[[5, 2, 7, 0]].reshape(2, 2)):
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = Mesh(grid, ("a", "b"), axis_types=(kind, kind))
            for spec in SPECS:
                x, seen = jax.device_put(WHOLE, NamedSharding(mesh, spec)), []
                tapped = spoolax.tap(logged, seen.append, latency=0)
                for _ in range(2):
                    y = tapped(x)
                    assert y.sharding.is_equivalent_to(x.sharding, 2)
                spoolax.flush()
                assert_equal(seen, 2 * expected)


def spooled():
    """A long while loop, of which every array comes back where it was."""
    devices = np.array(jax.devices()).reshape(4, 2)
    _, expected = spoolax.spool(endless)(WHOLE)
    assert expected["i"].tolist() == list(range(1300))
    for kind in (AxisType.Auto, AxisType.Explicit):
        place = NamedSharding(Mesh(devices, ("a", "b"), axis_types=(kind, kind)), P("a", "b"))
        x = jax.device_put(WHOLE, place)
        _, logs = spoolax.spool(endless)(x)
        rows = NamedSharding(place.mesh, P(None, "a", "b"))
        for key in ("x", "flags", "c", "int4", "float8", "half"):
            assert logs[key].sharding.is_equivalent_to(rows, 3), key
        assert logs["keys"].sharding.mesh == place.mesh
        assert_equal([logs], [expected])


def unevenly():
    """Rows that the devices do not have equally many of."""
    mesh = Mesh(np.array(jax.devices()), ("d",))

    def f(x):
        def body(x, i):
            x = lax.with_sharding_constraint(x + 1, NamedSharding(mesh, P("d")))
            spoolax.log({"x": x, "i": i})
            return x, None

        return lax.scan(body, x, jnp.arange(6))[0]

    x, seen = jnp.arange(26.0).reshape(13, 2), []
    spoolax.tap(f, seen.append, latency=0)(x)
    spoolax.flush()
    assert len(seen) == 6
    for i, logs in enumerate(seen):
        np.testing.assert_array_equal(logs["x"], x + i + 1)


if __name__ == "__main__":
    {"evenly": evenly, "spooled": spooled, "unevenly": unevenly}[sys.argv[1]]()
