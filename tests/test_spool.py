"""Properties of `spool` that hold for every program in the table."""

import itertools

import jax
import numpy as np
import oracle
import pytest
from checks import (
    BATCH,
    CAPACITY,
    COVER,
    assert_equal_to_the_bit,
    assert_same_lane,
    assert_same_rows,
    expected_of,
    f_of,
    lane_of,
    logged_rows,
    medley,
    medleys,
    plain,
    plain_gradient,
    program_of,
    programs,
    spooled,
    total,
)
from lanes import assert_same_entries, lane_histories
from programs import PROGRAMS, XS

import spoolax


@programs()
def test_entries_are_those_of_a_plain_python_run_and_nothing_else_changes(name):
    """Exactly the entries that happened, once and in order.

    The output is that of the program to the bit, JAX traces the same as before, and spooling the
    function again gives the same again.
    """
    f = f_of(name)
    before = str(jax.make_jaxpr(f)(XS))
    y, logs = spoolax.spool(f)(XS)
    # Compiled arithmetic may differ from eager arithmetic in the last bit.
    assert_same_entries(logs, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)
    assert_equal_to_the_bit(y, plain(name))
    assert str(jax.make_jaxpr(f)(XS)) == before
    assert_equal_to_the_bit(spoolax.spool(f)(XS), (y, logs))


@programs()
def test_off_means_off(name):
    """Without a listener, the compiled program is that without the `log` lines."""
    with_logs = jax.jit(f_of(name)).lower(XS).as_text()
    with oracle.silent():
        without = jax.jit(f_of(name)).lower(XS).as_text()
    assert with_logs.replace("jit__lambda_", "") == without.replace("jit__lambda_", "")
    assert not jax.make_jaxpr(f_of(name))(XS).effects


@medleys()
def test_inside_a_trace_entries_are_padded_and_marked(names):
    """Under jit, `valid` marks the entries that an eager call returns, and no effect is left."""
    _, eager = spooled(names)[0]
    traced = jax.jit(spoolax.spool(medley(names), capacity=CAPACITY)).trace(XS)
    assert not traced.jaxpr.effects
    _, padded = traced.lower().compile()(XS)
    assert list(padded) == list(eager)
    for key in eager:
        got = logged_rows(*lane_histories(padded, key))
        assert_same_rows(got, lane_histories(eager, key), key)
        assert int(np.sum(padded.dropped[key])) == 0, key


@programs(reverse=True)
def test_gradients_are_unchanged_to_the_bit_and_the_forward_pass_logs_once(name):
    """`spool(grad(f))` and `grad(spool(f))` have the gradient of f and the logs of f."""
    f = f_of(name)
    inside, logs = spoolax.spool(jax.grad(total(f)))(XS)
    assert_equal_to_the_bit(inside, plain_gradient(name))
    assert_same_entries(logs, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)

    def with_logs(xs):
        y, logs = spoolax.spool(f)(xs)
        return total(lambda _: y)(xs), logs

    outside, logs = jax.jit(jax.grad(with_logs, has_aux=True))(XS)
    assert_equal_to_the_bit(outside, plain_gradient(name))
    assert_same_entries(logs, expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@medleys(batched=True)
def test_vmap_commutes_with_spool(names):
    """Each lane of `vmap(spool(f))`, and of `spool(vmap(f))`, has the logs of f on that lane."""
    f = medley(names)
    ys, outside = jax.jit(jax.vmap(spoolax.spool(f, capacity=CAPACITY)))(BATCH)
    zs, inside = spoolax.spool(jax.vmap(f))(BATCH)
    for i, (y, want) in enumerate(spooled(names)):
        assert_same_lane(ys, y, i)
        assert_same_lane(zs, y, i)
        one = jax.tree.map(lambda x, i=i: x[i], outside)
        assert set(one) == set(want)
        assert set(inside) == {key for key in want if not program_of(key).silent_rule}
        for key in want:
            rows = lane_histories(want, key)
            got = [lane_histories(one, key)]
            got += [lane_of(inside, key, i, want)] if key in inside else []
            for lane in got:
                assert_same_rows(logged_rows(*lane), rows, key, rtol=1e-6)


@pytest.mark.usefixtures("unoptimized")
@programs(COVER, batched=True)
def test_vmap_may_be_eager(name):
    """Without a `jit` around it, JAX compiles each operation of `vmap(spool(f))` by itself."""
    ys, logs = jax.vmap(spoolax.spool(medley((name,)), capacity=CAPACITY))(BATCH)
    for i, (y, want) in enumerate(spooled((name,))):
        assert_same_lane(ys, y, i)
        one = jax.tree.map(lambda x, i=i: x[i], logs)
        assert list(one) == list(want)
        for key in want:
            got = logged_rows(*lane_histories(one, key))
            assert_same_rows(got, lane_histories(want, key), key, rtol=1e-6)


def test_the_cover_has_every_pair_of_constructs():
    """Some properties are tested for a part of the table; a new pair has to be added to it."""
    pairs = {name: pairs_of(name) for name in PROGRAMS}
    covered = set().union(*(pairs[name] for name in COVER))
    assert not {name: new for name in PROGRAMS if (new := pairs[name] - covered)}


def pairs_of(name):
    """The pairs of a construct and what it directly contains, on the way to the logs."""
    pairs = set()

    def walk(jaxpr, around):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "log" and not eqn.outvars:
                path = [*around, *["lanes"] * ("lanes=()" not in str(eqn.params)), "log"]
                pairs.update(itertools.pairwise(path))
            for key, value in eqn.params.items():
                for inner in value if isinstance(value, (tuple, list)) else [value]:
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        call = eqn.primitive.name in ("jit", "pjit")  # These change nothing.
                        walk(inner, around if call else [*around, f"{key} of {eqn.primitive}"])

    # A tap inside of a trace leaves its entries where they are.
    walk(jax.make_jaxpr(spoolax.tap(f_of(name), print))(XS).jaxpr, [])
    return pairs
