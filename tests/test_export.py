"""Programs that are exported: of any length, and stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import spoolax
from spoolax.errors import UnsupportedError

XS = jnp.arange(5.0)


def scan(x, xs):
    def body(x, y):
        spoolax.log({"x": x}, step=y)
        return x + y, x

    return jax.lax.scan(body, x, xs)


def nested(x, xs):
    x, _ = jax.lax.scan(lambda x, _: (scan(x, xs)[0], None), x, xs)
    spoolax.log({"x": x}, step=x)
    return scan(x, xs)


def reverse(x, xs):
    return jax.vmap(lambda x: jax.grad(lambda x: scan(x, xs[::-1])[0])(x))(jnp.stack([x, 2 * x]))


def maybe(x, xs):
    return jax.lax.cond(x > 0, lambda: scan(x, xs)[0], lambda: x)


def without_inputs(x, xs):
    def body(x, _):
        spoolax.log({"x": x}, step=x)
        return 2 * x, None

    # What is scanned over is not used, so JAX leaves it out of the derivative.
    return jax.jvp(lambda x: jax.lax.scan(body, x, xs), (x,), (x,))


def exported(f):
    """Export a function of a number, and of an array of any length."""
    (length,) = export.symbolic_shape("n")
    x, xs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (length,)))
    return export.export(jax.jit(f))(x, xs)


@pytest.mark.parametrize(
    "options", [{}, {"reduce": "mean"}, {"interval": 2}, {"interval": 2, "reduce": "sum"}], ids=str
)
@pytest.mark.parametrize("program", [scan, nested, reverse, maybe, without_inputs])
def test_a_loop_may_have_any_length(program, options, unoptimized):
    """As it may without logs in it."""
    spooled = spoolax.spool(program, **options)
    found = exported(spooled).call(jnp.float32(1.0), XS)
    expected = jax.jit(spooled)(jnp.float32(1.0), XS)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_loop_of_any_length_has_a_buffer_of_some_capacity(unoptimized):
    _, logs = exported(spoolax.spool(scan, capacity=3)).call(jnp.float32(1.0), XS)
    assert logs.step["x"].tolist() == [2, 3, 4]
    assert logs.dropped["x"] == 2
    _, logs = exported(spoolax.spool(scan, capacity=8)).call(jnp.float32(1.0), XS)
    assert logs.valid["x"].tolist() == [True] * 5 + [False] * 3


def test_an_exported_program_returns_logs_after_it_was_stored(unoptimized):
    stored = exported(jax.vmap(spoolax.spool(scan), (None, None), axis_size=2)).serialize()
    out, logs = export.deserialize(stored).call(jnp.float32(1.0), XS)
    assert isinstance(logs, spoolax.LogDict)
    assert logs.stacked == {"x"}
    np.testing.assert_array_equal(logs["x"], out[1])
    # How its axes are to be read is stored too.
    assert logs.slice[1:3]["x"].shape == (2, 2)


@pytest.mark.parametrize("listen", [spoolax.tap, spoolax.progress, spoolax.watch_nan])
def test_an_exported_program_cannot_call_the_host(listen, unoptimized):
    with pytest.raises(UnsupportedError, match=r"jax\.export.*spoolax\.spool\(f\)"):
        exported(listen(scan))
