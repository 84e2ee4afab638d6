"""What logging costs on a mesh of devices, and over processes; and how that grows with them.

Each part runs in processes of its own, on loopback, which this one starts.
"""

import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spoolax
from spoolax._jax import processes

from .measure import verdict

ROUNDS = 9
GOALS = ("tap", "spool", "listening")
STEPS = 100
HOSTS = 1000
FRAMES, WIDTH = 144, 1 << 21  # Numbers of four bytes: 1.2 GB in all.


def main():
    print("a scan of steps of about 1 ms on a mesh, by devices of one process")
    for devices in (1, 2, 8):
        _show_cost(_run("cost", 1, devices))
    print("the same, by processes of two devices")
    for count in (1, 2, 4):
        _show_cost(_run("cost", count, 2))
    print("what processes tell each other, by processes of one device")
    for count in (1, 2, 4, 8):
        first, *_ = _run("agreed", count, 1)
        pieces = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in first.items())
        print(f"  {count} processes: {pieces}")
    print(f"frames of {4 * WIDTH >> 20} MB that are spread over processes, written in Zarr")
    for count in (1, 2, 4):
        (first, *_) = _run("written", count, 1)
        ratio = first["spoolax"] / first["tensorstore"]
        rates = {name: FRAMES * 4 * WIDTH / seconds / 1e6 for name, seconds in first.items()}
        print(
            f"  {count} processes: tensorstore by hand {rates['tensorstore']:.0f} MB/s, "
            f"ZarrStorageWriter {rates['spoolax']:.0f} MB/s, {ratio:.2f}x {verdict(ratio, 1.2)}"
        )


def _show_cost(results):
    first = results[0]
    for name in ("outputs by hand", "tap", "spool", "jax.debug.callback", "listening"):
        plain = first["plain steps" if name in ("jax.debug.callback", "listening") else "plain"]
        ratio = first[name] / plain
        print(
            f"  {first['devices']} devices, {len(results)} processes: step {1e3 * plain:.2f} ms, "
            f"{name} {ratio:.2f}x {verdict(ratio, 1.1) if name in GOALS else ''}"
        )


def _run(part, count, devices):
    """Run a part of this file in processes; return what each prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={devices}"
    folder = tempfile.mkdtemp()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, part, str(number), str(count), str(port), folder],
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "16"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        return [json.loads(one.communicate(timeout=600)[0].splitlines()[-1]) for one in running]
    finally:
        for one in running:
            one.kill()
        shutil.rmtree(folder)


def spread(x):
    mesh = Mesh(np.array(jax.devices()), ("device",))
    place = NamedSharding(mesh, PartitionSpec("device"))
    return jax.make_array_from_callback(x.shape, place, lambda index: x[index])


def medians(calls, between=lambda: None):
    """The medians of the seconds that calls take, interleaved."""
    found = {name: [] for name in calls}
    for number in range(ROUNDS + 1):  # The first one warms up.
        for name, call in calls.items():
            begun = time.perf_counter()
            jax.block_until_ready(call())
            if number:
                found[name].append(time.perf_counter() - begun)
            between()
    return {name: statistics.median(times) for name, times in found.items()}


def cost(folder):
    """A training step, more or less: products, and a number that all devices have to agree on."""
    del folder
    x, w = spread(np.ones((64, 512), np.float32)), jnp.eye(512) * 0.9

    def step(x):
        x = jnp.sin(x @ w @ w)
        loss = jnp.mean(x**2)
        return x - loss * 1e-3, loss

    def silent(x):
        return step(x)[0]

    def logging(x):
        x, loss = step(x)
        spoolax.log({"loss": loss})
        return x

    def repeated(step):
        return lambda x: lax.fori_loop(0, STEPS, lambda i, x: step(x), x)

    def calling_back(x):
        x, loss = step(x)
        jax.debug.callback(lambda loss: None, loss)
        return x

    plain, logged = jax.jit(repeated(silent)), repeated(logging)
    by_hand = jax.jit(lambda x: lax.scan(lambda x, _: step(x), x, None, STEPS))
    one, one_logging, one_calling = map(jax.jit, (silent, logging, calling_back))
    tapped, spooled = spoolax.tap(logged, lambda logs: None), spoolax.spool(logged)

    def loop(step):
        y = x
        for i in range(STEPS):
            y = step(y)
            if i % 16 == 15:
                jax.block_until_ready(y)
        return y

    def listened():
        with spoolax.listening(lambda logs: None):
            return loop(one_logging)

    found = medians(
        {
            "plain": lambda: plain(x),
            "outputs by hand": lambda: by_hand(x),
            "tap": lambda: tapped(x),
            "spool": lambda: spooled(x)[0],
            "plain steps": lambda: loop(one),
            "jax.debug.callback": lambda: loop(one_calling),
            "listening": listened,
        }
    )
    each = {name: seconds / STEPS for name, seconds in found.items()}
    return {**each, "devices": len(jax.devices())}


def agreed(folder):
    """What processes tell each other: how long each piece of that takes."""
    numbers = iter(range(1000))
    answer = spread(np.ones((len(jax.devices()), 32), np.int32))
    exchange = jax.jit(
        lambda x: x.max(0), out_shardings=NamedSharding(answer.sharding.mesh, PartitionSpec())
    )
    for number in range(HOSTS // jax.process_count()):
        processes.post(
            f"bench/{jax.process_index()}.{number}", json.dumps({"rows": {"frames": 10}})
        )

    def opened():
        with spoolax.loggers.JsonlLogger(f"{folder}/{next(numbers)}.jsonl"):
            pass

    return medians(
        {
            "opening a logger": opened,
            "flush(everywhere=True)": lambda: spoolax.flush(everywhere=True),
            "an exchange of 32 numbers": lambda: exchange(answer),
            f"asking what {HOSTS} have written": lambda: processes.posted("bench/"),
        }
    )


def written(folder):
    """Frames of which every process has a part."""
    rows = spread(np.random.default_rng(0).random(WIDTH, np.float32))
    schema = {"frames": spoolax.storage.WriterGroupConfig(lambda s: {"x": s["x"]})}
    numbers = iter(range(1000))

    def by_spoolax():
        path = f"{folder}/{next(numbers)}.zarr"
        state = {"x": rows}
        with spoolax.storage.ZarrStorageWriter(path, schema, state, compression=None) as writer:
            for i in range(FRAMES):
                writer.log(state, i)
        spoolax.flush(everywhere=True)

    def by_hand():
        import tensorstore

        path, pieces = f"{folder}/{next(numbers)}.zarr", rows.addressable_shards
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": path},
            "metadata": {
                "shape": [FRAMES, WIDTH],
                "data_type": "float32",
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [1, pieces[0].data.size]},
                },
            },
        }
        _wait("made", next(numbers))
        if jax.process_index() == 0:
            tensorstore.open(spec, create=True).result()
        _wait("open", next(numbers))
        array = tensorstore.open(spec, open=True).result()
        writes = [
            array[i, piece.index[0]].write(np.asarray(piece.data))
            for i in range(FRAMES)
            for piece in pieces
        ]
        for write in writes:
            write.result()
        _wait("written", next(numbers))

    def removed():
        """Leave no more to the system to write than one call does."""
        _wait("measured", next(numbers))
        if jax.process_index() == 0:
            for path in pathlib.Path(folder).glob("*.zarr"):
                shutil.rmtree(path)
        os.sync()
        _wait("removed", next(numbers))

    return medians({"tensorstore": by_hand, "spoolax": by_spoolax}, removed)


def _wait(what, number):
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(f"{what}{number}")


if __name__ == "__main__":
    name, number, count, port, folder = sys.argv[1:]
    if int(count) > 1 or name == "agreed":  # It makes exchanges of one process slower, too.
        jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    parts = {"cost": cost, "agreed": agreed, "written": written}
    print(json.dumps(parts[name](str(pathlib.Path(folder)))))
