"""Sampling with numpyro."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import spoolax

X = jnp.linspace(-1.0, 1.0, 10)
KEY = jax.random.key(0)


pytestmark = pytest.mark.usefixtures("unoptimized")


def sample(key):
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        # A bound as people write it, with an infinity that is meant to be there.
        numpyro.factor("bound", jnp.where(slope > 0.0, 0.0, -jnp.inf))

    kernel = NUTS(model, max_tree_depth=2)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(key, X, 2.0 * X)
    return mcmc.get_samples()["slope"]


def test_nuts_is_watched_by_the_addresses_of_its_outline():
    """Of hundreds of primitives, a few are loops, which are shown first."""
    outline = spoolax.primitives(sample, KEY)
    assert len(outline) > 300
    assert len(str(outline).splitlines()) < 30
    (steps,) = (loop for loop in outline.loops if loop.length == 10)
    seen = []
    watched = spoolax.watch(sample, seen.append, carry=lambda c: {"n": c[0]}, where=steps.address)
    samples = watched(KEY)
    spoolax.flush()
    np.testing.assert_allclose(samples, sample(KEY), rtol=1e-5)
    key = f"{steps.address}/n"
    assert [int(logs[key]) for logs in seen if key in logs] == list(range(1, 11))


def test_an_infinity_that_a_model_makes_on_purpose_can_be_ignored():
    """And the report of it says how."""
    found = []
    spoolax.watch_nan(sample, found.append)(KEY)
    spoolax.flush()
    assert "`inf=False` ignores infinities" in str(found[0])
    found.clear()
    spoolax.watch_nan(sample, found.append, inf=False)(KEY)
    spoolax.flush()
    assert not found
