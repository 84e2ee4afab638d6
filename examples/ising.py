"""Metropolis Monte Carlo of the two-dimensional Ising model, at several temperatures at once.

A sweep updates the black squares of a checkerboard, then the white ones. All temperatures run in
one program, under jit and vmap, and each has a run of its own in the logger. The results are
printed next to Onsager's exact ones.
"""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.special import ellipk

import spoolax
from spoolax.storage import SaveLogger

SIZE = 64
TEMPERATURES = (1.8, 2.0, 2.5, 3.0)
WARM_UP = 500


def neighbours(spins):
    return sum(jnp.roll(spins, shift, axis) for axis in (0, 1) for shift in (1, -1))


def sweep(key, spins, temperature):
    """Try to flip every spin, half of them at a time."""
    rows, columns = jnp.indices(spins.shape)
    for colour, key_of_colour in enumerate(jax.random.split(key)):
        cost = 2 * spins * neighbours(spins)
        accepted = jax.random.uniform(key_of_colour, spins.shape) < jnp.exp(-cost / temperature)
        chosen = (rows + columns) % 2 == colour
        spins = jnp.where(chosen & accepted, -spins, spins)
    return spins


def measure(spins):
    return {
        "energy": -jnp.mean(spins * neighbours(spins)) / 2,
        "magnetisation": jnp.abs(jnp.mean(spins)),
    }


def simulate(key, temperature, sweeps):
    """Log energy and magnetisation per spin after every sweep."""

    def body(spins, i):
        spins = sweep(jax.random.fold_in(key, i), spins, temperature)
        spoolax.log(measure(spins), sweep=i)
        return spins, None

    spins = jnp.ones((SIZE, SIZE), jnp.float32)
    return lax.scan(body, spins, jnp.arange(sweeps))[0]


def exact(temperature):
    """Onsager's energy and Yang's magnetisation per spin of the infinite lattice."""
    twice = 2 / temperature
    modulus = 2 * np.sinh(twice) / np.cosh(twice) ** 2
    elliptic = 2 / np.pi * (2 * np.tanh(twice) ** 2 - 1) * ellipk(modulus**2)
    energy = -(1 + elliptic) / np.tanh(twice)
    ordered = np.sinh(twice) > 1
    return {
        "energy": energy,
        "magnetisation": (1 - np.sinh(twice) ** -4) ** 0.125 if ordered else 0.0,
    }


def run(path, sweeps, temperatures=TEMPERATURES):
    """Run all temperatures, and return the means of what each logged."""
    keys = jax.random.split(jax.random.key(0), len(temperatures))
    with SaveLogger(path, mode="w") as logger:

        @jax.jit
        @jax.vmap
        def all_at_once(key, temperature):
            counted = jax.tree_util.Partial(simulate, sweeps=sweeps)
            return logger.tap(counted, logger.init(key))(key, temperature)

        all_at_once(keys, jnp.array(temperatures))
    means = []
    for one in logger.runs.values():
        logs = spoolax.load(one.path).slice[WARM_UP:]
        means.append({key: float(np.mean(logs[key])) for key in exact(1.0)})
    return means


def main(sweeps=5000):
    directory = tempfile.mkdtemp(prefix="ising-")
    means = run(f"{directory}/sweeps.h5", sweeps)
    print("temperature   energy    exact   magnetisation   exact")
    for temperature, mean in zip(TEMPERATURES, means, strict=True):
        truth = exact(temperature)
        print(
            f"{temperature:11.2f} {mean['energy']:8.4f} {truth['energy']:8.4f} "
            f"{mean['magnetisation']:15.4f} {truth['magnetisation']:7.4f}"
        )
    print(f"Every sweep of every temperature is in {directory}.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
