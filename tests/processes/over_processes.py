"""Programs that run in several processes: a script that tests start, with the name of one."""

import json
import logging
import os
import signal
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spoolax
from spoolax._jax import processes
from spoolax._tap._devices.in_step import InStep
from spoolax._tap.receive import Receiver
from spoolax.storage import _together

PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def mesh():
    """All devices of all processes."""
    return Mesh(np.array(jax.devices()), ("device",))


def spread(x, *spec):
    """Put parts of an array on all devices."""
    place = NamedSharding(mesh(), PartitionSpec(*(spec or ("device",))))
    return jax.make_array_from_callback(x.shape, place, lambda index: np.asarray(x)[index])


def outcome(f, *args):
    """What a call raises, as text."""
    try:
        f(*args)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def counting(x, length):
    """A while loop over arrays that all devices have a part of."""

    def body(carry):
        i, x = carry
        x = x + jnp.sum(x) * 0 + 1
        spoolax.log({"i": i, "sum": jnp.sum(x)})
        return i + 1, x

    return lax.while_loop(lambda carry: carry[0] < length, body, (0, x))[1]


@program
def spooled(length):
    x = spread(jnp.arange(8.0))
    y, logs = spoolax.spool(counting)(x, length)
    again = spoolax.spool(counting)(x, 3)[1]
    return [
        np.asarray(logs["i"]).tolist(),
        np.asarray(logs["sum"]).tolist(),
        np.asarray(again["i"]).tolist(),
        float(jnp.sum(y)),
    ]


@program
def spooled_parts(length):
    """Entries that are spread over all devices stay so."""
    x = spread(jnp.arange(8.0))
    make_keys = jax.jit(lambda: jax.random.split(jax.random.key(0), 8), out_shardings=x.sharding)

    def body(carry):
        i, x, keys = carry
        x = x + 1
        spoolax.log({"x": x, "keys": keys})
        return i + 1, x, keys

    def f(x, keys):
        return lax.while_loop(lambda carry: carry[0] < length, body, (0, x, keys))[1]

    keys = make_keys()
    _, logs = spoolax.spool(f)(x, keys)
    shape, last = logs["x"].shape, logs["x"][-1]
    mine = sorted((s.index[0].start, s.data.tolist()) for s in last.addressable_shards)
    same = jax.jit(lambda one, other: jnp.all(one == other))(logs["keys"], keys)
    return [shape, mine, bool(same), logs["keys"].is_fully_addressable]


@program
def tapped(*lengths):
    """What is heard of loops, and how often each of the programs has called the host."""
    x, found, receive, calls = spread(jnp.arange(8.0)), [], Receiver.__call__, []

    def counted(*args):
        calls.append(1)
        return receive(*args)

    Receiver.__call__ = counted
    for length in lengths:
        seen = []
        calls.clear()
        spoolax.tap(counting, lambda logs, seen=seen: seen.append(int(logs["i"])))(x, length)
        spoolax.flush()
        found.append([seen, len(calls)])
    return found


@program
def tapped_parts(length):
    """Entries that are spread over processes, with a scan and a program of this process only."""
    x, seen, mine = spread(jnp.arange(8.0)), [], []

    def f(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return x + 1, None

        x, _ = lax.scan(body, x, jnp.arange(length))
        spoolax.log({"end": x})
        return x

    for _ in range(2):
        spoolax.tap(f, lambda logs: seen.append([*logs, *map(float, logs[next(iter(logs))])]))(x)
        spoolax.tap(f, lambda logs: mine.append(len(logs)))(jnp.arange(2.0))
    spoolax.flush()
    return [seen, len(mine)]


def in_shards(body, devices=None):
    """Map a function of one number over devices: over all, if not told otherwise."""
    where = mesh() if devices is None else Mesh(np.array(devices), ("device",))
    spec = PartitionSpec("device")
    return jax.shard_map(body, mesh=where, in_specs=spec, out_specs=spec)


@program
def tapped_shards(jit):
    """Loops of a `shard_map`: as they are heard, and when there is more than is left at the end."""
    x, found, receive, calls = spread(jnp.arange(float(jax.device_count()))), {}, InStep.of_all, []
    jit = jax.jit if jit else lambda f: f

    def counted(*args):
        calls.append(1)
        return receive(*args)

    InStep.of_all = counted

    def odd(x):
        spoolax.log({"odd": x[0]})

    def scan(x):
        def body(x, i):
            spoolax.log({"x": x[0], "twice": 2 * i}, step=i)
            lax.cond(x[0] % 2 > 0, odd, lambda x: None, x)
            return x + 1, None

        spoolax.log({"before": x[0]})
        return lax.scan(body, x, jnp.arange(5000))[0]

    def while_loop(x):
        def body(x):
            spoolax.log({"x": x[0]})
            return x + 1

        return lax.while_loop(lambda x: x[0] < 12_000, body, 8000 * (x % 2))

    def nested(x):
        def outer(x, i):
            def inner(x, j):
                spoolax.log({"x": x[0]})
                return x + 1, None

            x = lax.cond(x[0] % 2 > 0, lambda x: lax.scan(inner, x, length=2)[0], lambda x: x, x)
            return x + 1, None

        return lax.scan(outer, x, jnp.arange(3))[0]

    for f in (scan, while_loop, nested):
        seen, mine = [], []

        def hear(logs, seen=seen):
            (key, value), *_ = logs.items()
            lanes = logs.valid[key].tolist() if key in logs.valid else True
            seen.append([key, value.tolist(), lanes])

        calls.clear()
        y = jit(spoolax.tap(in_shards(f), hear, latency=0.02))(x)
        spoolax.flush()
        found[f.__name__] = [seen, len(calls) > 1, float(y.sum())]
        # A program of this process only.
        local = in_shards(f, jax.local_devices())
        jit(spoolax.tap(local, mine.append))(jnp.arange(float(jax.local_device_count())))
        spoolax.flush()
        found[f"mine of {f.__name__}"] = len(mine)

    def in_a_loop(x):
        return lax.scan(lambda x, _: (while_loop(x), None), x, None, 2)[0]

    found["refused"] = outcome(lambda: jit(spoolax.tap(in_shards(in_a_loop), lambda logs: None))(x))
    return found


@program
def on_another_first():
    """Programs on a mesh whose first device is not one of the first process."""
    devices = np.array([jax.devices()[n] for n in (3, 0, 2, 1)])
    place = NamedSharding(Mesh(devices, ("device",)), PartitionSpec("device"))
    x = jax.make_array_from_callback((4,), place, lambda index: np.arange(4.0)[index])
    found = []
    for f in (logs_numbers, in_shards(logs_numbers, devices)):
        for how in ("tap", "jit", "listening"):
            seen = []

            def hear(logs, seen=seen):
                seen.append(int(logs["i"].ravel()[0]))

            if how == "listening":
                with spoolax.listening(hear):
                    jax.block_until_ready(jax.jit(f)(x))
            else:
                tapped = spoolax.tap(f, hear, latency=0.02)
                (jax.jit(tapped) if how == "jit" else tapped)(x)
            spoolax.flush()
            found.append(seen == list(range(3000)) or len(seen))
    return found


def logs_numbers(x):
    """Count, in a loop that is long enough to pause."""

    def body(i, x):
        spoolax.log({"i": i, "x": x})
        return jnp.sin(x)

    return lax.fori_loop(0, 3000, body, x)


@program
def spooled_masks():
    """Entries that happen on some devices only: what is valid is known to all processes."""
    x, found = spread(jnp.arange(4.0)), []

    def body(x, _):
        lax.cond(x.sum() % 2 > 0, lambda: spoolax.log({"x": x}) and None, lambda: None)
        return x + 1, None

    def f(x):
        return lax.scan(body, x, None, length=4)[0]

    for options in ({}, {"reduce": "sum"}, {"interval": 2}, {"capacity": 3}):
        _, logs = spoolax.spool(in_shards(f), **options)(x)
        found.append(np.asarray(logs.valid["x"]).tolist())
    return found


@program
def stopped_shards():
    """A long loop of a `shard_map` that a callback stops."""
    x = spread(jnp.arange(float(jax.device_count())))

    def long(x):
        def body(i, x):
            spoolax.log({"i": i})
            return jnp.sin(x)

        return lax.fori_loop(0, 1_000_000_000, body, x)

    def stop(logs):
        if logs["i"] == 20:
            raise spoolax.StopRun("enough")

    return outcome(spoolax.tap(in_shards(long), stop), x)


@program
def logged(directory):
    """Loggers in a Python loop, of values that processes have copies and parts of."""
    loggers, storage = spoolax.loggers, spoolax.storage
    x, results = spread(jnp.arange(8.0)), {}

    @jax.jit
    def step(x):
        return x + 1, jnp.sum(x)

    schema = {"frames": storage.WriterGroupConfig(lambda s: {"x": s["x"]}, loggers.EveryNStep(2))}
    state = {"x": x, "sum": jnp.sum(x)}
    with (
        loggers.JsonlLogger(f"{directory}/first.jsonl") as first,
        loggers.JsonlLogger(f"{directory}/each.jsonl", processes="each") as each,
        loggers.JsonlLogger(f"{directory}/time.jsonl", every=loggers.EverySeconds(1e-6)) as timed,
        storage.SaveLogger(f"{directory}/saved.h5") as saved,
        storage.HDF5StorageWriter(f"{directory}/frames.h5", schema, state) as frames,
        spoolax.run("many", directory=directory, show=False) as run,
    ):
        for i in range(5):
            x, total = step(x)
            for logger in (first, saved, frames, run):
                logger.log({"x": x, "sum": total}, i)
            each.log({"process": jax.process_index(), "sum": total}, i)
            timed.log({"sum": total}, i)
        results["time"] = outcome(timed.log, {"x": x}, 5)
        run.checkpoint({"x": x}, 4)
    results["paths"] = [str(one.path) for one in (first, each, saved, run)]
    results["silent"] = [one.is_silent for one in (first, each, saved, frames, timed)]
    with spoolax.run("many", directory=directory, show=False, resume=str(run.path)) as again:
        restored, start = again.restored({"x": x})
        same = all(
            np.array_equal(one.data, other.data)
            for one, other in zip(
                restored["x"].addressable_shards, x.addressable_shards, strict=True
            )
        )
        results["restored"] = [start, same, again.path == run.path]
    results["refused"] = outcome(
        lambda: loggers.JsonlLogger(f"{directory}/first.jsonl").__enter__()
    )
    results["mine"] = outcome(_each_run, directory)
    results["tracked"] = _tracked(directory)
    spoolax.flush(everywhere=True)
    return results


@program
def opened_apart(directory):
    """Every process has a path of its own, as if it had the time in it."""
    said = []
    logging.getLogger("spoolax").addFilter(lambda record: said.append(record.getMessage()))
    spoolax._processes.APART, spoolax._processes.HINT = 3, 1
    path = f"{directory}/{jax.process_index()}.jsonl"
    return [outcome(lambda: spoolax.loggers.JsonlLogger(path).__enter__()), said]


class Nowhere(spoolax.loggers.TrackerLogger):
    """A tracker that keeps nothing."""

    def send(self, rows):
        """Send them nowhere."""


def _tracked(directory):
    with (
        Nowhere(name="one", spill=directory) as one,
        Nowhere(name="each", spill=directory, processes="each") as each,
    ):
        for logger in (one, each):
            logger.log({"x": 1}, 0)
        assert one.flush()
    return [one.run_id, each.name, each.group]


def _each_run(directory):
    with spoolax.run("each", directory=directory, show=False, processes="each") as run:
        for i in range(3):
            run.log({"process": jax.process_index()}, i)
            run.checkpoint(i, i)
    with spoolax.run(
        "each", directory=directory, show=False, processes="each", resume=run.path
    ) as r:
        at, start = r.restored(0)
        assert (at, start) == (2, 3), (at, start)
        r.log({"process": jax.process_index()}, 3)


@program
def listened():
    """A callback that fails on one process, and one that stops a loop of steps."""
    x, seen, origins = spread(jnp.arange(8.0)), [], set()

    def fails(logs):
        seen.append(int(logs["i"]))
        origins.add(logs.origin.process)
        raise ValueError("broken")

    y = spoolax.tap(counting, fails)(x, 100)
    raised = outcome(spoolax.flush)

    @jax.jit
    def step(x):
        spoolax.log({"sum": x.sum()})
        return x + 1

    heard = []

    def enough(logs):
        heard.append(float(logs["sum"]))
        if len(heard) == 3:
            raise spoolax.StopRun("enough")

    def loop(x, waits):
        with spoolax.listening(enough):
            for _ in range(200):
                x = step(x)
                if waits:
                    time.sleep(0.05)  # So that it is known by the next step.
                    jax.block_until_ready(x)

    stopped = []
    for waits in (False, True):
        heard.clear()
        stopped += [outcome(loop, x, waits), list(heard)]
    late = outcome(spoolax.flush, True, 0.5) if jax.process_index() == 0 else None
    return [len(seen), sorted(origins), raised, float(y.sum()), *stopped, late]


class At(spoolax.Logger):
    """Does something in one process, when that gets the state after a step."""

    processes = "all"

    def __init__(self, process, step, act):
        self.process, self.step, self.act, self.steps = process, step, act, []

    def log(self, state, step):
        """Note the step."""
        self.steps.append(step)
        if jax.process_index() == self.process and step == self.step:
            self.act()


def _raises(error):
    raise error


def _presses_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@program
def simulated():
    """Simulations that one process stops, each followed by another that all take part in."""
    x, key, found = spread(jnp.arange(8.0)), jax.random.key(0), {}

    def step(key, x):
        return x + 1 + 0 * x.sum()

    def run(name, logger, n_steps=300, **options):
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            try:
                y = spoolax.simulate(step, x, n_steps, key=key, logger=logger, **options)
                how = float(y.sum() - x.sum()) / 8
            except spoolax.StopRun as stop:
                how = f"{type(stop).__name__}: {stop}"
        said = [str(one.message).splitlines()[0] for one in issued]
        ending = getattr(logger, "ending", None)
        found[name] = [how, spoolax.interrupted(), said, ending and ending.status]

    run("whole", At(1, -1, None), inner=7)
    run("until", At(1, -1, None), until=lambda x: x[0] >= 50, inner=7)
    ctrl_c = At(1, 20, _presses_ctrl_c)
    run("interrupted", ctrl_c, warmup=3)
    found["logged"] = ctrl_c.steps
    run("stopped", At(0, 30, lambda: _raises(spoolax.StopRun("enough"))))
    run("converged", At(0, 30, lambda: _raises(spoolax.Converged("there"))))
    run("at the end", At(1, 9, lambda: _raises(spoolax.StopRun("late"))), 10)
    run("again", None, 10)
    return found


def writer(path, state, **options):
    """Stores rows that all processes have pieces of, and such that they have the whole of."""
    storage, every = spoolax.storage, spoolax.loggers.EveryNStep
    schema = {
        "frames": storage.WriterGroupConfig(lambda s: {"x": s["x"], "sum": s["x"].sum()}, every(2)),
        "sums": storage.WriterGroupConfig(lambda s: {"sum": s["x"].sum()}, every(1)),
        "first": storage.WriterGroupConfig(lambda s: {"x": s["x"]}, spoolax.loggers.Once()),
    }
    return storage.ZarrStorageWriter(path, schema, state, **options)


@program
def stored(path):
    x = spread(jnp.arange(3200.0).reshape(8, 400))
    step = jax.jit(lambda x: x + 1)
    with writer(path, {"x": x}) as one:
        for i in range(5):
            x = step(x)
            one.log({"x": x}, i)
    with writer(path, {"x": x}, resume=2) as two:
        for i in range(3, 8):
            two.log({"x": step(x)}, i)
        two.log({"x": np.ones((8, 400), np.float32)}, 8)  # Which every process has the whole of.
    return [one.is_silent, two.is_silent, sorted(jax.tree.leaves(two._groups[0].grid))]


@program
def left_early(path):
    """The second process has fewer rows, because of an error of its own."""
    x, step = spread(jnp.arange(3200.0).reshape(8, 400)), jax.jit(lambda x: x + 1)
    schema = {"frames": spoolax.storage.WriterGroupConfig(lambda s: {"x": s["x"]})}

    def loop():
        nonlocal x
        with spoolax.storage.ZarrStorageWriter(path, schema, {"x": x}) as one:
            for i in range(10):
                if i == 5 and jax.process_index() == 1:
                    raise ValueError("no more")
                one.log({"x": x}, i)
                x = step(x)

    return outcome(loop)


@program
def skipped(path, where):
    """One process cannot take a row, and goes on all the same."""
    x = spread(jnp.arange(3200.0).reshape(8, 400))
    schema = {"frames": spoolax.storage.WriterGroupConfig(lambda s: {"x": s["x"]})}
    raised = []

    def loop():
        with spoolax.storage.ZarrStorageWriter(path, schema, {"x": x}) as one:
            for i in range(10):
                state = {"x": x + i}
                if i == 5 and jax.process_index() == where:
                    state = {"y": x}
                if message := outcome(lambda state=state, i=i: one.log(state, i)):
                    raised.append(message.splitlines()[0])

    return [outcome(loop), raised]


@program
def left_waiting(path):
    """The first process fails, while the other is busy with something else."""
    x, said = spread(jnp.arange(3200.0).reshape(8, 400)), []
    logging.getLogger("spoolax").addFilter(lambda record: said.append(record.getMessage()))
    _together.HINT = 1.0
    schema = {"frames": spoolax.storage.WriterGroupConfig(lambda s: {"x": s["x"]})}

    def loop():
        with spoolax.storage.ZarrStorageWriter(path, schema, {"x": x}) as one:
            for i in range(10):
                one.log({"x": x + i}, i)
                if i == 3 and jax.process_index() == 1:
                    one.commit()
                    processes.hear("spoolax/tests/left", 120)
                    return
                if i == 5 and jax.process_index() == 0:
                    last = time.monotonic() + 60
                    while not said and time.monotonic() < last:
                        time.sleep(0.1)
                    raise ValueError("mine")

    try:
        loop()
        notes = []
    except ValueError as error:
        notes = error.__notes__
        processes.tell("spoolax/tests/left", "left")
    return [notes, said]


@program
def killed(directory):
    """The second process ends without a word, when something is on the disk."""
    x, lines, saved = spread(jnp.arange(8.0)), f"{directory}/log.jsonl", f"{directory}/log.h5"
    step = jax.jit(lambda x: x + jnp.sum(x) * 0 + 1)
    wide = jax.jit(lambda x: jnp.broadcast_to(x[:, None], (8, 400)))
    with (
        spoolax.loggers.JsonlLogger(lines) as one,
        spoolax.storage.SaveLogger(saved) as other,
        writer(f"{directory}/log.zarr", {"x": wide(x)}) as frames,
    ):
        for i in range(1_000_000):
            x = step(x)
            for logger in (one, other):
                logger.log({"x": x}, i)
            frames.log({"x": wide(x)}, i)
            if jax.process_index() == 1 and i % 50 == 49:
                jax.block_until_ready(x)
                if _rows(lines, saved, f"{directory}/log.zarr") >= 30:
                    os.kill(os.getpid(), signal.SIGKILL)


def _rows(lines, saved, frames):
    """How many are in all files by now."""
    try:
        with spoolax.open(frames) as run:
            rows = len(run["frames/x"])
        return min(
            rows, len(list(spoolax.loggers.read_jsonl(lines))), len(spoolax.load(saved)["x"])
        )
    except KeyError:  # Not even the table is there.
        return 0


if __name__ == "__main__":
    name, number, count, port, args = sys.argv[1:]
    at = f"127.0.0.1:{port}"
    jax.distributed.initialize(at, int(count), int(number), heartbeat_timeout_seconds=20)
    print(json.dumps(PROGRAMS[name](*json.loads(args))))
