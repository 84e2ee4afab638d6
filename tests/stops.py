"""Programs that would never end, and what becomes of them: a script that `test_stop.py` runs.

With `interrupts`, Ctrl-C is pressed once a program has logged a little; with a number and a port,
this is one of two processes that share a program.
"""

import asyncio
import json
import os
import pathlib
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spoolax
from spoolax.loggers import JsonlLogger


def forever(x):
    """Normalize a vector forever. On several devices, they wait for each other every time."""

    def body(carry):
        i, x = carry
        x = x / jnp.sum(x)
        spoolax.log({"i": i})
        return i + 1, x

    return lax.while_loop(lambda carry: True, body, (0, x))


def spread(x):
    """Put parts of a vector on all devices."""
    mesh = Mesh(np.array(jax.devices()), ("device",))
    return jax.make_array_from_callback(
        x.shape, NamedSharding(mesh, PartitionSpec("device")), lambda index: np.asarray(x)[index]
    )


def press():
    os.kill(os.getpid(), signal.SIGINT)


class PressesAt:
    """A callback that presses Ctrl-C when an entry arrives, and keeps them all."""

    def __init__(self, at):
        self.at, self.seen = at, []

    def __call__(self, logs):
        self.seen.append(int(logs["i"]))
        if logs["i"] == self.at:
            press()


def outcome(run, *args):
    try:
        run(*args)
    except BaseException as error:
        return type(error).__name__
    return "nothing was raised"


def interrupts(path):
    x, results = jnp.arange(1.0, 5.0), {}
    for name, given in {"one device": x, "two devices": spread(x)}.items():
        callback = PressesAt(100)
        raised = outcome(spoolax.tap(forever, callback), given)
        spoolax.flush()
        in_order = callback.seen == list(range(len(callback.seen))) and len(callback.seen) > 100
        results[f"tap on {name}"] = raised, in_order

    def large(x):  # Enough for XLA to use several threads.
        y, _ = lax.scan(lambda c, i: (c + i, None), 0, jnp.arange(1 << 20))
        return forever(x + y)

    results["tap in threads of XLA"] = outcome(spoolax.tap(large, PressesAt(10)), x), True
    spoolax.flush()

    class Tapped(JsonlLogger):
        def write(self, record):
            super().write(record)
            if record.step == 100:
                press()

    with_logger = Tapped(path)

    def logged():
        with with_logger:
            with_logger.tap(forever)(jnp.ones(1 << 16))  # Not much faster than the logger.

    raised = outcome(logged)
    steps = [json.loads(line)["i"] for line in pathlib.Path(path).read_text().splitlines()]
    results["logger.tap"] = raised, steps == list(range(len(steps))) and len(steps) > 100

    class Screen:
        encoding, shown = "utf-8", ""

        def write(self, text):
            before, self.shown = self.shown, self.shown + text
            if "50" in self.shown and "50" not in before:
                press()

        def flush(self):
            pass

        def isatty(self):
            return True

    screen = Screen()
    results["progress"] = outcome(spoolax.progress(forever, file=screen), x), "it" in screen.shown

    def watched(logs):
        if logs.origin.iteration == (100,):
            press()

    results["watch"] = outcome(spoolax.watch(forever, watched, carry=True), x), True
    spoolax.flush()

    timer = threading.Timer(1.0, press)
    timer.start()
    results["spool"] = outcome(spoolax.spool(forever), x), True
    timer.join()

    class Slow(Tapped):
        def write(self, record):
            super().write(record)
            time.sleep(0.01)

    backlog = Slow(f"{path}.slow")

    def interrupted_twice():
        with backlog:
            backlog.tap(forever)(x)

    timer = threading.Timer(6.0, press)  # The first is pressed after a second, by the logger.
    timer.start()
    begun = time.monotonic()
    results["while entries wait"] = outcome(interrupted_twice), time.monotonic() - begun < 30
    timer.join()

    callback, endings = PressesAt(100), {}

    async def ends(name, coroutine):
        try:
            await coroutine
        except BaseException as error:
            endings[name] = type(error).__name__
            raise

    async def tapped():
        spoolax.tap(forever, callback)(x)

    async def main():
        waiting = asyncio.create_task(ends("another task", asyncio.sleep(600)))
        await asyncio.sleep(0)
        await ends("the task", tapped())
        await waiting

    results["asyncio.run"] = (
        outcome(asyncio.run, main()),
        endings == {"the task": "KeyboardInterrupt", "another task": "CancelledError"}
        and len(callback.seen) > 100,
    )
    spoolax.flush()

    def complete(seen):
        return seen == list(range(len(seen))) and len(seen) > 100

    for name, program in {"one device": forever, "threads of XLA": large}.items():
        callback = PressesAt(100)
        raised = outcome(jax.jit(spoolax.tap(program, callback)), x)
        spoolax.flush()
        results[f"jit(tap) in {name}"] = raised, complete(callback.seen)

    inside = Tapped(f"{path}.inside")

    def logged_inside():
        with inside:
            jax.jit(inside.tap(forever))(jnp.ones(1 << 16))

    raised = outcome(logged_inside)
    steps = [json.loads(line)["i"] for line in inside.path.read_text().splitlines()]
    results["jit(logger.tap)"] = raised, complete(steps) and inside.ending.status == "interrupted"

    # It is as it was before.
    results["handler"] = signal.getsignal(signal.SIGINT).__name__, signal.set_wakeup_fd(-1) == -1

    # JAX does not wait for this one: who does is interrupted, and the program still ends.
    callback = PressesAt(100)
    running = jax.jit(spoolax.tap(forever, callback))(spread(x))
    raised = outcome(jax.block_until_ready, running)
    ended = outcome(jax.block_until_ready, running)
    spoolax.flush()
    results["jit(tap) that is awaited"] = (
        raised,
        ended == "JaxRuntimeError" and complete(callback.seen),
    )
    print(json.dumps(results))


def one_of_two(number, port):
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    x, seen, results = spread(jnp.arange(1.0, 5.0)), [], []

    def enough(logs):
        seen.append(int(logs["i"]))
        if logs["i"] == 20:
            raise spoolax.StopRun("enough")

    for _ in range(4):
        results.append(outcome(spoolax.tap(forever, enough), x))
        spoolax.flush()

    @jax.jit
    def step(x):
        spoolax.log({"sum": x.sum()})
        return x + 1

    heard = []
    with spoolax.listening(lambda logs: heard.append(float(logs["sum"]))):
        for _ in range(3):
            x = step(x)
    print(json.dumps([results, seen, heard]))


if __name__ == "__main__":
    if sys.argv[1] == "interrupts":
        interrupts(sys.argv[2])
    else:
        one_of_two(int(sys.argv[1]), sys.argv[2])
