"""The command and the runs it looks at: how long it takes to start, to list and to draw.

And what `spoolax.run` adds to a Python loop, beside what people would use instead.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import spoolax
from spoolax.storage import SaveLogger

from .measure import _time, race

RUNS, POINTS, STEPS = 1000, 1_000_000, 1000
COMMAND = [sys.executable, "-m", "spoolax"]


def main():
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        commands(top)
        loops(top)


def commands(top):
    first = top / "runs" / "run-0000"
    first.mkdir(parents=True)
    with SaveLogger(first / "log.h5", config={"rate": 0.1}) as logger:
        for i in range(200):
            logger.log({"loss": 1 / (1 + i), "accuracy": i / 200}, i)
    content = (first / "log.h5").read_bytes()
    for number in range(1, RUNS):
        path = top / "runs" / f"run-{number:04}"
        path.mkdir()
        (path / "log.h5").write_bytes(content)
    walk = np.cumsum(np.random.default_rng(0).normal(size=POINTS)).astype(np.float32)
    logs = spoolax.LogDict(
        {"walk": walk}, steps={"step": {"walk": np.arange(POINTS)}}, stacked=["walk"]
    )
    with SaveLogger(top / "long.h5") as logger:
        logger.log_many(logs)

    def command(*arguments):
        def run():
            subprocess.run([*COMMAND, *arguments], cwd=top, check=True, capture_output=True)

        return run

    begin = time.perf_counter()
    command("ls", "-n", "0")()
    begin = time.perf_counter() - begin
    times = race(
        {
            "python -c pass": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
            "import jax": lambda: subprocess.run([sys.executable, "-c", "import jax"], check=True),
            "spoolax --help": command("--help"),
            "spoolax show": command("show", "run-0000"),
            f"spoolax ls, {RUNS} runs": command("ls", "-n", "0"),
            f"spoolax plot, {POINTS:.0e} points": command("plot", "long.h5", "walk"),
            "  into a picture": command("plot", "long.h5", "walk", "-o", "walk.png"),
        },
        rounds=5,
        target=0.0,
    )
    print(f"\nThe command. The first `ls` of {RUNS} runs, without an index: {_time(begin)}")
    goals = {"spoolax --help": 0.3, "spoolax show": 0.3, f"spoolax ls, {RUNS} runs": 1.0}
    for name, t in times.items():
        goal = goals.get(name)
        said = "" if goal is None else f"  goal {goal} s: {'met' if t <= goal else 'MISSED'}"
        print(f"  {name:<32} {_time(t):>9}{said}")


def loops(top):
    @jax.jit
    def silent(x):
        return jnp.tanh(x @ x / x.shape[0] + 0.1)

    @jax.jit
    def logging(x):
        x = silent(x)
        spoolax.log({"mean": x.mean(), "max": x.max()})
        return x

    start = jnp.eye(300)

    def python(step, each=lambda x: None):
        x = start
        for _ in range(STEPS):
            x = step(x)
            each(x)
        x.block_until_ready()

    def recorded():
        with spoolax.run("loop", directory=top / "loops", show=False):
            python(logging)

    calls = {"nothing": lambda: python(silent), "spoolax.run": recorded}
    with contextlib.ExitStack() as stack:
        for add in (_wandb, _tensorboard):
            with contextlib.suppress(ImportError):
                name, each = add(stack)
                calls[name] = lambda each=each: python(silent, each)
        times = race(calls, rounds=5, target=0.0)
    print(f"\n{STEPS} calls of a jitted step that logs two numbers, each")
    for name, t in times.items():
        print(f"  {name:<32} {_time(t / STEPS):>9} {t / times['nothing']:>8.2f}x")


def _wandb(stack):
    import wandb

    directory = stack.enter_context(tempfile.TemporaryDirectory())
    settings = wandb.Settings(silent=True, mode="offline")
    run = stack.enter_context(wandb.init(dir=directory, settings=settings))
    return "wandb offline, by hand", lambda x: run.log(
        {"mean": float(x.mean()), "max": float(x.max())}
    )


def _tensorboard(stack):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorboardX

    directory = stack.enter_context(tempfile.TemporaryDirectory())
    writer = stack.enter_context(tensorboardX.SummaryWriter(directory))

    def each(x):
        writer.add_scalar("mean", float(x.mean()))
        writer.add_scalar("max", float(x.max()))

    return "tensorboardX, by hand", each
