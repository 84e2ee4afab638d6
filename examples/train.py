"""Train a small network in one jitted `lax.scan`, watch it live, and look at what it logged.

Nothing is carried out of the loop by hand: the training step calls `chiplog.log`. `chiplog.tap`
streams that to a callback while the compiled loop runs, and `chiplog.spool` returns it.
"""

import math
import sys

import jax
import jax.numpy as jnp
import plotext
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import chiplog

STEPS = 20_000
BARS = "▁▂▃▄▅▆▇█"


def predict(params, x):
    for weights, bias in params[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return (x @ weights + bias)[:, 0]


def loss(params, x, y, i):
    error = predict(params, x) - y
    chiplog.log({"worst": jnp.max(jnp.abs(error))}, tags="debug", step=i)
    return jnp.mean(error**2)


def train(key):
    key, *keys = jax.random.split(key, 4)
    sizes = [1, 32, 32, 1]
    params = [
        (jax.random.normal(k, (n, m)) / jnp.sqrt(n), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    x = jnp.linspace(-2, 2, 128)[:, None]
    y = jnp.sin(3 * x[:, 0])

    def step(carry, i):
        params, momentum = carry
        value, grads = jax.value_and_grad(loss)(params, x, y, i)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        rate = 0.02 * jnp.cos(0.5 * jnp.pi * i / STEPS)
        chiplog.log({"loss": value, "grad norm": norm, "rate": rate}, step=i)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
        return (params, momentum), None

    start = (params, jax.tree.map(jnp.zeros_like, params))
    return jax.lax.scan(step, start, jnp.arange(STEPS))[0]


class LiveTable:
    """A callback for `tap`: the latest values, and how they went, while the loop runs."""

    def __init__(self, console):
        self._live = Live(console=console, refresh_per_second=10)
        self._history = {}
        self._terminal = console.is_terminal
        self._console = console

    def __enter__(self):
        if self._terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *error):
        chiplog.flush()
        if self._terminal:
            self._live.__exit__(*error)

    def __call__(self, logs):
        # A batch: each key has a leading axis of entries.
        for key, values in logs.items():
            self._history.setdefault(key, []).append(float(values[-1]))
        step = int(max(steps[-1] for steps in logs.step.values())) + 1
        if self._terminal:
            self._live.update(self._table(step))
        elif "loss" in logs:
            self._console.print(f"step {step:>6}  loss {logs['loss'][-1]:.5f}")

    def _table(self, step):
        table = Table(title=f"step {step} of {STEPS}", caption=ProgressBar(STEPS, step, width=60))
        for column in ("key", "now", "lowest", "so far"):
            table.add_column(column, justify="left" if column in ("key", "so far") else "right")
        for key, values in self._history.items():
            table.add_row(key, f"{values[-1]:.5f}", f"{min(values):.5f}", sparkline(values[-32:]))
        return table


def sparkline(values):
    if min(values) > 0:
        values = [math.log(value) for value in values]
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def plot(steps, values):
    plotext.clear_figure()
    plotext.plot(steps.tolist(), values.tolist())
    plotext.yscale("log")
    plotext.plotsize(80, 18)
    plotext.theme("clear")
    text = plotext.build()
    return text if sys.stdout.isatty() else plotext.uncolorize(text)


def main():
    print(f"\n{STEPS} training steps in one jitted scan, as chiplog.tap shows them:\n")
    with LiveTable(Console()) as table:
        chiplog.tap(train, table, batch=True)(jax.random.key(0))

    _, logs = chiplog.spool(train, interval=50)(jax.random.key(0))
    print("\nEvery 50th step, as chiplog.spool returns it:\n")
    print(logs)

    print("\nA few of them as a table (logs.slice[::50].to_pandas()):\n")
    print(logs.slice[::50].to_pandas().to_string(index=False, float_format="%.5f"))

    print("\nThe loss by step:\n")
    print(plot(logs.step["loss"], logs["loss"]))

    means = chiplog.spool(train, "loss", interval=STEPS // 5, reduce="mean")
    _, windows = means(jax.random.key(0))
    shown = "  ".join(f"{mean:.5f}" for mean in windows["loss"])
    print(f"Mean loss over each {STEPS // 5} steps, reduced on the device as it ran:  {shown}")


if __name__ == "__main__":
    main()
