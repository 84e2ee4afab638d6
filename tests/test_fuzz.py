"""Random programs log what a plain-Python run of them logs, whatever they are nested in."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
from fuzz import Jax, Node, Python, nodes
from hypothesis import HealthCheck, given, reject, settings
from lanes import assert_same_entries, embedding, joined

import spoolax

EXAMPLES = int(os.environ.get("SPOOLAX_FUZZ", "40"))
X = jnp.float32(3)


SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=os.environ.get("SPOOLAX_FUZZ") is None,
    suppress_health_check=list(HealthCheck),
)
LANES = range(2, 9)  # The sizes of nested vmaps in these programs.


def check(program, run=spoolax.spool):
    """Run a program with JAX and with Python; return the logs of both."""

    def f(x):
        return Jax().run(program, x, 0)

    python = Python()
    want, _ = python.run(program, 3.0, 1.0, ())
    try:
        plain = jax.jit(lambda x: Jax(listen=False).run(program, x, 0))(X)
    except (TypeError, NotImplementedError):
        reject()  # JAX itself refuses, such as the forward mode of a `custom_vjp`.
    assert float(plain) == want
    y, logs = run(f)(X)
    np.testing.assert_array_equal(y, plain)
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


@SETTINGS
@given(nodes())
def test_random_programs_stream_what_plain_python_logs(program):
    """The same entries, as they arrive while the program runs, directly or inside of `jit`."""
    for outer in (lambda f: f, jax.jit):
        seen = []

        def run(f, outer=outer, seen=seen):
            def call(x):
                y = outer(spoolax.tap(f, seen.append))(x)
                spoolax.flush()
                return y, seen

            return call

        _, expected = check(program, run)
        assert_same_entries(joined(seen), expected, LANES)


def test_programs_that_once_went_wrong():
    """Programs that the fuzzer found."""
    for program in FOUND:
        logs, expected = check(program)
        assert_same_entries(logs, expected, LANES)


FOUND: list[Node] = []
