"""`log_grad` logs cotangents, wherever it is, and is the identity otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import joined

import spoolax
from spoolax.errors import LogTypeError

XS = jnp.array([1.0, 2.0, 3.0])


def in_scan(x):
    def body(c, i):
        c = spoolax.log_grad("dc", c, step=i)
        return c * 2.0, c

    c, ys = jax.lax.scan(body, x, jnp.arange(4))
    return c + ys.sum()


def in_cond(x):
    return jax.lax.cond(
        x > 0,
        lambda x: spoolax.log_grad("yes", x) * 3.0,
        lambda x: spoolax.log_grad("no", x) * 5.0,
        x,
    )


def in_remat(x):
    return jax.checkpoint(lambda x: jnp.sin(spoolax.log_grad("dx", jnp.sin(x))))(x)


def in_jit(x):
    return jax.jit(lambda x: spoolax.log_grad("dx", x) ** 2)(x)


def in_custom_vjp(x):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (spoolax.log_grad("inner", ct) * 10.0,))
    return f(spoolax.log_grad("dx", x))


def streamed(f, *args):
    seen = []
    y = spoolax.tap(f, seen.append)(*args)
    spoolax.flush()
    return y, joined(seen)


@pytest.mark.parametrize("run", [spoolax.spool, lambda f: lambda *args: streamed(f, *args)])
def test_cotangents_are_logged_in_the_backward_pass(run):
    """In scans, branches, checkpointed and jitted functions, collected and streamed."""
    slope, logs = run(jax.grad(in_scan))(1.0)
    # The cotangent of c at step i is what c adds to the sum of everything after it.
    assert np.asarray(logs["dc"]).tolist() == [3.0, 7.0, 15.0, 31.0]
    assert np.asarray(logs.step["dc"]).tolist() == [3, 2, 1, 0]
    assert float(slope) == float(jax.grad(in_scan)(1.0)) == 31.0

    _, logs = run(jax.grad(in_cond))(1.0)
    assert np.asarray(logs["yes"]).tolist() == [3.0]
    assert "no" not in logs or not len(logs["no"])

    _, logs = run(jax.grad(in_remat))(1.0)
    np.testing.assert_allclose(np.ravel(logs["dx"]), np.cos(np.sin(1.0)), rtol=1e-6)

    _, logs = run(jax.grad(in_jit))(3.0)
    assert np.ravel(logs["dx"]).tolist() == [6.0]

    slope, logs = run(jax.grad(in_custom_vjp))(1.0)
    assert float(slope) == 10.0
    assert np.ravel(logs["dx"]).tolist() == [10.0]


@pytest.mark.parametrize("order", ["vmap(grad)", "grad(vmap)"])
def test_lanes_are_lanes_whichever_comes_first(order):
    """One entry for all lanes, with the lanes as an axis in front."""

    def f(x):
        return jnp.sin(spoolax.log_grad("dx", x, step=3)).sum()

    g = jax.vmap(jax.grad(f)) if order == "vmap(grad)" else jax.grad(lambda x: jax.vmap(f)(x).sum())
    seen = []
    spoolax.tap(g, seen.append)(XS)
    spoolax.flush()
    (logs,) = seen
    np.testing.assert_allclose(logs["dx"], np.cos(XS), rtol=1e-6)
    assert logs.origin.lanes == (3,)
    np.testing.assert_array_equal(logs.step["dx"], [3, 3, 3])


@pytest.mark.parametrize("order", ["vmap(grad)", "grad(vmap)"])
def test_lanes_that_do_not_take_a_branch_log_nothing(order):
    """Also in branches of branches, and in the backward pass of lanes that come first."""

    def f(x):
        def marked(x):
            return jnp.sin(spoolax.log_grad("dx", x, step=3))

        def nested(x):
            return jax.lax.cond(x < 10.0, marked, lambda x: 3.0 * x, x)

        return jax.lax.cond(x > 0, nested, lambda x: 2.0 * x, x)

    g = jax.vmap(jax.grad(f)) if order == "vmap(grad)" else jax.grad(lambda x: jax.vmap(f)(x).sum())
    xs = jnp.array([1.0, -1.0, 11.0, 2.0])
    slopes, logs = spoolax.spool(g)(xs)
    np.testing.assert_array_equal(slopes, g(xs))
    assert np.asarray(logs.valid["dx"]).tolist() == [[True, False, False, True]]
    np.testing.assert_allclose(logs["dx"][0, [0, 3]], np.cos(xs[jnp.array([0, 3])]), rtol=1e-6)


def test_it_is_the_identity():
    """To the program, if nobody listens; and to forward mode, if somebody does."""
    assert str(jax.make_jaxpr(lambda x: spoolax.log_grad("x", x))(1.0)) == str(
        jax.make_jaxpr(lambda x: x)(1.0)
    )
    y, logs = spoolax.spool(jax.jacfwd(in_scan))(1.0)
    assert float(y) == 31.0
    assert not logs
    y, logs = spoolax.spool(jax.hessian(lambda x: spoolax.log_grad("dx", x) ** 3))(2.0)
    assert float(y) == 12.0
    assert np.ravel(logs["dx"]).tolist() == [12.0]
    assert spoolax.spool(in_scan)(1.0)[0] == in_scan(1.0)


def test_pytrees_tags_and_what_is_refused():
    """A tree is one entry; numbers without a derivative are refused."""

    def f(params):
        params = spoolax.log_grad("grads", params, tags="debug")
        return (params["w"] * 2.0 + params["b"]).sum()

    _, logs = spoolax.spool(jax.grad(f), tags="debug")({"w": XS, "b": XS})
    assert logs["grads"]["w"].tolist() == [2.0] * 3
    assert logs["grads"]["b"].tolist() == [1.0] * 3
    with pytest.raises(LogTypeError, match="no derivative"):
        spoolax.log_grad("n", 3)
    with pytest.raises(LogTypeError, match="a name"):
        spoolax.log_grad(XS, "x")


def test_a_tap_inside_of_the_derivative_does_not_see_the_backward_pass():
    """It listens to the function, not to its derivative."""
    seen = []
    assert jax.grad(spoolax.tap(in_scan, seen.append))(1.0) == 31.0
    spoolax.flush()
    assert not seen
