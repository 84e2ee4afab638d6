"""Random programs log what a plain-Python run of them logs, whatever they are nested in."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from fuzz import Jax, Node, Python, nodes
from hypothesis import HealthCheck, given, reject, settings
from lanes import assert_same_entries

import chiplog

EXAMPLES = int(os.environ.get("CHIPLOG_FUZZ", "60"))
X = jnp.float32(3)


def check(program):
    def f(x):
        return Jax().run(program, x, 0)

    python = Python()
    want, _ = python.run(program, 3.0, 1.0, ())
    try:
        plain = jax.jit(lambda x: Jax(listen=False).run(program, x, 0))(X)
    except (TypeError, NotImplementedError):
        reject()  # JAX itself refuses, such as the forward mode of a `custom_vjp`.
    assert float(plain) == want
    y, logs = chiplog.spool(f)(X)
    np.testing.assert_array_equal(y, plain)
    assert_same_entries(logs, python.entries, lane_sizes=range(2, 9))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=os.environ.get("CHIPLOG_FUZZ") is None,
    suppress_health_check=list(HealthCheck),
)
@given(nodes())
def test_random_programs_log_what_plain_python_logs(program):
    """Exactly the entries that happened, once, in order, with the output unchanged."""
    check(program)


def test_programs_that_once_went_wrong():
    """Programs that the fuzzer found."""
    for program in FOUND:
        check(program)


FOUND: list[Node] = []
