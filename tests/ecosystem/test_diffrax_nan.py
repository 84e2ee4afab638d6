"""NaNs in solvers of diffrax, whose loops are made of primitives of equinox."""

import diffrax
import jax.numpy as jnp
import pytest

import spoolax


def field(t, y, args):
    return -y + jnp.sqrt(2.0 - t)


def solve(y0):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=5.0,
        dt0=0.1,
        y0=y0,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3),
        max_steps=64,
        throw=False,
    ).ys


@pytest.mark.usefixtures("unoptimized")
def test_a_nan_in_a_vector_field_is_found():
    found = []
    spoolax.watch_nan(solve, found.append)(1.0)
    spoolax.flush()
    (nan,) = found
    assert nan.primitive == "sqrt"
    assert nan.origin.path.startswith("while[0]")
    assert "(field)" in nan.origin.site
