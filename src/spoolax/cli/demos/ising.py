"""A magnet that is cooled through its phase transition: the Ising model, by Metropolis sampling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import spoolax

from .compiling import look_at

CONFIG = {"size": 64, "hot": 3.5, "cold": 1.5, "sweeps": 4000}
IMAGES = 40


@jax.jit
def cool(key: Any) -> Any:
    """Sweep by sweep, from above the critical temperature, 2.27, to below it."""
    size, sweeps = int(CONFIG["size"]), int(CONFIG["sweeps"])
    start_key, key = jax.random.split(key)
    spins = jnp.where(jax.random.bernoulli(start_key, shape=(size, size)), 1, -1).astype(jnp.int8)
    board = (jnp.arange(size)[:, None] + jnp.arange(size)) % 2

    def neighbours(spins: Any) -> Any:
        return sum(jnp.roll(spins, shift, axis) for shift in (1, -1) for axis in (0, 1))

    def sweep(spins: Any, i: Any) -> Any:
        temperature = CONFIG["hot"] + (CONFIG["cold"] - CONFIG["hot"]) * i / sweeps
        for colour in (0, 1):  # No two fields of one colour are neighbours.
            draw = jax.random.uniform(jax.random.fold_in(key, 2 * i + colour), spins.shape)
            cost = 2.0 * spins * neighbours(spins)
            flips = (draw < jnp.exp(-cost / temperature)) & (board == colour)
            spins = jnp.where(flips, -spins, spins)
        magnetization = jnp.abs(jnp.mean(spins.astype(jnp.float32)))
        energy = -0.5 * jnp.mean((spins * neighbours(spins)).astype(jnp.float32))
        spoolax.log({"magnetization": magnetization, "energy": energy, "temperature": temperature})
        return spins, None

    def picture(spins: Any, first: Any) -> Any:
        steps = first * (sweeps // IMAGES) + jnp.arange(sweeps // IMAGES)
        spins = jax.lax.scan(sweep, spins, steps)[0]
        spoolax.log({"spins": spins}, step=steps[-1])
        return spins, None

    return jax.lax.scan(picture, spins, jnp.arange(IMAGES))[0]


def main(directory: str) -> None:
    """Run it."""
    size, total = CONFIG["size"], int(CONFIG["sweeps"])
    print(f"{size} x {size} spins, {total} sweeps from hot to cold:\n")
    with spoolax.run("ising", CONFIG, directory=directory, total=total, announce=False) as run:
        jax.block_until_ready(cool(jax.random.key(0)))
    look_at(run.path, "magnetization")
