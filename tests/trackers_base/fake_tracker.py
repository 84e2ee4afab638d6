"""A tracker in memory, which can be away, slow, or picky."""

import threading

import jax
import jax.numpy as jnp

import spoolax
from spoolax.loggers import TrackerLogger
from spoolax.loggers.trackers._delivery.timing import Timing


class Site:
    """Where a tracker keeps its runs. It can be away, slow, or picky."""

    def __init__(self):
        self.runs = {}
        self.is_away = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.calls = 0
        self._called = threading.Condition()

    def wait_for_calls(self, count):
        with self._called:
            assert self._called.wait_for(lambda: self.calls >= count, 20)

    def ask(self):
        with self._called:
            self.calls += 1
            self._called.notify_all()
        assert self.answers.wait(20)
        if self.is_away.is_set():
            raise ConnectionError("nobody is there")


class ToSite(TrackerLogger):
    """A tracker in memory."""

    most = 3
    _timing = Timing(first_pause=0.002, longest_pause=0.05, tick=0.01, gather=0.01)

    def load(self):
        self.check_known(["site"], "this one")
        self.site = self.options["site"]

    def connect(self):
        self.site.ask()
        self.rows, self.ended = [], None
        self.site.runs[self.name] = self

    def send(self, rows):
        self.site.ask()
        if any("bad" in row.scalars for row in rows):
            raise ValueError("this is no good")
        self.rows += rows

    def finish(self, ending):
        self.site.ask()
        self.ended = "well" if ending.status == "finished" else ending.status

    def _native(self):
        return self.rows

    def numbers(self, name="x"):
        return [row.scalars[name] for row in self.rows if name in row.scalars]


def scalars_only(x):
    def body(x, i):
        spoolax.log({"x": x, "n": i, "odd": i % 2 == 1, "bf": x.astype(jnp.bfloat16)}, step=i)
        return x / (3.0 - i.astype(x.dtype)), None

    return jax.lax.scan(body, x, jnp.arange(6))[0]


def waiting_files(directory):
    return sorted((directory / "spoolax-unsent").glob("*.jsonl"))


def log_seeds(logger):
    """Open three runs, and log six entries to each, without a program to compile."""
    jax.vmap(logger.init)(jnp.arange(3))
    for run in logger.runs.values():
        for i in range(6):
            run.log({"x": i}, i)
