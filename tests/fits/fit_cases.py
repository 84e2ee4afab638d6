"""A model, its data, and how to count compilations: what tests of fits share."""

import jax
import jax.numpy as jnp
import numpy as np

POINTS = np.linspace(0, 4, 60)


def decay(x, a, b, c):
    return a * jnp.exp(-b * x) + c


def by_numpy(x, a, b, c):
    return a * np.exp(-b * x) + c


def measured(seed=0, noise=0.05, x=POINTS):
    return by_numpy(x, 2.5, 1.3, 0.5) + noise * np.random.default_rng(seed).normal(size=len(x))


def compilations(run):
    """How often something was compiled."""
    found = []

    def count(event, *args, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    return len(found)
