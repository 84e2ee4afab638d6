"""Train a small network in one jitted `lax.scan`, watch it live, and look at what it logged.

The training step calls `spoolax.log`; nothing has to be carried out of the loop by hand. A logger
shows the entries while the compiled loop runs, and `spoolax.spool` returns them.
"""

import sys

import jax
import jax.numpy as jnp
import plotext

import spoolax
from spoolax.loggers import ConsoleLogger

STEPS = 20_000


def predict(params, x):
    for weights, bias in params[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return (x @ weights + bias)[:, 0]


def loss(params, x, y, i):
    error = predict(params, x) - y
    spoolax.log({"worst": jnp.max(jnp.abs(error))}, tags="debug", step=i)
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
        spoolax.log({"loss": value, "grad norm": norm, "rate": rate}, step=i)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
        return (params, momentum), None

    start = (params, jax.tree.map(jnp.zeros_like, params))
    return jax.lax.scan(step, start, jnp.arange(STEPS))[0]


def plot(steps, values):
    plotext.clear_figure()
    plotext.plot(steps.tolist(), values.tolist())
    plotext.yscale("log")
    plotext.plotsize(80, 18)
    plotext.theme("clear")
    text = plotext.build()
    return text if sys.stdout.isatty() else plotext.uncolorize(text)


def main():
    print(f"\n{STEPS} training steps in one jitted scan, streamed to a logger:\n")
    with ConsoleLogger(total=STEPS) as logger:
        logger.tap(train)(jax.random.key(0))

    _, logs = spoolax.spool(train, interval=50)(jax.random.key(0))
    print("\nEvery 50th step, returned by spoolax.spool:\n")
    print(logs)

    print("\nSome of them as a table (logs.slice[::50].to_pandas()):\n")
    print(logs.slice[::50].to_pandas().to_string(index=False, float_format="%.5f"))

    print("\nThe loss by step:\n")
    print(plot(logs.step["loss"], logs["loss"]))

    means = spoolax.spool(train, "loss", interval=STEPS // 5, reduce="mean")
    _, windows = means(jax.random.key(0))
    shown = "  ".join(f"{mean:.5f}" for mean in windows["loss"])
    print(f"Mean loss of every {STEPS // 5} steps, reduced on the device while it ran:  {shown}")


if __name__ == "__main__":
    main()
