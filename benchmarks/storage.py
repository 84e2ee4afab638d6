"""What it costs to store a trajectory, next to h5py by hand and to kUPS."""

import functools
import os
import pathlib
import statistics
import tempfile
import time

import h5py
import jax
import jax.numpy as jnp
import numpy as np

import chiplog
from chiplog.storage import HDF5StorageReader, HDF5StorageWriter, SaveLogger, WriterGroupConfig

ROUNDS = 5


def main():
    for name, steps, state in (
        ("8 scalars", 20000, {f"s{i}": jnp.float32(i) for i in range(8)}),
        ("frames of 10000 x 3", 1500, {"x": jnp.ones((10000, 3))}),
    ):
        write(name, steps, state)
    blocks()
    read()


def timed(calls, rounds=ROUNDS):
    """Median seconds of each call, in turns; each gets a new path."""
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            path = pathlib.Path(tempfile.mkdtemp()) / "a.h5"
            begun = time.perf_counter()
            more = call(path)
            found[name].append((time.perf_counter() - begun, more, _size(path)))
            if path.exists():
                os.unlink(path)
    return {
        name: [statistics.median(x) for x in zip(*each, strict=True)]
        for name, each in found.items()
    }


def _size(path):
    return path.stat().st_size if path.exists() else 0


def by_hand(state, steps, path, batch=1000):
    """Batches of rows into datasets of h5py, as fast as it goes."""
    values = {key: np.asarray(x) for key, x in state.items()}
    batch = max(1, min(batch, (4 << 20) // sum(x.nbytes for x in values.values())))
    blocks = {key: np.broadcast_to(x, (batch, *x.shape)).copy() for key, x in values.items()}
    with h5py.File(path, "w", libver="latest") as file:
        data = {}
        for key, x in values.items():
            rows = max(1, min(8192, (1 << 20) // x.nbytes))
            data[key] = file.create_dataset(
                key, (0, *x.shape), x.dtype, maxshape=(None, *x.shape), chunks=(rows, *x.shape)
            )
        for start in range(0, steps, batch):
            count = min(batch, steps - start)
            for key, dataset in data.items():
                dataset.resize(start + count, axis=0)
                dataset[start : start + count] = blocks[key][:count]
    return 0.0


def everything(state):
    return state


def logged(writer, state, steps):
    """Log a state so many times; return the seconds that the calling thread spent in it."""
    spent = 0.0
    with writer:
        for i in range(steps):
            begun = time.perf_counter()
            writer.log(state, i)
            spent += time.perf_counter() - begun
    return spent


def by_writer(state, steps, path):
    schema = {"frames": WriterGroupConfig(everything)}
    return logged(HDF5StorageWriter(path, schema, state), state, steps)


def by_saver(state, steps, path):
    return logged(SaveLogger(path), state, steps)


def by_kups(state, steps, path):
    from kups.core import storage as kups

    group = kups.WriterGroupConfig(everything, kups.EveryNStep(1))
    return logged(kups.HDF5StorageWriter(path, {"frames": group}, state, steps), state, steps)


def write(name, steps, state):
    payload = steps * sum(x.nbytes for x in state.values())
    calls = {
        "h5py by hand, in batches": functools.partial(by_hand, state, steps),
        "HDF5StorageWriter": functools.partial(by_writer, state, steps),
        "SaveLogger": functools.partial(by_saver, state, steps),
    }
    if _has_kups():
        calls["kUPS"] = functools.partial(by_kups, state, steps)
    by_writer(state, 10, pathlib.Path(tempfile.mkdtemp()) / "a.h5")
    found = timed(calls)
    base = found["h5py by hand, in batches"][0]
    print(f"\n{steps} steps of {name} ({payload / 1e6:.1f} MB)")
    for what, (seconds, spent, size) in found.items():
        print(
            f"  {what:<28} {seconds / steps * 1e6:8.1f} us a step {seconds / base:6.1f}x"
            f"  calling thread {spent / steps * 1e6:6.1f} us  file {size / payload:.2f}x payload"
        )


def blocks():
    """Entries that a program streams, which come in blocks."""
    steps = 200_000

    def scalars(x):
        def body(x, i):
            x = x * 0.999 + jnp.sin(x)
            chiplog.log({f"s{j}": x + j for j in range(8)})
            return x, None

        return jax.lax.scan(body, x, jnp.arange(steps))[0]

    state = {f"s{i}": jnp.float32(i) for i in range(8)}

    def streamed(path):
        with SaveLogger(path) as logger:
            logger.spool(scalars)(0.5)
        return 0.0

    with SaveLogger(pathlib.Path(tempfile.mkdtemp()) / "a.h5") as logger:
        logger.spool(scalars)(0.5)
    calls = {"h5py by hand": functools.partial(by_hand, state, steps), "SaveLogger": streamed}
    found = timed(calls)
    base = found["h5py by hand"][0]
    print(f"\n{steps} entries of 8 scalars out of one scan")
    for what, (seconds, _, _) in found.items():
        print(f"  {what:<28} {seconds / steps * 1e6:8.2f} us an entry {seconds / base:6.1f}x")


def read():
    path = pathlib.Path(tempfile.mkdtemp()) / "a.h5"
    steps, state = 1_000_000, {"x": jnp.float32(0)}
    by_hand(state, steps, path.with_name("hand.h5"), batch=100_000)
    columns = np.arange(steps, dtype=np.float32)
    schema = {"frames": WriterGroupConfig(lambda s: s)}
    with HDF5StorageWriter(path, schema, state, steps) as writer:
        writer._book.append("frames", np.arange(steps), [columns])

    def whole(_):
        with HDF5StorageReader(path) as reader:
            reader.focus_group("frames")[:]["x"]
        return 0.0

    def part(_):
        with HDF5StorageReader(path) as reader:
            reader.focus_group("frames")[500_000:501_000]["x"]
        return 0.0

    def raw(index):
        def call(_):
            with h5py.File(path.with_name("hand.h5")) as file:
                file["x"][index]
            return 0.0

        return call

    found = timed(
        {
            "all, h5py by hand": raw(slice(None)),
            "all, HDF5StorageReader": whole,
            "1000 rows, h5py by hand": raw(slice(500_000, 501_000)),
            "1000 rows, HDF5StorageReader": part,
        }
    )
    print(f"\nreading one scalar of {steps} steps")
    for what, (seconds, _, _) in found.items():
        print(f"  {what:<28} {seconds * 1e3:8.2f} ms")


def _has_kups():
    try:
        import kups.core.storage as storage
    except ImportError:
        return False
    return hasattr(storage, "HDF5StorageWriter")
