"""Lines about the iterations of optimizers, printed without waiting."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax


class Number:
    """Something that is read when it is printed."""

    def __init__(self, value):
        self.value, self.read_by = value, None

    def __float__(self):
        self.read_by = threading.current_thread().name
        return self.value


def test_iterations_are_printed_by_another_thread_in_order(capsys):
    cost = Number(0.5)
    for i in range(3):
        spoolax.log_iteration_async(i, cost, jnp.float32(i), "note", verbose=2)
    spoolax.log_convergence_async("done", 3, cost.value, 0.1, jnp.float32(0))
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:17] for line in lines[:3]] == [f"Iteration      {i}:" for i in range(3)]
    assert lines[0].endswith("note")
    assert lines[3].startswith("Converged after 3 iterations")
    assert cost.read_by == "spoolax"


@pytest.mark.parametrize(("verbose", "printed"), [(0, []), (1, [0, 10, 20]), (2, list(range(25)))])
def test_verbose_says_which_iterations(verbose, printed, capsys):
    def solve(x):
        def body(carry):
            i, x = carry
            spoolax.log_iteration_async(i, x, x, verbose=verbose)
            return i + 1, x * 0.5

        i, x = lax.while_loop(lambda carry: carry[0] < 25, body, (0, x))
        spoolax.log_convergence_async("it ended", i, x, 0.1, x, verbose=verbose)
        return x

    def found():
        spoolax.flush()
        lines = capsys.readouterr().out.splitlines()
        assert bool(verbose) == any("Converged after 25" in line for line in lines)
        return [int(line.split()[1][:-1]) for line in lines if line.startswith("Iteration")]

    for _ in range(2):  # The second time from the cache.
        assert jax.jit(solve)(1.0) == 0.5**25
        assert found() == printed
    with jax.disable_jit():
        solve(jnp.float32(1))
    assert found() == printed
    for i in range(25):
        spoolax.log_iteration_async(jnp.int32(i), 1.0, 1.0, verbose=verbose)
    spoolax.log_convergence_async("it ended", 25, 1.0, 0.1, 0.0, verbose=verbose)
    assert found() == printed


def test_iterations_of_lanes_are_printed_while_they_last(capsys):
    def solve(n):
        def body(i):
            spoolax.log_iteration_async(i, n * 1.0, 0.0, verbose=2)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    with jax.numpy_dtype_promotion("standard"):
        jax.jit(jax.vmap(solve))(jnp.array([1, 3]))
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert [float(line.split()[4].strip(",")) for line in lines] == [1, 3, 3, 3]


def test_iterations_are_printed_as_they_were(capsys):
    cost, donate = np.ones(()), jax.jit(lambda x: x * 0.5, donate_argnums=0)
    for i in range(3):
        spoolax.log_iteration_async(i, cost, 1.0, verbose=2)
        cost *= 0.5
    gone = jnp.ones(())
    donate(gone)
    spoolax.log_iteration_async(3, gone, 1.0, verbose=2)
    spoolax.flush()
    lines = capsys.readouterr().out.splitlines()
    assert ["1.000000e+00" in lines[0], "5.000000e-01" in lines[1], "2.5" in lines[2]] == [True] * 3
    assert "cost = (donated)" in lines[3]


def test_a_spool_around_does_not_see_them():
    def f(x):
        spoolax.log_iteration_async(x, x, x, verbose=2)
        spoolax.log({"x": x})
        return x

    _, logs = spoolax.spool(f)(1.0)
    assert list(logs) == ["x"]
    with pytest.raises(ValueError, match="verbose"):
        spoolax.log_iteration_async(0, 0, 0, verbose=3)


def test_arrays_and_tracers_are_arrays():
    found = []
    jax.jit(lambda x: found.append(spoolax.is_jax_array(x)))(1.0)
    assert found == [True]
    assert not spoolax.is_jax_array([jnp.ones(1)])
