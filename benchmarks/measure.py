"""Measure alternatives side by side: interleaved, in one process, as medians of ratios."""

import statistics
import time

import jax

ROUNDS = 15


def seconds(call, repeat):
    start = time.perf_counter()
    for _ in range(repeat):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / repeat


def compare(baseline, other, *, rounds=ROUNDS, target=0.05):
    """Return (seconds of the baseline, seconds of the other, ratio), each a median."""
    jax.block_until_ready((baseline(), other()))
    repeat = max(1, int(target / max(seconds(baseline, 1), 1e-7)))
    pairs = []
    for number in range(rounds):
        calls = (baseline, other) if number % 2 else (other, baseline)
        times = {call: seconds(call, repeat) for call in calls}
        pairs.append((times[baseline], times[other]))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def memory(compiled):
    """Bytes that a compiled program needs besides its arguments."""
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def compile_seconds(make, *args, rounds=7):
    """Median time to trace, lower and compile a function that `make` makes anew."""
    times = []
    for _ in range(rounds):
        jax.clear_caches()
        f = make()
        start = time.perf_counter()
        jax.jit(f).lower(*args).compile()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def verdict(ratio, goal, unit="x"):
    """Say whether a ratio, or a figure with another unit, is within its goal."""
    return f"  goal {goal}{unit}: {'met' if ratio <= goal else 'MISSED'}"


def show(name, baseline, other, ratio, goal=""):
    print(f"  {name:<46} {_time(baseline):>9} {_time(other):>9} {ratio:>7.2f}x  {goal}")


def _time(t):
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if t >= size:
            return f"{t / size:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"


def race(calls, *, rounds=ROUNDS, target=0.02, after=lambda: None):
    """Time several calls in turn; return their median seconds.

    `after` runs after each, and is not timed.
    """
    repeats = {}
    for name, call in calls.items():
        jax.block_until_ready(call())
        after()
        repeats[name] = max(1, int(target / max(seconds(call, 1), 1e-7)))
        after()
    times = {name: [] for name in calls}
    for number in range(rounds):
        names = list(calls)
        for name in names if number % 2 else reversed(names):
            # One by one: calls that follow each other compete with what the last one left behind.
            for _ in range(repeats[name]):
                times[name].append(seconds(calls[name], 1))
                after()
    return {name: statistics.median(each) for name, each in times.items()}
