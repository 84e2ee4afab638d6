"""What it costs to see four numbers of every iteration of a loop, while it runs."""

import functools
import statistics
import time

import jax
import jax.numpy as jnp
import jax_tqdm
import jaxtap
from jax import lax
from jax.experimental import io_callback

import spoolax

from .measure import _time, compile_seconds, race, verdict

# Name, size of the matrix in the body (0: a few numbers only), iterations, and how many of them for
# what calls the host in each.
BODIES = [
    ("cheap", 0, 400, 400),
    ("cheap", 0, 20000, 400),
    ("cheap", 0, 200000, 400),
    ("10 us", 64, 1000, 200),
    ("100 us", 150, 200, 100),
]


GOALS = {400: 2.0, 20000: 1.15, 200000: 1.1}  # Of outputs by hand, by the length of a cheap scan.


def count(*_, **__):
    pass


def advance(x, size):
    if not size:
        return x * 0.999 + jnp.sin(x)
    return jnp.tanh(x @ x) * 0.9 + 0.1


def numbers(x):
    first = jnp.ravel(x)[0]
    return {"a": first, "b": first * 2, "c": first + 1, "d": first * first}


def loop(kind, size, length, report=lambda values, i: None, outputs=False):
    """A loop that reports four numbers of every iteration, one way or another."""

    def scan(x):
        def body(x, i):
            x = advance(x, size)
            report(numbers(x), i)
            return x, numbers(x) if outputs else None

        return lax.scan(body, x, jnp.arange(length))

    def while_loop(x):
        def body(carry):
            i, x = carry
            x = advance(x, size)
            report(numbers(x), i)
            return i + 1, x

        return lax.while_loop(lambda carry: carry[0] < length, body, (0, x))[1]

    return scan if kind == "scan" else while_loop


def tqdm_loop(size, length):
    def scan(x):
        @jax_tqdm.scan_tqdm(length, tqdm_type="std", file=_Nowhere(), print_rate=1)
        def body(x, i):
            return advance(x, size), None

        return lax.scan(body, x, jnp.arange(length))

    return scan


class _Nowhere:
    def write(self, _):
        pass

    def flush(self):
        pass


def start(size):
    return jnp.ones((size, size)) * 0.01 if size else jnp.float32(0.5)


def to_debug(values, i):
    jax.debug.callback(count, values, i)


def to_io(values, i):
    io_callback(count, None, values, i)


def to_log(values, i):
    spoolax.log(values, step=i)


def four(leaves):
    return numbers(leaves[-1])


def main():
    for kind in ("scan", "while"):
        for name, size, length, few in BODIES:
            against_scan_outputs(kind, name, size, length)
            if length not in (400, 20000):  # The same, but for the length.
                against_callbacks(kind, name, size, few)
    compile_times()


def against_scan_outputs(kind, name, size, length):
    x = start(size)
    logging = loop(kind, size, length, lambda values, i: spoolax.log(values))
    calls = {"no logging": functools.partial(jax.jit(loop(kind, size, length)), x)}
    if kind == "scan":
        outputs = jax.jit(loop(kind, size, length, outputs=True))
        calls["scan outputs by hand"] = functools.partial(outputs, x)
    calls["tap"] = functools.partial(spoolax.tap(logging, count), x)
    calls["tap, batch=True"] = functools.partial(spoolax.tap(logging, count, batch=True), x)
    for call in calls.values():  # How long they take is known from the third call on.
        for _ in range(3):
            jax.block_until_ready(call())
            spoolax.flush()
    times = race(calls, after=spoolax.flush)
    base = times["no logging"]
    hand = times.get("scan outputs by hand")
    goal = GOALS.get(length) if hand and not size else None
    print(f"\n{kind} of {length}, {name} body ({_time(base / length)} per iteration)")
    for what, t in times.items():
        ratio = f"{t / base:8.2f}x of no logging"
        if hand:
            ratio += f"{t / hand:8.2f}x of outputs by hand"
        if goal and what == "tap":
            ratio += verdict(t / hand, goal)
        print(f"  {what:<34} {_time(t):>9} {_time(max(0, t - base) / length):>9} per entry {ratio}")


def against_callbacks(kind, name, size, length):
    """Calls of the host in every iteration are so slow that a short loop has to do."""
    x = start(size)
    plain = loop(kind, size, length)
    calls = {"no logging": functools.partial(jax.jit(plain), x)}
    calls["tap"] = functools.partial(
        spoolax.tap(loop(kind, size, length, lambda values, i: spoolax.log(values)), count), x
    )
    calls["jax.debug.callback"] = functools.partial(jax.jit(loop(kind, size, length, to_debug)), x)
    calls["io_callback"] = functools.partial(jax.jit(loop(kind, size, length, to_io)), x)
    if kind == "scan":
        calls["jax-tqdm, every iteration"] = functools.partial(jax.jit(tqdm_loop(size, length)), x)
    for every in (1, 10, 100):
        verbose = jaxtap.verbose(plain, on_step=count, select=four, sample_every=every)
        calls[f"jax-tap, sample_every={every}"] = functools.partial(jax.jit(verbose), x)
    times = race(calls, rounds=5, after=settle)
    base = times["no logging"]
    print(f"  and of {length}:")
    for what, t in times.items():
        per_entry = _time(max(0, t - base) / length)
        print(f"  {what:<34} {_time(t):>9} {per_entry:>9} per iteration {t / base:8.2f}x")


def settle():
    jax.effects_barrier()
    spoolax.flush()


def compile_times():
    print("\nthe first call (trace, lower, compile, run), next to outputs by hand")
    for name, size, length, _ in BODIES[2:]:
        x = start(size)
        by_hand = loop("scan", size, length, outputs=True)
        logging = loop("scan", size, length, lambda values, i: spoolax.log(values))
        hand, ours = first_calls(by_hand, logging, x)
        goal = f"  goal +40 ms: {'met' if ours - hand <= 0.04 else 'MISSED'}"
        more = f"+{_time(max(0.0, ours - hand))}"
        print(f"  {f'scan, {name} body':<46} {_time(hand):>9} {_time(ours):>9} {more:>9}{goal}")
    programs = {
        f"training {layers} layers": (
            functools.partial(train, lambda values: None),
            functools.partial(train, spoolax.log),
            [jnp.eye(32)] * layers,
            1.3,
        )
        for layers in (4, 16)
    }
    programs["512 vmapped lanes"] = (
        jax.vmap(loop("scan", 0, 1000, outputs=True)),
        jax.vmap(loop("scan", 0, 1000, lambda values, i: spoolax.log(values))),
        jnp.linspace(0.0, 1.0, 512),
        1.5,
    )
    for name, (by_hand, logging, x, goal) in programs.items():
        hand, ours = first_calls(by_hand, logging, x)
        said = verdict(ours / hand, goal)
        print(f"  {name:<46} {_time(hand):>9} {_time(ours):>9} {ours / hand:8.2f}x{said}")
    called = jax.vmap(loop("scan", 0, 1000, to_debug))
    seconds = compile_seconds(lambda: called, x, rounds=1)
    print(f"  {'512 vmapped lanes, jax.debug.callback':<46} {'':>9} {_time(seconds):>9}")


def first_calls(by_hand, logging, x):
    """Median times of the first call of two programs, each made anew, in turn."""
    makes = {"hand": lambda: jax.jit(by_hand), "tap": lambda: spoolax.tap(logging, count)}
    times = {name: [] for name in makes}
    for _ in range(9):
        for name, make in makes.items():
            jax.clear_caches()
            times[name].append(seconds_of_call(make(), x))
            spoolax.flush()
    return [statistics.median(each[1:]) for each in times.values()]


def seconds_of_call(f, x):
    start = time.perf_counter()
    jax.block_until_ready(f(x))
    return time.perf_counter() - start


def train(report, params):
    """Something of the size that people compile. What nobody takes is returned."""

    def loss(params, x):
        for weights in params:
            x = jnp.tanh(x @ weights)
        return jnp.mean(x**2)

    def step(params, i):
        value, grads = jax.value_and_grad(loss)(params, jnp.ones((8, 32)))
        norms = [jnp.linalg.norm(g) for g in grads]
        values = {"loss": value, "norm": sum(norms), "first": norms[0], "last": norms[-1]}
        outputs = values if report(values) is None else None
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], outputs

    return lax.scan(step, params, jnp.arange(1000))
