"""Properties of `spool` that hold for every program in the table."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from lanes import assert_same_entries, lane_histories, to_numpy
from programs import PROGRAMS, XS

import spoolax

CAPACITY = 40  # More than any program logs.


def programs(**properties):
    chosen = [
        name
        for name, program in PROGRAMS.items()
        if all(getattr(program, key) == value for key, value in properties.items())
    ]
    return pytest.mark.parametrize("name", chosen)


def f_of(name):
    f = PROGRAMS[name].f
    return lambda xs: f(xs)  # A function of its own, so that no test sees another's caches.


def expected_of(name):
    program = PROGRAMS[name]
    return oracle.run(program.f, XS) if program.expected is None else program.expected


def assert_equal_to_the_bit(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)

    def same(x, y):
        x, y = to_numpy(x), to_numpy(y)
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes(), (x, y)

    jax.tree.map(same, a, b)


@programs()
def test_entries_are_those_of_a_plain_python_run(name):
    """Exactly the entries that happened, once and in order."""
    _, logs = spoolax.spool(f_of(name))(XS)
    # Compiled arithmetic may differ from eager arithmetic in the last bit.
    assert_same_entries(logs, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs()
def test_outputs_are_unchanged_to_the_bit(name):
    """Spooling changes no output."""
    plain = jax.jit(f_of(name))(XS)
    y, _ = spoolax.spool(f_of(name))(XS)
    assert_equal_to_the_bit(y, plain)


@programs()
def test_off_means_off(name):
    """Without a listener, the compiled program is that without the `log` lines."""
    with_logs = jax.jit(f_of(name)).lower(XS).as_text()
    with oracle.silent():
        without = jax.jit(f_of(name)).lower(XS).as_text()
    assert with_logs.replace("jit__lambda_", "") == without.replace("jit__lambda_", "")
    assert not jax.make_jaxpr(f_of(name))(XS).effects


@programs()
def test_the_users_function_is_left_alone(name):
    """Spooling neither changes what JAX traces nor breaks a second spooling."""
    f = PROGRAMS[name].f
    before = str(jax.make_jaxpr(f)(XS))
    first = spoolax.spool(f)(XS)
    second = spoolax.spool(f)(XS)
    assert str(jax.make_jaxpr(f)(XS)) == before
    assert_equal_to_the_bit(first, second)


@programs()
def test_inside_a_trace_entries_are_padded_and_marked(name):
    """Under jit, `valid` marks the entries that an eager call returns, and no effect is left."""
    _, eager = spoolax.spool(f_of(name))(XS)
    spooled = jax.jit(spoolax.spool(f_of(name), capacity=CAPACITY))
    _, traced = spooled(XS)
    assert not jax.make_jaxpr(spooled)(XS).effects
    assert list(traced) == list(eager)
    for key in eager:
        value, steps, mask = lane_histories(traced, key)
        rows = mask.any(tuple(range(1, mask.ndim)))
        want = lane_histories(eager, key)
        got = jax.tree.map(lambda x: x[rows], (value, steps, mask))
        lanes_equal(got, want)
        assert int(np.sum(traced.dropped[key])) == 0


def lanes_equal(got, want):
    (value, steps, mask), (want_value, want_steps, want_mask) = got, want

    def compare(a, b):
        keep = want_mask.reshape(want_mask.shape + (1,) * (a.ndim - want_mask.ndim))
        a, b = (np.where(keep, x, np.zeros_like(x)) for x in (a, b))
        np.testing.assert_array_equal(a, b)

    np.testing.assert_array_equal(mask, want_mask)
    jax.tree.map(compare, (value, steps), (want_value, want_steps))


@programs(reverse=True)
def test_gradients_are_unchanged_to_the_bit_and_the_forward_pass_logs_once(name):
    """`spool(grad(f))` and `grad(spool(f))` have the gradient of f and the logs of f."""

    def total(f):
        def scalar(xs):
            leaves = jax.tree.leaves(f(xs))
            return sum(jnp.sum(y) for y in leaves)

        return scalar

    f = f_of(name)
    plain = jax.jit(jax.grad(total(f)))(XS)

    inside, logs = spoolax.spool(jax.grad(total(f)))(XS)
    assert_equal_to_the_bit(inside, plain)
    assert_same_entries(logs, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)

    def with_logs(xs):
        y, logs = spoolax.spool(f)(xs)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(y)), logs

    outside, logs = jax.jit(jax.grad(with_logs, has_aux=True))(XS)
    assert_equal_to_the_bit(outside, plain)
    _, forward = jax.jit(spoolax.spool(f))(XS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), logs, forward)


@programs(batched=True)
def test_vmap_commutes_with_spool(name):
    """Each lane of `vmap(spool(f))`, and of `spool(vmap(f))`, has the logs of f on that lane."""
    batch = jnp.stack([XS, XS[::-1]])
    f = f_of(name)
    lanes = [spoolax.spool(f)(xs) for xs in batch]

    ys, logs = jax.vmap(spoolax.spool(f, capacity=CAPACITY))(batch)
    for i, (y, want) in enumerate(lanes):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), ys, y)
        mine = jax.tree.map(lambda x, i=i: x[i], logs)
        for key in want:
            check_one_lane(lane_histories(mine, key), lane_histories(want, key))


def check_one_lane(got, want):
    value, _, mask = got
    want_value, _, want_mask = want
    rows = mask.any(tuple(range(1, mask.ndim)))
    assert rows.sum() == len(want_mask)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a[rows].astype(complex)[want_mask] if want_mask.ndim > 1 else a[rows].astype(complex),
            b.astype(complex)[want_mask] if want_mask.ndim > 1 else b.astype(complex),
            rtol=1e-6,
        ),
        value,
        want_value,
    )
