"""Compare collected logs with what a plain-Python run of the same program logged."""

import itertools

import jax
import numpy as np


def lane_histories(logs, key):
    """Return the entries of a key as one list of (value, steps) per lane."""
    mask = np.asarray(logs.valid[key])
    steps = {name: by_key[key] for name, by_key in logs.steps.items() if key in by_key}
    value, steps = jax.tree.map(to_numpy, (logs[key], steps))
    if key not in logs.stacked:
        value, steps, mask = jax.tree.map(lambda x: x[None], (value, steps, mask))
    return value, steps, mask


def to_numpy(x):
    x = x if hasattr(x, "dtype") else np.asarray(x)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def assert_same_entries(logs, expected, lane_sizes=(), rtol=0.0):
    """Check logs against a list of (lane, key, value, steps), lane by lane and in order.

    A lane is a tuple of indices, outermost `vmap` first, below `lane_sizes`. A call that does not
    depend on the lane is logged once for all lanes, so it must be the same in all of them.
    """
    expected_keys = {key for _, key, _, _ in expected}
    assert set(logs) >= expected_keys, (set(logs), expected_keys)
    for key in logs:
        value, steps, mask = lane_histories(logs, key)
        mine = [entry for entry in expected if entry[1] == key]
        if not mine:
            assert not mask.any(), (key, value)
            continue
        depth = len(mine[0][0])
        sizes = lane_sizes[:depth]
        for lane in itertools.product(*map(range, sizes)):
            want = [(jax.tree.map(to_numpy, v), s) for l, _, v, s in mine if l == lane]
            got = lane_entries(value, steps, mask, lane, want, sizes)
            assert len(got) == len(want), (key, lane, got, want)
            for (v, s), (w, z) in zip(got, want, strict=True):
                jax.tree.map(lambda a, b: close(a, b, rtol, key), v, w)
                assert jax.tree.map(int, s) == jax.tree.map(int, z), (key, s, z)


def close(a, b, rtol, key):
    if a.dtype.kind in "fc" and rtol:
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=key)
    else:
        np.testing.assert_array_equal(a, b, err_msg=key)


def lane_entries(value, steps, mask, lane, want, sizes):
    """Pick the entries of one lane."""
    shape = np.shape(jax.tree.leaves(want[0][0])[0]) if want else ()
    lanes = jax.tree.leaves(value)[0].shape[1 : jax.tree.leaves(value)[0].ndim - len(shape)]
    places = embedding(lanes, tuple(sizes))
    mine = tuple(lane[i] for i in places)
    rows = mask if mask.ndim == 1 else mask[(slice(None), *mine)]

    def pick(x):
        return x[(slice(None), *mine)][rows]

    value, steps = jax.tree.map(pick, (value, steps))
    return [jax.tree.map(lambda x: x[i], (value, steps)) for i in range(int(rows.sum()))]


def embedding(few, many):
    """Find which of the lane axes an entry depends on."""
    return next(
        places
        for places in itertools.combinations(range(len(many)), len(few))
        if tuple(many[i] for i in places) == few
    )
