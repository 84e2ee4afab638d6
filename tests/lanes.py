"""Compare collected logs with what a plain-Python run of the same program logged."""

import itertools

import jax
import numpy as np

import spoolax


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


def joined(stream):
    """Join what a callback of `tap` got: all entries of a key along one axis, as `spool` does."""
    rows = {}
    for logs in stream:
        for key in logs:
            one = logs.series(key)
            steps = dict(one.steps)
            rows.setdefault(key, []).append((one.value, steps, one.mask, key in logs.stacked))
    logs = {key: _stacked([_entries(*row) for row in rows[key]]) for key in rows}
    return spoolax.LogDict(
        {key: value for key, (value, _, _) in logs.items()},
        steps=_by_name({key: steps for key, (_, steps, _) in logs.items()}),
        valid={key: mask for key, (_, _, mask) in logs.items()},
        stacked=logs,
    )


def _entries(value, steps, mask, stacked):
    value, steps, mask = jax.tree.map(to_numpy, (value, steps, np.asarray(mask)))
    if not stacked:
        value, steps, mask = jax.tree.map(lambda x: x[None], (value, steps, mask))
    return value, steps, mask


def _stacked(rows):
    lanes = max((mask.shape[1:] for _, _, mask in rows), key=lambda s: (len(s), s))

    def widen(x, few):
        """Give an array, whose second axes are `few` lanes, all of them."""
        if few == lanes:
            return x
        if len(few) == len(lanes):  # As of `lax.map`, whose last batch is smaller.
            pad = [(0, 0), *((0, m - n) for n, m in zip(few, lanes, strict=True))]
            return np.pad(x, [*pad, *[(0, 0)] * (x.ndim - len(pad))])
        places = embedding(few, lanes)
        new = [1 + i for i in range(len(lanes)) if i not in places]
        x = np.expand_dims(x, new)
        return np.broadcast_to(x, (x.shape[0], *lanes, *x.shape[1 + len(lanes) :]))

    wide = [jax.tree.map(lambda x: widen(x, row[2].shape[1:]), row) for row in rows]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *wide)


def _by_name(steps):
    names = {name for by_name in steps.values() for name in by_name}
    return {name: {k: by[name] for k, by in steps.items() if name in by} for name in names}


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
