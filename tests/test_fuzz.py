"""Random programs log what a plain-Python run of them logs, whatever they are nested in."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import Jax, Node, Python, nodes
from hypothesis import HealthCheck, given, reject, settings
from lanes import assert_same_entries, embedding, joined

import spoolax

COUNT = os.environ.get("SPOOLAX_FUZZ")  # How many programs; without it, few, always the same.
X = jnp.float32(3)
LANES = range(2, 9)  # The sizes of nested vmaps in these programs.

pytestmark = pytest.mark.usefixtures("unoptimized")


SETTINGS = settings(
    max_examples=int(COUNT or 25),
    deadline=None,
    derandomize=COUNT is None,
    suppress_health_check=list(HealthCheck),
)


def check(program, run=spoolax.spool):
    """Run a program with JAX and with Python; return the logs of both."""

    def f(x):
        return Jax().run(program, x, 0)

    python = Python()
    want, _ = python.run(program, 3.0, 1.0, ())
    try:
        jax.jit(lambda x: Jax(listen=False).run(program, x, 0)).lower(X)
    except (TypeError, NotImplementedError):
        reject()  # JAX itself refuses, such as the forward mode of a `custom_vjp`.
    y, logs = run(f)(X)
    assert float(y) == want
    return logs, python.entries


@SETTINGS
@given(nodes())
def test_random_programs_log_what_plain_python_logs(program):
    """Exactly the entries that happened, once, in order, with the output unchanged."""
    logs, expected = check(program)
    assert_same_entries(logs, expected, LANES)


@SETTINGS
@given(nodes())
def test_random_programs_fold_what_plain_python_logs(program):
    """The same inside of a trace, where entries are folded as they come, lane by lane."""
    logs, expected = check(program, lambda f: jax.jit(spoolax.spool(f, reduce="sum")))
    for key, total in logs.items():
        mine = [entry for entry in expected if entry[1] == key]
        sizes = tuple(LANES[: int(key.partition("@")[2])])
        for lane in itertools.product(*map(range, sizes)):
            values = [value for where, _, value, _ in mine if where == lane]
            place = tuple(lane[i] for i in embedding(total.shape, sizes))
            assert float(total[place]) == sum(values)
            assert bool(np.broadcast_to(logs.valid[key], total.shape)[place]) == bool(values)


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["tap", "jit(tap)"])
def test_random_programs_stream_what_plain_python_logs(outer):
    """The same entries, as they arrive while the program runs, directly or inside of `jit`."""

    @SETTINGS
    @given(nodes())
    def streams(program):
        logs, expected = check(program, streamed(outer))
        assert_same_entries(logs, expected, LANES)

    streams()


def streamed(outer):
    """Run a function under `tap`, and return its output and what arrived."""

    def run(f):
        def call(x):
            seen = []
            y = outer(spoolax.tap(f, seen.append))(x)
            spoolax.flush()
            return y, joined(seen)

        return call

    return run


def program(*body):
    return Node("seq", 0, body)


LOG, CONSTANT = Node("log"), Node("constant")

# The smallest programs that the fuzzer finds if something of spoolax is taken away.
FOUND = {
    "masks of batched branches": program(Node("vmap", 0, (Node("cond", 0, (LOG,)),))),
    "masks of batched loops": program(Node("vmap", 0, (Node("while", 0, (LOG,)),))),
    "entries of differentiated scans": program(Node("grad", 0, (Node("scan", 0, (CONSTANT,)),))),
    "counters of loops in differentiated scans": program(
        Node("grad", 0, (Node("scan", 0, (Node("while", 0, (LOG,)),)),))
    ),
    "the order of reverse scans": program(Node("reverse", 2, (LOG, Node("add", 1)))),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize(
    "run",
    [spoolax.spool, streamed(lambda f: f), streamed(jax.jit)],
    ids=["spool", "tap", "jit(tap)"],
)
def test_programs_that_went_wrong(name, run):
    """Each needs what it is named for."""
    logs, expected = check(FOUND[name], run)
    assert_same_entries(logs, expected, LANES)
