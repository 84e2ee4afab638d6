"""Molecular dynamics of a liquid in two dimensions, at constant energy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import spoolax

from .compiling import look_at

CONFIG = {"atoms": 100, "density": 0.7, "temperature": 0.8, "time_step": 0.004, "frames": 200}
BETWEEN = 50  # Steps between two frames.


def energy(positions: Any, box: float) -> Any:
    """The Lennard-Jones energy of all pairs, in a periodic box."""
    apart = positions[:, None] - positions[None]
    apart -= box * jnp.round(apart / box)
    square = jnp.sum(apart**2, axis=-1) + jnp.eye(len(positions)) * box**2
    inverse = jnp.where(square < 6.25, 1.0 / square**3, 0.0)
    return 2.0 * jnp.sum(inverse**2 - inverse)


@jax.jit
def simulate(key: Any) -> Any:
    """Velocity Verlet: frames of 50 steps each."""
    atoms = int(CONFIG["atoms"])
    box = (atoms / CONFIG["density"]) ** 0.5
    side = jnp.arange(10) * box / 10
    positions = jnp.stack(jnp.meshgrid(side, side), -1).reshape(-1, 2)
    velocities = jax.random.normal(key, positions.shape) * CONFIG["temperature"] ** 0.5
    velocities -= jnp.mean(velocities, axis=0)
    dt, force = CONFIG["time_step"], jax.grad(lambda x: -energy(x, box))

    def step(state: Any, _: Any) -> Any:
        positions, velocities, forces = state
        velocities += 0.5 * dt * forces
        positions += dt * velocities
        forces = force(positions)
        velocities += 0.5 * dt * forces
        kinetic, potential = 0.5 * jnp.sum(velocities**2), energy(positions, box)
        total = (kinetic + potential) / atoms
        spoolax.log(
            {"temperature": kinetic / atoms, "potential": potential / atoms, "total": total}
        )
        return (positions, velocities, forces), None

    def frame(state: Any, i: Any) -> Any:
        state = jax.lax.scan(step, state, length=BETWEEN)[0]
        spoolax.log({"positions": state[0] % box}, step=i * BETWEEN)
        return state, None

    start = positions, velocities, force(positions)
    return jax.lax.scan(frame, start, jnp.arange(CONFIG["frames"]))[0]


def main(directory: str) -> None:
    """Run it."""
    total = int(CONFIG["frames"]) * BETWEEN
    print(
        f"{CONFIG['atoms']} atoms for {total} steps; energies in every step, positions in some:\n"
    )
    with spoolax.run("md", CONFIG, directory=directory, total=total, announce=False) as run:
        jax.block_until_ready(simulate(jax.random.key(0)))
    look_at(run.path, "temperature")
