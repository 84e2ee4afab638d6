"""What it costs to look for the first NaN."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify

import spoolax

from .measure import _time, compile_seconds, race, verdict


def recurrence(x):
    return x * 0.999 + jnp.sin(x)


def waves(x):
    return jnp.sin(x) * 0.99 + 0.01 * x


def matmul(x):
    return jnp.tanh(x @ x) * 0.9 + 0.1


def train(params):
    def loss(params):
        x = jnp.ones((32, 64))
        for weights in params:
            x = jnp.tanh(x @ weights)
        return jnp.mean(x**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


# Name, what an iteration does, to what, how many there are, and the goal next to no alarm.
BODIES = [
    ("a scalar recurrence", recurrence, jnp.float32(0.5), 200_000, 2.0),
    ("matmul of 80 x 80", matmul, jnp.full((80, 80), 0.01), 1000, 1.05),
    ("matmul of 150 x 150", matmul, jnp.full((150, 150), 0.01), 300, 1.05),
    ("1e4 numbers", waves, jnp.linspace(0.0, 1.0, 10_000), 1000, 1.05),
    ("training 3 layers", train, [jnp.eye(64) * 0.5] * 3, 500, 1.05),
]


def scan(body, length):
    return lambda x: lax.scan(lambda x, _: (body(x), None), x, length=length)[0]


def while_loop(body, length):
    def step(carry):
        i, x = carry
        return i + 1, body(x)

    return lambda x: lax.while_loop(lambda carry: carry[0] < length, step, (0, x))[1]


def main():
    print("\nlooking for NaNs in programs without one")
    for loop in (scan, while_loop):
        for name, body, x, length, goal in BODIES:
            show(f"{loop.__name__} of {length}, {name}", loop(body, length), x, length, goal)


def show(name, f, x, length, goal):
    checked = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))
    calls = {
        "no alarm": functools.partial(jax.jit(f), x),
        "watch_nan": functools.partial(spoolax.watch_nan(f, print), x),
        "checkify.nan_checks": functools.partial(checked, x),
    }
    compiled = {
        "no alarm": lambda: f,
        "watch_nan": lambda: spoolax.watch_nan(f, print),
        "checkify.nan_checks": lambda: checkify.checkify(f, errors=checkify.nan_checks),
    }
    times = race(calls, after=spoolax.flush)
    base = times["no alarm"]
    print(f"{name} ({_time(base / length)} per iteration)")
    for what, t in times.items():
        compiling = _time(compile_seconds(compiled[what], x, rounds=3))
        judged = verdict(t / base, goal) if what == "watch_nan" else ""
        line = f"{_time(t):>9} {t / base:8.2f}x, compiled in {compiling}{judged}"
        print(f"  {what:<34} {line}")
