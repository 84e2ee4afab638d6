"""What a listener got, as a list for each key and lane, like what is expected."""

import collections
import itertools

import jax
import numpy as np
from lanes import embedding, to_numpy

from fuzz.grammar import sizes_of


def collected(logs, options):
    """Take apart what `spool` returned."""
    return _histories([logs], options.get("prefix", ""), lambda logs: None)


def streamed(stream, options):
    """Take apart what a callback of `tap` got; for single entries, with loops and iterations."""
    return _histories(stream, options.get("prefix", ""), loops_of)


def laneless(stream):
    """The keys of entries without lanes, in the order in which they came."""
    return [key for logs in stream for key in logs if not sizes_of(key)]


def loops_of(logs):
    """The kinds of loops around an entry, and the iteration of each."""
    if logs.stacked:
        return None  # A batch may have entries of several loops.
    path = [part.partition("[")[0] for part in logs.origin.path.split("/")]
    return tuple(zip(path, logs.origin.iteration, strict=True)) if logs.origin.path else ()


def _histories(stream, prefix, about):
    found = collections.defaultdict(list)
    for logs in stream:
        for key in logs:
            assert key.startswith(prefix)
            series = logs.series(key)
            mask = np.asarray(series.mask)
            value, steps = jax.tree.map(to_numpy, (series.value, dict(series.steps)))
            if key not in logs.stacked:
                value, steps, mask = jax.tree.map(lambda x: x[None], (value, steps, mask))
            sizes = sizes_of(key)
            lanes = jax.tree.leaves(value)[0].shape[1 : 1 + series.lanes]
            places = embedding(lanes, sizes)
            mask = np.broadcast_to(
                mask.reshape(mask.shape + (1,) * (1 + len(lanes) - mask.ndim)), (len(mask), *lanes)
            )
            for row, lane in itertools.product(range(len(mask)), _lanes(sizes)):
                index = (row, *(lane[i] for i in places))
                if mask[index]:
                    one, at = jax.tree.map(lambda x: x[index], (value, steps))
                    found[key.removeprefix(prefix), lane].append((one, at, about(logs)))
    return found


def _lanes(sizes):
    return itertools.product(*map(range, sizes))
