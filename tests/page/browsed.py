"""Runs to look at."""

import numpy as np

import spoolax


def train(directory, rate=0.1, steps=50, name="moons", **more):
    with spoolax.run(name, {"rate": rate, **more}, directory=directory, show=False) as run:
        for i in range(steps):
            values = {"train/loss": float(np.exp(-rate * i)), "train/accuracy": i / steps}
            run.log({**values, "weights": np.sin(np.arange(12) + i)}, i)
    return run.path
