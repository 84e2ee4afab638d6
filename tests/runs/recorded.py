"""Runs to look at, made once in a directory."""

import jax
import jax.numpy as jnp

import spoolax


@jax.jit
def step(x, rate):
    spoolax.log({"train/loss": x**2, "weights": jnp.arange(3.0) * x})
    return x * (1 - rate)


def train(directory, rate=0.1, steps=20, name="train", **options):
    """Record a run, and return its directory."""
    with spoolax.run(
        name, {"rate": rate, "net": {"width": 3}}, directory=directory, show=False, **options
    ) as run:
        x = 1.0
        for _ in range(steps):
            x = step(x, rate)
    return run.path


def seeds(directory):
    """Record a run with three runs of `init` inside."""

    def walk(key):
        def body(x, i):
            x = x + jax.random.normal(jax.random.fold_in(key, i))
            spoolax.log({"x": x}, step=i)
            return x, None

        return jax.lax.scan(body, 0.0, jnp.arange(10))[0]

    with spoolax.run("seeds", directory=directory, show=False) as run:
        keys = jax.random.split(jax.random.key(0), 3)
        jax.jit(jax.vmap(lambda key: run.tap(walk, run.init(key))(key)))(keys)
    return run.path
