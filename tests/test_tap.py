"""Properties of `tap` that hold for every program in the table, and what its options do."""

import jax
import jax.numpy as jnp
import pytest
from lanes import assert_same_entries, joined, lane_histories
from programs import PROGRAMS, XS
from test_spool import assert_equal_to_the_bit, check_one_lane, expected_of, f_of, programs

import chiplog


def tapped(f, *args, **options):
    """Return the output of a function, and what its callback got."""
    seen = []
    y = chiplog.tap(f, seen.append, **options)(*args)
    chiplog.flush()
    return y, seen


@programs()
def test_entries_are_those_of_a_plain_python_run(name):
    """Exactly the entries that happened, once and in order."""
    _, seen = tapped(f_of(name), XS)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs()
def test_batches_hold_the_same_entries(name):
    """With `batch=True` as well."""
    _, seen = tapped(f_of(name), XS, batch=True)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs()
def test_outputs_are_unchanged_to_the_bit(name):
    """Tapping changes no output."""
    y, _ = tapped(f_of(name), XS)
    assert_equal_to_the_bit(y, jax.jit(f_of(name))(XS))


@programs()
def test_inside_of_jit_entries_and_outputs_are_the_same(name):
    """`jit(tap(f))` streams what `tap(f)` does."""
    seen = []
    y = jax.jit(chiplog.tap(f_of(name), seen.append))(XS)
    chiplog.flush()
    assert_equal_to_the_bit(y, jax.jit(f_of(name))(XS))
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs(reverse=True)
def test_the_forward_pass_streams_once(name):
    """Under `tap(grad(f))` and `jit(grad(tap(f)))` alike, with unchanged gradients."""

    def total(f):
        return lambda xs: sum(jnp.sum(y) for y in jax.tree.leaves(f(xs)))

    f = f_of(name)
    plain = jax.jit(jax.grad(total(f)))(XS)
    inside, seen = tapped(jax.grad(total(f)), XS)
    assert_equal_to_the_bit(inside, plain)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)

    seen.clear()
    outside = jax.jit(jax.grad(total(chiplog.tap(f, seen.append))))(XS)
    chiplog.flush()
    assert_equal_to_the_bit(outside, plain)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs(batched=True)
def test_under_vmap_each_lane_streams_its_own(name):
    """`vmap(tap(f))` hands over all lanes at once, each with the entries of f on that lane."""
    batch = jnp.stack([XS, XS[::-1]])
    f, seen = f_of(name), []
    jax.vmap(chiplog.tap(f, seen.append))(batch)
    chiplog.flush()
    logs = joined(seen)
    for i, xs in enumerate(batch):
        _, want = chiplog.spool(f)(xs)
        for key in want:
            check_one_lane(lane_of(logs, key, i, want), lane_histories(want, key))


def lane_of(logs, key, i, want):
    """Pick a lane of a key; one that does not depend on the lane is the same in all of them."""
    value, steps, mask = lane_histories(logs, key)
    if mask.ndim == want.valid[key].ndim + (key not in want.stacked):
        return value, steps, mask
    return jax.tree.map(lambda x: x[:, i], (value, steps, mask))
