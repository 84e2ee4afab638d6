"""What it costs to look for the first NaN."""

import functools

import jax

import spoolax

from .measure import _time, race
from .tap import BODIES, loop, start


def main():
    print(
        "\nwatch_nan, on programs without a NaN (goal: 1.5x, and 1.1x for bodies of 10 us and more)"
    )
    for kind in ("scan", "while"):
        for name, size, length, _ in BODIES:
            x, f = start(size), loop(kind, size, length)
            calls = {
                "no logging": functools.partial(jax.jit(f), x),
                "watch_nan": functools.partial(spoolax.watch_nan(f, print), x),
            }
            times = race(calls, after=spoolax.flush)
            base, ours = times["no logging"], times["watch_nan"]
            what = f"{kind} of {length}, {name} body"
            print(f"  {what:<34} {_time(base):>9} {_time(ours):>9} {ours / base:8.2f}x")
