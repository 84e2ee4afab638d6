"""What it costs to write a trajectory in Zarr, compared with tensorstore by hand and with HDF5."""

import functools
import pathlib
import shutil
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore

from spoolax.storage import HDF5StorageWriter, WriterGroupConfig, ZarrStorageWriter

from .measure import verdict

ROUNDS = 5
GOAL = 1.2
BYTES_AT_ONCE = 4 << 20
BYTES_IN_CHUNK = 1 << 20
ROWS_IN_CHUNK = 8192
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0, "typesize": 4}
CODECS = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "blosc", "configuration": BLOSC},
]


def main():
    rng = np.random.default_rng(0)
    for name, steps, shapes in (
        ("8 scalars", 20_000, {f"s{i}": () for i in range(8)}),
        ("frames of 10000 x 3", 1000, {"x": (10_000, 3)}),
        ("frames of 1000 x 1000", 60, {"x": (1000, 1000)}),
    ):
        # Different ones, and random, so that compression cannot make them disappear.
        states = [
            jax.tree.map(jnp.asarray, {key: rng.random(s, np.float32) for key, s in shapes.items()})
            for _ in range(8)
        ]
        write(name, steps, states)


def write(name, steps, states):
    calls = {
        "tensorstore by hand": by_hand,
        "ZarrStorageWriter": functools.partial(by_writer, ZarrStorageWriter, "a.zarr"),
        "HDF5StorageWriter": functools.partial(by_writer, HDF5StorageWriter, "a.h5"),
    }
    found = {what: [] for what in calls}
    for number in range(ROUNDS + 1):  # The first one warms up.
        for what, call in calls.items():
            folder = pathlib.Path(tempfile.mkdtemp())
            begun = time.perf_counter()
            call(folder, states, steps)
            if number:
                found[what].append(time.perf_counter() - begun)
            shutil.rmtree(folder)
    seconds = {what: statistics.median(each) for what, each in found.items()}
    megabytes = steps * sum(x.nbytes for x in states[0].values()) / 1e6
    base = seconds["tensorstore by hand"]
    print(f"\n{steps} steps of {name} ({megabytes:.1f} MB)")
    for what, each in seconds.items():
        goal = verdict(each / base, GOAL) if what == "ZarrStorageWriter" else ""
        speed = megabytes / each
        print(
            f"  {what:<22} {each / steps * 1e6:8.1f} us a step {speed:7.1f} MB/s"
            f" {each / base:6.2f}x{goal}"
        )


def by_writer(writer, name, folder, states, steps):
    schema = {"frames": WriterGroupConfig(lambda state: state)}
    with writer(folder / name, schema, states[0]) as logger:
        for i in range(steps):
            logger.log(states[i % len(states)], i)


def by_hand(folder, states, steps):
    """Rows are fetched, collected, and appended in batches that fill whole chunks."""
    size = sum(x.nbytes for x in states[0].values())
    chunk = max(1, min(ROWS_IN_CHUNK, BYTES_IN_CHUNK // max(x.nbytes for x in states[0].values())))
    batch = max(1, min(ROWS_IN_CHUNK, BYTES_AT_ONCE // size) // chunk * chunk)
    arrays = {key: _array(folder / "a.zarr" / key, x, chunk) for key, x in states[0].items()}
    arrays["step"] = _array(folder / "a.zarr" / "step", np.int64(0), ROWS_IN_CHUNK)
    rows = []
    for i in range(steps):
        # A copy, because the next step may reuse the memory.
        rows.append({**{key: np.array(x) for key, x in states[i % len(states)].items()}, "step": i})
        if len(rows) == batch or i == steps - 1:
            first = i + 1 - len(rows)
            arrays = {
                key: one.resize(exclusive_max=(i + 1, *one.shape[1:]))
                for key, one in arrays.items()
            }
            arrays = {key: one.result() for key, one in arrays.items()}
            writes = [
                one[first : i + 1].write(np.stack([row[key] for row in rows]))
                for key, one in arrays.items()
            ]
            for one in writes:
                one.result()
            rows.clear()


def _array(path, row, chunk):
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "shape": [0, *row.shape],
            "data_type": row.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [chunk, *row.shape]},
            },
            "codecs": CODECS,
        },
    }
    return tensorstore.open(spec, create=True).result()
