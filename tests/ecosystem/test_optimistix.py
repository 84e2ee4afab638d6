"""Finding roots with optimistix."""

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

import spoolax

pytestmark = pytest.mark.usefixtures("unoptimized")


def cube_root(a):
    def residual(x, a):
        spoolax.log({"x": x})
        return x**3 - a

    solver = optimistix.Newton(1e-4, 1e-4)
    return optimistix.root_find(residual, solver, jnp.float32(1.0), a, max_steps=32).value


def test_lanes_that_have_converged_log_no_more():
    numbers = jnp.array([1.0, 2.0, 1000.0])
    _, logs = spoolax.spool(jax.vmap(cube_root))(numbers)
    for lane, a in enumerate(numbers):
        alone = np.atleast_1d(spoolax.spool(cube_root)(a)[1]["x"])
        np.testing.assert_allclose(logs["x"][logs.valid["x"][:, lane], lane], alone, rtol=1e-5)


def test_an_implicit_derivative_keeps_what_the_solver_logged():
    """A tap inside of it hears what a listener around it hears.

    That is the solver, and what its derivative rule evaluates at the root.
    """
    _, solver = spoolax.spool(cube_root)(8.0)
    _, around = spoolax.spool(jax.grad(cube_root))(8.0)
    streamed = []
    slope = jax.grad(spoolax.tap(cube_root, lambda logs: streamed.append(logs["x"])))(8.0)
    spoolax.flush()
    np.testing.assert_allclose(slope, 1 / 12, rtol=1e-4)
    np.testing.assert_allclose(streamed, around["x"], rtol=1e-5)
    np.testing.assert_allclose(streamed[: len(solver["x"])], solver["x"], rtol=1e-5)
    np.testing.assert_allclose(streamed[len(solver["x"]) :], 2.0, rtol=1e-5)
