"""What options of a listener make of the entries that it hears, as plain lists."""

import collections

import numpy as np

REDUCE = {
    "sum": lambda xs: np.sum(xs, axis=0),
    "min": lambda xs: np.min(xs, axis=0),
    "max": lambda xs: np.max(xs, axis=0),
    "mean": lambda xs: np.mean(np.asarray(xs, np.float64), axis=0),
    "std": lambda xs: np.std(np.asarray(xs, np.float64), axis=0),
    "first": lambda xs: xs[0],
    "last": lambda xs: xs[-1],
}


def histories(entries):
    """Sort entries by key and lane."""
    found = collections.defaultdict(list)
    for entry in entries:
        found[entry.key, entry.lane].append(entry)
    return found


def windowed(history, interval, reduce):
    """Thin out or reduce the entries of one key and lane. Return value, steps and loops."""
    if reduce is None:
        kept = [e for e in history if not (interval and e.loop) or e.count % interval == 0]
        return [(e.value, e.steps, e.loops) for e in kept]
    windows = collections.defaultdict(list)
    for number, entry in enumerate(history):
        if interval is None:
            windows["all"].append(entry)
        elif not entry.loop:
            windows[number].append(entry)
        else:
            windows[entry.loop, entry.count // interval].append(entry)
    return [reduced(window, reduce) for window in windows.values()]


def reduced(window, how):
    if callable(how):
        value = _map(lambda *xs: _folded(how, xs), *(entry.value for entry in window))
    else:
        value = _map(lambda *xs: REDUCE[how](xs), *(entry.value for entry in window))
    return value, window[0 if how == "first" else -1].steps, None


def _folded(how, xs):
    total = xs[0]
    for x in xs[1:]:
        total = np.asarray(how(total, x))
    return total


def _map(function, *values):
    if isinstance(values[0], dict):
        return {
            "a": [function(*(value["a"][0] for value in values))],
            "b": function(*(value["b"] for value in values)),
        }
    return function(*values)


def thinned(rows, capacity):
    """Every row that a stride leaves which is the smallest power of two so that they fit."""
    stride = 1
    while -(-len(rows) // stride) > capacity:
        stride *= 2
    return rows[::stride]


def limited(rows, capacity, overflow):
    """The rows of a key that are kept."""
    if capacity is None:
        return rows
    match overflow:
        case "first":
            return rows[:capacity]
        case "thin":
            return thinned(rows, capacity)
    return rows[-capacity:]
