"""Modules of flax linen, and what linen lifts into them: loops, `vmap`, `remat`, `jit`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax

XS = jnp.ones((4, 3))


class Cell(nn.Module):
    """One step of a recurrent network, which logs a constant, too."""

    @nn.compact
    def __call__(self, carry, x):
        y = nn.Dense(3)(carry) + x
        spoolax.log({"y": y, "constant": 1.0})
        norm = jax.jit(lambda y: spoolax.log({"norm": jnp.sum(y**2)})["norm"])(y)
        return jnp.tanh(y / norm), y


class Scan(nn.Module):
    @nn.compact
    def __call__(self, xs):
        lifted = nn.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
        return lifted()(jnp.ones(3), xs)


class Others(nn.Module):
    @nn.compact
    def __call__(self, xs):
        x, _ = nn.remat(Cell)()(xs[0], xs[0])
        x, _ = nn.jit(Cell)()(x, x)
        lifted = nn.vmap(Cell, variable_axes={"params": None}, split_rngs={"params": False})
        _, ys = lifted()(xs, xs)
        return x, ys


class Layers(nn.Module):
    @nn.compact
    def __call__(self, xs):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x):
                return spoolax.log({"y": nn.Dense(3)(x)})["y"]

        return nn.remat_scan(Layer, lengths=(2, 2))()(xs)


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, xs):
        class Logging(nn.GRUCell):
            def __call__(self, carry, x):
                carry, y = super().__call__(carry, x)
                spoolax.log({"y": y})
                return carry, y

        return nn.RNN(Logging(5))(xs)


class While(nn.Module):
    @nn.compact
    def __call__(self, xs):
        dense = nn.Dense(3)
        x = dense(xs)

        def body(_, carry):
            i, x = carry
            spoolax.log({"y": x}, step=i)
            return i + 1, dense(x)

        if self.is_initializing():
            return x
        return nn.while_loop(lambda _, carry: carry[0] < 4, body, self, (0, x))[1]


def check_close(some, others):
    """Products are logged, so XLA may round what they become part of in another way."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), some, others)


def counts(logs):
    return {key: len(logs[key]) for key in logs}


def streamed(f, *args):
    """What a tapped function returns, and how often it logged each key."""
    found = {}

    def count(logs):
        for key in logs:
            found[key] = found.get(key, 0) + 1

    out = spoolax.tap(f, count)(*args)
    spoolax.flush()
    return out, found


EACH = {"y": 4, "constant": 4, "norm": 4}


@pytest.fixture(scope="module")
def model():
    return Scan(), jax.jit(Scan().init)(jax.random.key(0), XS)


def test_a_lifted_scan_logs_once_in_each_iteration(model, unoptimized):
    """Linen traces its body once more, to see that what is broadcast does not depend on it."""
    module, params = model
    (_, ys), logs = spoolax.spool(module.apply)(params, XS)
    assert counts(logs) == EACH
    np.testing.assert_array_equal(logs["y"], ys)
    check_close(ys, jax.jit(module.apply)(params, XS)[1])
    assert streamed(module.apply, params, XS)[1] == EACH
    _, logs = spoolax.spool(module.init)(jax.random.key(0), XS)
    assert counts(logs) == EACH


def test_the_gradient_of_a_lifted_scan_logs_once(model, unoptimized):
    module, params = model

    def loss(params):
        return jnp.sum(module.apply(params, XS)[1])

    grads, logs = spoolax.spool(jax.grad(loss))(params)
    assert counts(logs) == EACH
    check_close(grads, jax.jit(jax.grad(loss))(params))


def test_what_needs_no_log_calls_works_with_a_lifted_scan(model, unoptimized, capsys):
    module, params = model
    expected = jax.jit(module.apply)(params, XS)
    for listen in (spoolax.watch_nan, spoolax.progress, lambda f: spoolax.watch(f, lambda _: None)):
        out = listen(module.apply)(params, XS)
        spoolax.flush()
        check_close(out, expected)


def test_a_tap_inside_a_lifted_scan_gets_each_iteration_once(unoptimized):
    found = []

    class Tapped(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            carry = nn.Dense(3)(carry)
            y = spoolax.tap(lambda y: spoolax.log({"y": y})["y"], found.append)(carry + x)
            _, logs = spoolax.spool(lambda y: spoolax.log({"y": y}))(y)
            return carry, logs["y"]

    lifted = nn.scan(Tapped, variable_broadcast="params", split_rngs={"params": False})()
    params = lifted.init(jax.random.key(0), jnp.ones(3), XS)
    spoolax.flush()
    found.clear()
    _, ys = lifted.apply(params, jnp.ones(3), XS)
    spoolax.flush()
    np.testing.assert_array_equal([logs["y"] for logs in found], ys)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Others(), {"y": 3, "constant": 3, "norm": 3}),
        (Layers(), {"y": 4}),
        (Recurrent(), {"y": 4}),
        (While(), {"y": 4}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_linen_lifts_logs_what_happened(module, expected, unoptimized):
    params = jax.jit(module.init)(jax.random.key(0), XS)
    plain = jax.jit(module.apply)(params, XS)
    out, logs = spoolax.spool(module.apply)(params, XS)
    assert counts(logs) == expected
    check_close(out, plain)
    out, found = streamed(module.apply, params, XS)
    assert found == expected
    check_close(out, plain)
    if not isinstance(module, While):  # Which has no gradient.
        gradient = jax.grad(lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(module.apply(p, XS))))
        _, logs = spoolax.spool(gradient)(params)
        assert counts(logs) == expected
