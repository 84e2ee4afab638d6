"""Makes a file of the current format. Run it once for each version, and keep the file."""

import sys

import jax.numpy as jnp

from spoolax.storage import EveryNStep, HDF5StorageWriter, Once, WriterGroupConfig

SCHEMA = {
    "start": WriterGroupConfig(lambda s: {"x": s}, Once()),
    "frames": WriterGroupConfig(
        lambda s: {"x": s, "half": s.astype(jnp.bfloat16), "deep": (s[0] > 1, [s.sum()])},
        EveryNStep(2),
    ),
}

if __name__ == "__main__":
    state = jnp.arange(3.0)
    with HDF5StorageWriter(sys.argv[1], SCHEMA, state, 6, config={"rate": 0.5}) as writer:
        for i in range(6):
            writer.log(state + i, i)
