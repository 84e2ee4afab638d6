"""The cost of loggers to the thread that calls them, of progress bars, and of `simulate`."""

import contextlib
import functools
import io
import itertools
import json
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import jax_tqdm
from jax import lax

import spoolax
from spoolax import loggers
from spoolax.storage import WriterGroupConfig

from .measure import _time, race, verdict
from .tap import BODIES, advance, numbers, start

ROUNDS = 7


def main():
    main_thread()
    lines_of_json()
    a_loop_of_steps()
    progress_bars()
    driver()
    every_step()


def per_call(calls, times=300):
    """Median seconds of a call on this thread. The calls take turns."""
    found = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call(0)
            begun = time.perf_counter()
            for i in range(times):
                call(i)
            found[name].append((time.perf_counter() - begun) / times)
            jax.effects_barrier()
            spoolax.flush()
    return {name: statistics.median(each) for name, each in found.items()}


def main_thread():
    """The cost of a call that logs two or four scalars, outside of jit."""
    cost, norm = jnp.float32(1), jnp.float32(2)
    state = {name: jnp.float32(i) for i, name in enumerate("abcd")}

    def eager(i):
        jax.debug.callback(lambda *_: None, i, cost, norm)

    def ours(i):
        spoolax.log_iteration_async(i, cost, norm, verbose=2)

    with _silent():
        times = per_call({"jax.debug.callback, eagerly": eager, "log_iteration_async": ours})
    slow, quick = times.values()
    print("\none iteration printed from a Python loop: time of the calling thread")
    for name, t in times.items():
        print(f"  {name:<34} {_time(t):>9}")
    print(f"  {'':<34} {slow / quick:>8.1f}x cheaper  goal 20x")

    directory = pathlib.Path(tempfile.mkdtemp())
    some = {
        "NullLogger": loggers.NullLogger(),
        "PrintLogger": loggers.PrintLogger(file=io.StringIO()),
        "JsonlLogger": loggers.JsonlLogger(directory / "log.jsonl", "w"),
        "RingBufferLogger": loggers.RingBufferLogger(100),
        "TqdmLogger": loggers.TqdmLogger(10**6, lambda s: {"a": s["a"]}, file=io.StringIO()),
        "JsonlLogger, every=100": loggers.JsonlLogger(directory / "few.jsonl", "w", every=100),
        "JsonlLogger, view of one scalar": loggers.JsonlLogger(
            directory / "one.jsonl", "w", view=lambda s: {"a": s["a"]}
        ),
    }
    with loggers.CompositeLogger(*some.values()):
        calls = {
            name: functools.partial(lambda one, i: one.log(state, i), one)
            for name, one in some.items()
        }
        calls["float() of each, by hand"] = lambda i: [float(x) for x in state.values()]
        times = per_call(calls)
    print("\nlog(state, step) of four scalars that are ready: time of the calling thread")
    for name, t in times.items():
        print(f"  {name:<34} {_time(t):>9}")


def lines_of_json():
    """Entries of four scalars in a file, compared with `json.dumps` and a flush for each."""
    n, directory = 20000, pathlib.Path(tempfile.mkdtemp())

    def program(x):
        def body(x, i):
            x = 0.999 * x + 0.001
            spoolax.log({"a": x, "b": x + 1, "c": x + 2, "d": x + 3}, step=i)
            return x, None

        return lax.scan(body, x, jnp.arange(n))[0]

    state = {name: jnp.float32(i / 7) for i, name in enumerate("abcd")}
    numbers = {name: float(x) for name, x in state.items()}

    def by_hand(get):
        with open(directory / "by_hand.jsonl", "w") as file:
            for i in range(n):
                file.write(json.dumps({"_step": i, "_time": time.time(), **get()}) + "\n")
                file.flush()

    with loggers.JsonlLogger(directory / "log.jsonl", "w") as logger:
        tapped = logger.tap(program)

        def tap():
            tapped(1.0)
            spoolax.flush()

        def loop(state):
            for i in range(n):
                logger.log(state, i)
            spoolax.flush()

        times = race(
            {
                "json.dumps of numbers": lambda: by_hand(lambda: numbers),
                "JsonlLogger, a tapped scan": tap,
                "JsonlLogger, a loop, numbers": lambda: loop(numbers),
                "float() and json.dumps of arrays": lambda: by_hand(
                    lambda: {name: float(x) for name, x in state.items()}
                ),
                "JsonlLogger, a loop, arrays": lambda: loop(state),
            },
            rounds=ROUNDS,
        )
    base = times["json.dumps of numbers"]
    print(f"\n{n} entries of four scalars as JSON, until they are with the operating system")
    by_floats = times["float() and json.dumps of arrays"]
    for name, t in times.items():
        goal = verdict(t / by_floats, 1.0) if name == "JsonlLogger, a loop, arrays" else ""
        print(
            f"  {name:<34} {_time(t / n):>9} each {t / base:7.2f}x of json.dumps of numbers"
            f" {t / by_floats:7.2f}x of arrays{goal}"
        )


def a_loop_of_steps():
    """A step of about a millisecond, and its cost logged every time."""
    size = 256

    @jax.jit
    def step(x):
        x = lax.fori_loop(0, 2, lambda i, x: jnp.tanh(x @ x) * 0.5 + 0.1, x)
        return x, jnp.sum(x)

    def loop(report, steps=100):
        x = jnp.full((size, size), 0.01)
        for i in range(steps):
            x, cost = step(x)
            report(i, cost)
        return x

    def async_report(i, cost):
        spoolax.log_iteration_async(i, cost, cost, verbose=1)

    seen = []
    calls = {
        "nothing": lambda: loop(lambda i, cost: None),
        "float(cost)": lambda: loop(lambda i, cost: seen.append(float(cost))),
        "log_iteration_async, verbose=1": lambda: loop(async_report),
        "log_iteration_async, verbose=2": lambda: loop(
            lambda i, cost: spoolax.log_iteration_async(i, cost, cost, verbose=2)
        ),
    }
    with _silent():
        times = race(calls, rounds=11, after=spoolax.flush)
    base, by_hand = times["nothing"], times["float(cost)"]
    print(f"\na Python loop of steps of {_time(base / 100)}, logging each")
    for name, t in times.items():
        print(
            f"  {name:<34} {_time(t / 100):>9} a step {100 * (t / base - 1):+7.1f}% of nothing "
            f"{100 * (t / by_hand - 1):+7.1f}% of float(cost)"
        )
    print(f"  {'':<34} goal: under 2% over float(cost)")


def progress_bars():
    """A bar for a scan, compared with jax-tqdm with its defaults."""
    for name, size, length, _ in BODIES:
        x = start(size)

        def plain(x, size=size, length=length):
            return lax.scan(lambda x, _: (advance(x, size), None), x, jnp.arange(length))[0]

        def other(x, size=size, length=length):
            @jax_tqdm.scan_tqdm(length, tqdm_type="std", file=io.StringIO())
            def body(x, i):
                return advance(x, size), None

            return lax.scan(body, x, jnp.arange(length))[0]

        calls = {
            "no bar": functools.partial(jax.jit(plain), x),
            "spoolax.progress": functools.partial(spoolax.progress(plain, file=_Terminal()), x),
            "jax-tqdm": functools.partial(jax.jit(other), x),
        }
        times = race(calls, rounds=7, after=_settle)
        base = times["no bar"]
        print(f"\na progress bar for a scan of {length}, {name} body")
        for what, t in times.items():
            print(f"  {what:<34} {_time(t):>9} {t / base:7.2f}x of no bar")


def driver():
    """Steps in `simulate`, compared with a bare Python loop of jitted steps."""
    for name, size in (("cheap", 0), ("10 us", 64), ("100 us", 150)):
        n = 500

        def step(key, x, size=size):
            return advance(x, size) + 0.0 * jax.random.uniform(key)

        key = jax.random.key(0)
        bare_step = jax.jit(
            lambda key, i, x, step=step: step(jax.random.fold_in(key, i), x), donate_argnums=2
        )

        def bare(bare_step=bare_step, key=key, size=size):
            x = start(size) + 0.0
            for i in range(n):
                x = bare_step(key, i, x)
            return x

        def driven(step=step, key=key, size=size, **options):
            return spoolax.simulate(step, start(size), n, key=key, **options)

        def logged(driven=driven, **options):
            file = pathlib.Path(tempfile.mkdtemp()) / "log.jsonl"
            return driven(logger=loggers.JsonlLogger(file, "w", view=_first, **options), inner=100)

        calls = {
            "a Python loop of jitted steps": bare,
            "simulate": driven,
            "simulate, inner=10": functools.partial(driven, inner=10),
            "simulate, inner=100": functools.partial(driven, inner=100),
            "simulate, JsonlLogger every step": logged,
            "simulate, JsonlLogger every 50": functools.partial(logged, every=50),
        }
        times = race(calls, rounds=7, after=spoolax.flush)
        base = times["a Python loop of jitted steps"]
        print(f"\n{n} steps of a simulation, {name} body")
        for what, t in times.items():
            print(f"  {what:<34} {_time(t / n):>9} a step {t / base:7.2f}x of the Python loop")


def every_step(steps=2000, inner=100):
    """Files that get a row for every step of about 30 us, compared with no logger at all.

    They are open, and everything has been handed over at the end.
    """
    size, key, begin = 96, jax.random.key(0), itertools.count(0, steps)
    directory = pathlib.Path(tempfile.mkdtemp())
    schema = {"numbers": WriterGroupConfig(numbers)}

    def step(key, x):
        return advance(x, size) + 0.0 * jax.random.uniform(key)

    def run(logger=None):
        x = spoolax.simulate(
            step, start(size), steps, key=key, logger=logger, inner=inner, start_step=next(begin)
        )
        spoolax.flush()
        return x

    some = {
        "HDF5StorageWriter": loggers.HDF5StorageWriter(directory / "a.h5", schema, start(size)),
        "SaveLogger": loggers.SaveLogger(directory / "b.h5", view=numbers),
        "JsonlLogger": loggers.JsonlLogger(directory / "c.jsonl", "w", view=numbers),
    }
    with contextlib.ExitStack() as stack:
        calls = {name: functools.partial(run, stack.enter_context(x)) for name, x in some.items()}
        times = race({"no logger": run, **calls}, rounds=15)
    base = times["no logger"]
    print(f"\n{steps} steps of {_time(base / steps)}, inner={inner}, four numbers of each logged")
    for name, t in times.items():
        goal = verdict(t / base, 1.2) if name in ("HDF5StorageWriter", "SaveLogger") else ""
        print(f"  {name:<34} {_time(t / steps):>9} a step {t / base:7.2f}x of no logger{goal}")


def _first(x):
    return {"x": jnp.ravel(x)[0]}


def _settle():
    jax.effects_barrier()
    spoolax.flush()


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@contextlib.contextmanager
def _silent():
    """Discard what is printed meanwhile."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
        spoolax.flush()
