"""Trackers: scalars per second, and what a call costs the thread of the user's loop.

For comparison, there is the way without spoolax: the tracker's own function, called in the loop for
every scalar. The time to open and close a run does not count.
"""

import contextlib
import io
import os
import statistics
import tempfile
import time
import uuid

import jax
import jax.numpy as jnp

import spoolax
from spoolax.loggers import MlflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger

from .measure import _time, verdict

ROUNDS = 5
NAMES = "abcd"


@jax.jit
def step(state):
    return {name: jnp.sin(x) for name, x in state.items()}


def many(count):
    """The same loop as a compiled program."""

    def program(state):
        def body(state, i):
            state = step(state)
            spoolax.log(state, step=i)
            return state, None

        return jax.lax.scan(body, state, jnp.arange(count))[0]

    return program


def loop(count, log):
    """Run a Python loop; return how many seconds of it `log` took."""
    state, spent = {name: jnp.float32(i) for i, name in enumerate(NAMES)}, 0.0
    for i in range(count):
        state = step(state)
        begun = time.perf_counter()
        log(state, i)
        spent += time.perf_counter() - begun
    return spent


class Wandb:
    name, count = "wandb, offline", 500

    def logger(self, directory):
        return WandbLogger(directory=directory)

    @contextlib.contextmanager
    def by_hand(self, directory):
        import wandb

        run = wandb.init(mode="offline", project="by-hand", dir=directory, reinit="create_new")
        yield lambda name, x, i: run.log({name: x, "step": i})
        run.finish()


class TensorBoard:
    name, count = "TensorBoard", 500

    def logger(self, directory):
        return TensorBoardLogger(directory=directory)

    @contextlib.contextmanager
    def by_hand(self, directory):
        import tensorboardX

        with tensorboardX.SummaryWriter(f"{directory}/by-hand-{uuid.uuid4().hex}") as writer:
            yield lambda name, x, i: writer.add_scalar(name, x, i)


class Mlflow:
    name, count = "MLflow, sqlite", 100

    def logger(self, directory):
        return MlflowLogger(directory=directory)

    @contextlib.contextmanager
    def by_hand(self, directory):
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
        with mlflow.start_run():
            yield lambda name, x, i: mlflow.log_metric(name, x, step=i)


class Trackio:
    name, count = "Trackio", 500

    def logger(self, directory):
        return TrackioLogger(directory=os.environ["TRACKIO_DIR"], auto_log_cpu=False)

    @contextlib.contextmanager
    def by_hand(self, directory):
        import trackio

        run = trackio.init(project="by-hand", embed=False, auto_log_cpu=False)
        yield lambda name, x, i: trackio.log({name: x}, step=i)
        run.finish()


def by_hand(tracker, directory):
    with tracker.by_hand(directory) as one:
        begun = time.perf_counter()
        spent = loop(
            tracker.count, lambda state, i: [one(name, float(x), i) for name, x in state.items()]
        )
        return spent, time.perf_counter() - begun


def in_a_loop(tracker, directory):
    with tracker.logger(directory) as logger:
        _ = logger.native
        begun = time.perf_counter()
        spent = loop(tracker.count, logger.log)
        assert logger.flush(120)
        return spent, time.perf_counter() - begun


def in_a_program(tracker, directory):
    with tracker.logger(directory) as logger:
        _ = logger.native
        f = logger.tap(many(tracker.count))
        state = {name: jnp.float32(i) for i, name in enumerate(NAMES)}
        f(state)  # Compiles it.
        assert logger.flush(120)
        begun = time.perf_counter()
        jax.block_until_ready(f(state))
        spent = time.perf_counter() - begun
        assert logger.flush(120)
        return spent, time.perf_counter() - begun


WAYS = {
    "own API, each scalar": by_hand,
    "logger.log in the loop": in_a_loop,
    "logger.tap, compiled": in_a_program,
}


def main():
    os.environ["WANDB_SILENT"] = "true"
    os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()
    print("\ntrackers: entries of four scalars; median of", ROUNDS, "rounds in turns")
    print(f"  {'':<16}{'':<26}{'main thread, per entry':>24}{'scalars per second':>22}")
    for tracker in (Wandb(), TensorBoard(), Mlflow(), Trackio()):
        directory = tempfile.mkdtemp()
        found = {way: [] for way in WAYS}
        with contextlib.redirect_stdout(io.StringIO()):
            for _ in range(1 + ROUNDS):  # The first one warms up.
                for way, run in WAYS.items():
                    found[way].append(run(tracker, directory))
        medians = {
            way: [statistics.median(each) for each in zip(*times[1:], strict=True)]
            for way, times in found.items()
        }
        for way, (spent, whole) in medians.items():
            rate = tracker.count * len(NAMES) / whole
            each = _time(spent / tracker.count)
            is_loop = WAYS[way] is in_a_loop
            goal = verdict(whole / medians["own API, each scalar"][1], 1.0) if is_loop else ""
            print(f"  {tracker.name:<16}{way:<26}{each:>24}{rate:>22,.0f}{goal}")


if __name__ == "__main__":
    main()
