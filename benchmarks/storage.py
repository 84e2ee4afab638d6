"""What it costs to write and to read a trajectory, compared with h5py by hand, kUPS and others."""

import functools
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import h5py
import jax
import jax.numpy as jnp
import numpy as np

import spoolax
from spoolax.storage import HDF5StorageReader, HDF5StorageWriter, SaveLogger, WriterGroupConfig

from .measure import verdict

ROUNDS = 5
CALLING = 10  # Microseconds that `log` of 8 scalars may take.


def main():
    for name, steps, state, against, goal in (
        ("8 scalars", 20000, {f"s{i}": jnp.float32(i) for i in range(8)}, "in the loop", 1.0),
        ("frames of 10000 x 3", 1500, {"x": jnp.ones((10000, 3))}, "in batches", 1.3),
    ):
        write(name, steps, state, against, goal)
        beside(name, state)
    watched()
    blocks()
    read()


def timed(calls, rounds=ROUNDS):
    """Median seconds of each call, measured in turns; each gets a new path."""
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
    """Write batches of rows to datasets of h5py, as fast as possible."""
    values = {key: np.asarray(x) for key, x in state.items()}
    batch = max(1, min(batch, (4 << 20) // sum(x.nbytes for x in values.values())))
    blocks = {key: np.broadcast_to(x, (batch, *x.shape)).copy() for key, x in values.items()}
    with h5py.File(path, "w", libver="latest") as file:
        data = _datasets(file, values)
        for start in range(0, steps, batch):
            count = min(batch, steps - start)
            for key, dataset in data.items():
                dataset.resize(start + count, axis=0)
                dataset[start : start + count] = blocks[key][:count]
    return 0.0


def _datasets(file, values):
    """Datasets that grow by rows like these."""
    data = {}
    for key, x in values.items():
        rows = max(1, min(8192, (1 << 20) // x.nbytes))
        data[key] = file.create_dataset(
            key, (0, *x.shape), x.dtype, maxshape=(None, *x.shape), chunks=(rows, *x.shape)
        )
    return data


def everything(state):
    return state


def logged(writer, state, steps):
    """Log a state this many times; return the seconds that the calling thread spent on it."""
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


def in_a_loop(state, steps, path, batch=1000):
    """What people write by hand: rows are fetched, collected, and written in batches."""
    batch = max(1, min(batch, (4 << 20) // sum(x.nbytes for x in state.values())))
    rows, spent = [], 0.0
    with h5py.File(path, "w", libver="latest") as file:
        data = _datasets(file, state)
        for i in range(steps):
            begun = time.perf_counter()
            # A copy, because the next step may reuse the memory.
            rows.append({key: np.array(x) for key, x in state.items()})
            if len(rows) == batch or i == steps - 1:
                for key, dataset in data.items():
                    dataset.resize(i + 1, axis=0)
                    dataset[i + 1 - len(rows) :] = np.stack([row[key] for row in rows])
                rows.clear()
            spent += time.perf_counter() - begun
    return spent


def beside(name, state, steps=300):
    """What `log` costs the calling thread of a program whose steps take 1 ms."""

    @jax.jit
    def work(state, x):
        for _ in range(6):
            x = jnp.tanh(x @ x)
        return {key: value + 0 * x[0, 0] for key, value in state.items()}, x

    def run(log):
        now, x, spent = state, jnp.eye(200), []
        for i in range(steps):
            now, x = work(now, x)
            jax.block_until_ready((now, x))
            begun = time.perf_counter()
            log(now, i)
            spent.append(time.perf_counter() - begun)
        return statistics.median(spent)

    def with_logger(make, path):
        with make(path) as logger:
            return run(logger.log)

    packed = jax.jit(lambda state: jnp.concatenate([x.ravel() for x in state.values()]))

    def copied(state, i):
        return {key: np.array(x) for key, x in state.items()}

    schema = {"frames": WriterGroupConfig(everything)}
    calls = {
        "HDF5StorageWriter": functools.partial(
            with_logger, lambda path: HDF5StorageWriter(path, schema, state)
        ),
        "SaveLogger": functools.partial(with_logger, SaveLogger),
        "np.array of each, by hand": lambda _: run(copied),
        "one jitted copy": lambda _: run(lambda state, i: packed(state)),
        "nothing": lambda _: run(lambda state, i: None),
    }
    if _has_kups():
        from kups.core import storage as kups

        group = {"frames": kups.WriterGroupConfig(everything, kups.EveryNStep(1))}
        calls["kUPS"] = functools.partial(
            with_logger, lambda path: kups.HDF5StorageWriter(path, group, state, steps)
        )
    print(f"\n`log` of {name}, beside a step of about 1 ms")
    for what, (seconds, spent, _) in timed(calls).items():
        print(f"  {what:<28} {spent * 1e6:8.1f} us  whole step {seconds / steps * 1e3:6.2f} ms")


def write(name, steps, state, against, goal):
    payload = steps * sum(x.nbytes for x in state.values())
    calls = {
        "h5py by hand, in batches": functools.partial(by_hand, state, steps),
        "h5py by hand, in the loop": functools.partial(in_a_loop, state, steps),
        "HDF5StorageWriter": functools.partial(by_writer, state, steps),
        "SaveLogger": functools.partial(by_saver, state, steps),
    }
    if _has_kups():
        calls["kUPS"] = functools.partial(by_kups, state, steps)
    by_writer(state, 10, pathlib.Path(tempfile.mkdtemp()) / "a.h5")
    found = timed(calls)
    base = found[f"h5py by hand, {against}"][0]
    print(f"\n{steps} steps of {name} ({payload / 1e6:.1f} MB)")
    for what, (seconds, spent, size) in found.items():
        ratio, calling, goals = seconds / base, spent / steps * 1e6, ""
        if what == "HDF5StorageWriter":
            goals = verdict(ratio, goal)
            if len(state) == 8:
                goals += verdict(calling, CALLING, " us of the calling thread")
        print(
            f"  {what:<28} {seconds / steps * 1e6:8.1f} us a step {ratio:6.2f}x of {against}"
            f"  calling thread {calling:6.1f} us  file {size / payload:.2f}x payload{goals}"
        )


def watched(steps=2000):
    """A run with steps of about 1 ms that another process reads ten times a second."""
    state = {f"s{i}": jnp.float32(i) for i in range(8)}
    schema = {"frames": WriterGroupConfig(everything)}
    follow = (
        "import sys, spoolax\n"
        "with spoolax.open(sys.argv[1]) as reader:\n"
        "    for _ in reader.focus_group('frames').follow(poll=0.1): pass"
    )

    def run(path, is_read):
        with HDF5StorageWriter(path, schema, state) as writer:
            if is_read:
                reader = subprocess.Popen([sys.executable, "-c", follow, str(path)])
                time.sleep(5)  # It has to import JAX first.
            begun = time.perf_counter()
            for i in range(steps):
                writer.log(state, i)
                time.sleep(0.001)
            spent = time.perf_counter() - begun
        if is_read:
            reader.wait()
        return spent

    calls = {
        "nobody reads": functools.partial(run, is_read=False),
        "another process follows": functools.partial(run, is_read=True),
    }
    print(f"\n{steps} steps of 8 scalars, 1 ms apart")
    for what, (_, spent, _) in timed(calls).items():
        print(f"  {what:<28} {spent / steps * 1e6:8.1f} us a step")


def blocks():
    """Entries that a program streams in blocks."""
    steps = 200_000

    def scalars(x):
        def body(x, i):
            x = x * 0.999 + jnp.sin(x)
            spoolax.log({f"s{j}": x + j for j in range(8)})
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


def read(steps=1_000_000):
    """Read one scalar of many steps, and 1000 rows of it."""
    folder = pathlib.Path(tempfile.mkdtemp())
    values = np.random.default_rng(0).random(steps, np.float32)
    state = {"x": jnp.float32(0)}
    schema = {"frames": WriterGroupConfig(everything)}
    with HDF5StorageWriter(folder / "spoolax.h5", schema, state, steps) as writer:
        writer._store.append("frames", np.arange(steps), [values])
    with h5py.File(folder / "hand.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=values, chunks=(8192,))
    some = slice(steps // 2, steps // 2 + 1000)

    def ours(index):
        with HDF5StorageReader(folder / "spoolax.h5") as reader:
            return reader.focus_group("frames")[index]["x"]

    def by_h5py(index):
        with h5py.File(folder / "hand.h5") as file:
            return file["x"][index]

    readers = {"HDF5StorageReader": ours, "h5py by hand": by_h5py}
    if _has("zarr"):
        import zarr

        array = zarr.create_array(
            folder / "a.zarr", shape=(steps,), chunks=(8192,), dtype="f4", compressors=None
        )
        array[:] = values
        readers["zarr"] = lambda index: zarr.open_array(folder / "a.zarr", mode="r")[index]
    if _has("pyarrow"):
        import pyarrow
        import pyarrow.parquet as parquet

        table = pyarrow.table({"x": values})
        parquet.write_table(table, folder / "a.parquet", compression="none")

        def by_parquet(index):
            return parquet.read_table(folder / "a.parquet")["x"].to_numpy()[index]

        readers["parquet"] = by_parquet
    if _has_kups():
        from kups.core import storage as kups

        group = {"frames": kups.WriterGroupConfig(everything, kups.EveryNStep(1))}
        with kups.HDF5StorageWriter(folder / "kups.h5", group, state, steps):
            pass
        # Its writer would take minutes, so the numbers are filled in afterwards.
        with h5py.File(folder / "kups.h5", "r+") as file:
            file.visititems(lambda _, x: _fill(x, values))

        def by_kups(index):
            with kups.HDF5StorageReader(folder / "kups.h5") as reader:
                return reader.focus_group(lambda s: s["frames"])[index]["x"]

        readers["kUPS"] = by_kups
    for name, index in (("all", slice(None)), ("1000 rows", some)):
        for reader in readers.values():
            assert (np.asarray(reader(index)) == values[index]).all()
        calls = {what: functools.partial(_read, one, index) for what, one in readers.items()}
        print(f"\nreading one scalar of {steps} steps: {name}")
        for what, (seconds, _, _) in timed(calls, 9).items():
            print(f"  {what:<28} {seconds * 1e3:8.2f} ms")


def _read(reader, index, _):
    reader(index)
    return 0.0


def _fill(x, values):
    if isinstance(x, h5py.Dataset) and x.shape == values.shape and x.dtype == values.dtype:
        x[...] = values


def _has(name):
    return importlib.util.find_spec(name) is not None


def _has_kups():
    try:
        import kups.core.storage as storage
    except ImportError:
        return False
    return hasattr(storage, "HDF5StorageWriter")
