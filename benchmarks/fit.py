"""Fits: against SciPy, nlsq and optimistix; many, large, watched, and the first in a process."""

import contextlib
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from spoolax.fit import curve_fit, curve_fit_batch

from .measure import _time, race, verdict

ROUNDS = 7


def main():
    logging.disable(logging.CRITICAL)  # Some of the other packages log a lot.
    warm()
    new_lengths()
    many()
    watched()
    large()
    first()


def model(x, a, b, c):
    return a * jnp.exp(-b * x) + c


def by_numpy(x, a, b, c):
    return a * np.exp(-b * x) + c


def measured(points, seed=0):
    rng, x = np.random.default_rng(seed), np.linspace(0, 4, points)
    return x, by_numpy(x, 2.5, 1.3, 0.5) + 0.05 * rng.normal(size=points)


def table(title, times, base, goal=None):
    print(f"\n{title}")
    for name, t in times.items():
        ratio = t / times[base]
        said = verdict(ratio, goal) if goal and name != base else ""
        print(f"  {name:<32} {_time(t):>9} {ratio:>8.2f}x{said}")


def peers(points):
    """All ways to fit some points, by name."""
    x, y = measured(points)
    calls = {
        "scipy lm": lambda: scipy.optimize.curve_fit(by_numpy, x, y, [1, 1, 1]),
        "scipy trf": lambda: scipy.optimize.curve_fit(by_numpy, x, y, [1, 1, 1], method="trf"),
        "spoolax": lambda: curve_fit(model, x, y, [1, 1, 1]),
        "spoolax, bounds": lambda: curve_fit(model, x, y, [1, 1, 1], bounds=(0, 9)),
    }
    with contextlib.suppress(ImportError):
        import nlsq

        fitter = nlsq.CurveFit()
        calls["nlsq.CurveFit"] = lambda: fitter.curve_fit(model, x, y, p0=np.ones(3))
    with contextlib.suppress(ImportError):
        calls["optimistix, jitted"] = optimistix_of(x, y)
    return calls


def optimistix_of(x, y):
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)

    @jax.jit
    def solve(x, y):
        def residuals(p, args):
            return model(args[0], *p) - args[1]

        with jax.enable_x64(True):
            return optimistix.least_squares(residuals, solver, jnp.ones(3, y.dtype), (x, y)).value

    def call():
        with jax.enable_x64(True):
            return np.asarray(solve(x, y))

    return call


def warm():
    for points in (100, 10_000):
        calls = peers(points)
        times = race(calls, rounds=ROUNDS, target=0.02)
        table(f"A fit of {points} points, already compiled", times, "scipy lm")


def new_lengths():
    """A new length in each call."""
    lengths = iter(range(1000, 2000, 3))
    calls = {
        "spoolax, the same length": lambda: curve_fit(model, *measured(1000), [1, 1, 1]),
        "spoolax": lambda: curve_fit(model, *measured(next(lengths)), [1, 1, 1]),
        "scipy lm": lambda: scipy.optimize.curve_fit(by_numpy, *measured(next(lengths))),
    }
    for points in (1000, 1250, 1500, 1750, 2000):  # A few programs serve all lengths.
        curve_fit(model, *measured(points), [1, 1, 1])
    with contextlib.suppress(ImportError):
        calls["optimistix, jitted"] = lambda: optimistix_of(*measured(next(lengths)))()
    with contextlib.suppress(ImportError):
        import nlsq

        fitter = nlsq.CurveFit()
        calls["nlsq.CurveFit"] = lambda: fitter.curve_fit(
            model, *measured(next(lengths)), p0=np.ones(3)
        )
    times = race(calls, rounds=5, target=0.0)
    table("A fit of a new length, from 1000 to 2000 points", times, "spoolax, the same length")


def many(fits=1000):
    rng = np.random.default_rng(0)
    x = np.linspace(0, 4, 100)
    true = rng.uniform([1, 0.5, 0], [3, 2, 1], (fits, 3))
    ys = by_numpy(x[None], *true.T[:, :, None]) + 0.05 * rng.normal(size=(fits, 100))
    calls = {
        "a loop of scipy lm": lambda: [
            scipy.optimize.curve_fit(by_numpy, x, y, [1, 1, 1]) for y in ys[: fits // 10]
        ],
        "spoolax.fit.curve_fit_batch": lambda: curve_fit_batch(model, x, ys, [1, 1, 1]),
    }
    with contextlib.suppress(ImportError):
        import optimistix

        solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)

        def one(y):
            fun = lambda p, _: model(x, *p) - y  # noqa: E731
            return optimistix.least_squares(fun, solver, jnp.ones(3, y.dtype), throw=False).value

        batched = jax.jit(jax.vmap(one))

        def call():
            with jax.enable_x64(True):
                return np.asarray(batched(ys))

        calls["optimistix, jitted vmap"] = call
    times = race(calls, rounds=ROUNDS, target=0.0)
    counts = {"a loop of scipy lm": fits // 10}
    each = {name: t / counts.get(name, fits) for name, t in times.items()}
    table(f"{fits} fits of 100 points, each", each, "spoolax.fit.curve_fit_batch")


def watched():
    """What it costs to print all iterations, or to keep them."""
    for points, goal in ((100, 1.3), (10_000, 1.05), (100_000, 1.05)):
        x, y = measured(points)
        options = {"silent": {}, "verbose=2": {"verbose": 2}, "history=True": {"history": True}}
        calls = {
            name: lambda given=given: curve_fit(model, x, y, [1, 1, 1], **given)
            for name, given in options.items()
        }
        with contextlib.redirect_stdout(io.StringIO()):
            times = race(calls, rounds=15, target=0.03)
        table(f"A fit of {points} points that is watched", times, "silent", goal)


LARGE = """
import json, resource, sys, threading, time
import numpy as np
which, points = sys.argv[1], int(sys.argv[2])
x = np.linspace(0, 4, points)
y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.1 * x
y += 0.05 * np.random.default_rng(0).normal(size=points)
numpy = np
if which != "scipy":
    import jax.numpy as numpy
def model(x, a, b, c, d):
    return a * numpy.exp(-b * x) + c + d * x
if which == "scipy":
    import scipy.optimize
    fit = lambda: scipy.optimize.curve_fit(model, x, y, [1, 1, 1, 1])
elif which == "nlsq":
    import nlsq
    fit = lambda: nlsq.curve_fit(model, x, y, p0=[1, 1, 1, 1])
else:
    from spoolax.fit import curve_fit
    fit = lambda: curve_fit(model, x, y, [1, 1, 1, 1])
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before, peak, over = memory(), [0], threading.Event()
def watch():
    while not over.wait(0.005):
        peak[0] = max(peak[0], memory())
watcher = threading.Thread(target=watch)
watcher.start()
times = []
for _ in range(2):
    begun = time.perf_counter()
    fit()
    times.append(time.perf_counter() - begun)
over.set()
watcher.join()
print(json.dumps([*times, peak[0] - before]))
"""


def python(code, *args, **env):
    run = [sys.executable, "-W", "ignore", "-c", code, *args]
    out = subprocess.run(run, env={**os.environ, **env}, capture_output=True, check=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def large():
    print("\nLarge data, 4 parameters: the first fit, the second, and the memory above the data")
    for points in (10**6, 10**7):
        for name in ("scipy", "nlsq", "spoolax"):
            with contextlib.suppress(subprocess.CalledProcessError):
                off = {"SPOOLAX_DISABLE_PERSISTENT_CACHE": "1"}
                one, two, memory = python(LARGE, name, str(points), **off)
                print(
                    f"  {points:.0e} points, {name:<10} {_time(one):>9} {_time(two):>9}"
                    f" {memory / 1e6:>8.0f} MB"
                )


FIRST = """
import json, sys, time
import numpy as np
if sys.argv[1] == "jax":
    import jax.numpy
elif sys.argv[1] == "nlsq":
    import jax.numpy as jnp
    from nlsq import curve_fit
elif sys.argv[1] == "spoolax":
    import jax.numpy as jnp
    from spoolax.fit import curve_fit
if sys.argv[1] != "jax":
    x = np.linspace(0, 4, 100)
    y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=100)
    curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, y, p0=[1, 1, 1])
print(time.time())
"""


def first():
    """From the start of the process to the first result."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        kinds = {
            "import jax, nothing else": ("jax", "1"),
            "nlsq": ("nlsq", "1"),
            "spoolax, without a cache": ("spoolax", "1"),
            "spoolax, a second process": ("spoolax", "0"),
        }
        for number in range(6):
            for name, (which, off) in kinds.items():
                env = {"XDG_CACHE_HOME": cache, "SPOOLAX_DISABLE_PERSISTENT_CACHE": off}
                begun = time.time()
                with contextlib.suppress(subprocess.CalledProcessError):
                    end = python(FIRST, which, **env)
                    if number:
                        found.setdefault(name, []).append(end - begun)
    times = {name: statistics.median(each) for name, each in found.items()}
    base = "nlsq" if "nlsq" in times else "spoolax, without a cache"
    table("From the start of the process to the first result", times, base)
