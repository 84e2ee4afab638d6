"""Molecular dynamics of a Lennard-Jones liquid, with a live table and a plot of the energies.

108 atoms in a periodic box, integrated with velocity Verlet at constant energy. Each logger has a
view, which takes what it shows or stores out of the state. Units are those of Lennard-Jones.
"""

import dataclasses
import sys
import tempfile

import jax
import jax.numpy as jnp

import spoolax
from spoolax.loggers import CheckLogger, CompositeLogger, ConsoleLogger, PlotLogger
from spoolax.storage import (
    EveryNStep,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    WriterGroupConfig,
)

CELLS = 3  # Unit cells of the initial crystal, in each direction; 4 atoms in each.
ATOMS = 4 * CELLS**3
DENSITY = 0.8
TEMPERATURE = 1.4  # Initially. Half of it goes into melting the crystal.
TIME_STEP = 0.002
CUTOFF = 2.5
BOX = (ATOMS / DENSITY) ** (1 / 3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    positions: jax.Array
    velocities: jax.Array
    forces: jax.Array
    potential: jax.Array

    @property
    def kinetic(self):
        return 0.5 * jnp.sum(self.velocities**2)


def energies(state):
    """Energies per atom, and the temperature."""
    return {
        "total": (state.kinetic + state.potential) / ATOMS,
        "potential": state.potential / ATOMS,
        "temperature": 2 * state.kinetic / (3 * (ATOMS - 1)),
    }


def potential(positions):
    """The energy of all pairs, with the force shifted to vanish at the cutoff."""
    distance = positions[:, None] - positions[None]
    distance -= BOX * jnp.round(distance / BOX)
    i, j = jnp.triu_indices(ATOMS, k=1)
    r = jnp.sqrt(jnp.sum(distance[i, j] ** 2, axis=-1))

    def lennard_jones(r):
        return 4 * (r**-12 - r**-6)

    at_cutoff, slope = jax.value_and_grad(lennard_jones)(CUTOFF)
    pairs = lennard_jones(r) - at_cutoff - slope * (r - CUTOFF)
    return jnp.sum(jnp.where(r < CUTOFF, pairs, 0.0))


def forces_at(positions):
    energy, gradient = jax.value_and_grad(potential)(positions)
    return -gradient, energy


def start(key):
    """A crystal with random velocities."""
    basis = jnp.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    corner = jnp.stack(jnp.meshgrid(*3 * [jnp.arange(CELLS)], indexing="ij"), -1).reshape(-1, 1, 3)
    positions = ((corner + basis).reshape(-1, 3) + 0.25) * BOX / CELLS
    velocities = jnp.sqrt(TEMPERATURE) * jax.random.normal(key, positions.shape)
    velocities -= jnp.mean(velocities, axis=0, keepdims=True)
    return State(positions, velocities, *forces_at(positions))


def step(key, state):
    """Velocity Verlet, which conserves the energy, so it needs no random numbers."""
    del key
    halfway = state.velocities + 0.5 * TIME_STEP * state.forces
    positions = state.positions + TIME_STEP * halfway
    forces, energy = forces_at(positions)
    return State(positions, halfway + 0.5 * TIME_STEP * forces, forces, energy)


SCHEMA = {
    "box": WriterGroupConfig(lambda state: {"length": BOX, "atoms": ATOMS}, Once()),
    "energies": WriterGroupConfig(energies, EveryNStep(10)),
    "frames": WriterGroupConfig(lambda state: {"positions": state.positions}, EveryNStep(50)),
}


def main(steps=10_000):
    key = jax.random.key(0)
    state = start(key)
    directory = tempfile.mkdtemp(prefix="lennard-jones-")
    logger = CompositeLogger(
        ConsoleLogger(every=50, view=energies, title=f"{ATOMS} atoms", total=steps),
        HDF5StorageWriter(f"{directory}/trajectory.h5", SCHEMA, state, steps),
        PlotLogger(f"{directory}/energies.png", every=50, view=energies),
        CheckLogger(lambda state: jnp.isfinite(state.potential), every=1000),
    )
    spoolax.simulate(step, state, steps, key=key, logger=logger, warmup=1000, inner=50)
    with HDF5StorageReader(f"{directory}/trajectory.h5") as reader:
        frames = reader.focus_group("frames")
        print(f"{len(frames)} frames, energies and a plot of them are in {directory}.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
