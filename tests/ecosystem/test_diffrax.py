"""Solving differential equations with diffrax, and differentiating through the solver."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax

pytestmark = pytest.mark.usefixtures("unoptimized")
RATES = jnp.array([1.0, 10.0, 40.0])


def solve(rate):
    """Solve with diffrax's default adjoint, which runs the loop again in its backward rule."""

    def field(t, y, rate):
        spoolax.log({"y": y}, t=t)
        return -rate * y

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Heun(),
        0.0,
        1.0,
        None,
        1.0,
        rate,
        stepsize_controller=diffrax.PIDController(1e-2, 1e-2),
        max_steps=64,
    )
    return solution.ys[-1]


def spooled(f):
    return lambda *args: spoolax.spool(f, capacity=4)(*args)[0]


@pytest.fixture(scope="module")
def slope():
    """The derivative, with nobody listening."""
    return jax.grad(solve)(1.0)


@pytest.mark.parametrize(
    "listen",
    [
        spooled,
        lambda f: spoolax.tap(f, lambda logs: None),
        spoolax.progress,
        lambda f: spoolax.watch_nan(f, print),
    ],
    ids=["spool", "tap", "progress", "watch_nan"],
)
def test_a_solve_that_is_listened_to_can_be_differentiated(listen, slope):
    np.testing.assert_allclose(jax.grad(listen(solve))(1.0), slope, rtol=1e-5)


def test_the_derivative_of_a_solve_logs_what_the_solve_logs(slope):
    """What the backward rule runs again is silent."""
    _, forward = spoolax.spool(solve)(1.0)
    found, logs = spoolax.spool(jax.grad(solve))(1.0)
    np.testing.assert_allclose(logs["y"], forward["y"], rtol=1e-6)
    assert not np.any(logs.backward["y"])
    np.testing.assert_allclose(found, slope, rtol=1e-5)
    streamed = []
    spoolax.tap(jax.grad(solve), lambda logs: streamed.append(logs["y"]))(1.0)
    spoolax.flush()
    np.testing.assert_allclose(streamed, forward["y"], rtol=1e-6)


def test_a_lane_that_has_finished_logs_no_more():
    """The solver goes on for the others."""
    alone = [spoolax.spool(solve)(rate)[1]["y"] for rate in RATES]
    assert len({len(ys) for ys in alone}) == 3
    for f in (solve, jax.grad(solve)):
        _, logs = spoolax.spool(jax.vmap(f))(RATES)
        for lane, ys in enumerate(alone):
            valid = logs.valid["y"][:, lane]
            np.testing.assert_allclose(logs["y"][valid, lane], ys, rtol=1e-5, atol=1e-6)
