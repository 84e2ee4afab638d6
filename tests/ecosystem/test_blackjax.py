"""Sampling with blackjax."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax

pytestmark = pytest.mark.usefixtures("unoptimized")
KEY = jax.random.key(0)


def log_density(x):
    return -0.5 * jnp.sum(x["x"] ** 2)


def sample(key, start):
    kernel = blackjax.nuts(log_density, step_size=0.5, inverse_mass_matrix=jnp.ones(2))

    def step(state, key):
        state, info = kernel.step(key, state)
        return state, (state.position["x"], info.num_integration_steps)

    state = kernel.init({"x": start})
    return jax.lax.scan(step, state, jax.random.split(key, 6))[1]


def test_the_states_of_a_sampler_are_watched():
    """Each of them, in order; the samples are the same."""
    positions, leapfrogs = sample(KEY, jnp.ones(2))
    seen = []
    again = spoolax.watch(sample, seen.append, outputs=True, where="scan[0]/outputs[*]")(
        KEY, jnp.ones(2)
    )
    spoolax.flush()
    np.testing.assert_allclose(again[0], positions, rtol=1e-5)
    np.testing.assert_array_equal(again[1], leapfrogs)
    for number, values in enumerate(again):
        entries = [logs[f"scan[0]/outputs[{number}]"] for logs in seen]
        np.testing.assert_array_equal(np.stack(entries), values)


def test_a_bad_start_is_told_from_a_bad_sampler():
    """The NaN is not blamed on the loop of the sampler."""
    found = []
    spoolax.watch_nan(sample, found.append)(KEY, jnp.array([1.0, jnp.nan]))
    spoolax.flush()
    assert "was there before scan[0]" in str(found[0])
    assert "Among the arguments, `start` had some from the start." in str(found[0])
