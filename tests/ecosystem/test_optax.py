"""Training with optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import spoolax


def train(params):
    optimizer = optax.adam(0.1)

    def step(carry, _):
        params, state = carry
        loss, grads = jax.value_and_grad(lambda p: jnp.sum(p**2))(params)
        updates, state = optimizer.update(grads, state)
        spoolax.log({"loss": loss, "update": optax.global_norm(updates)})
        return (optax.apply_updates(params, updates), state), loss

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), length=20)
    return params, losses


def test_a_training_loop_logs_what_it_computes():
    (_, losses), logs = spoolax.spool(train)(jnp.arange(3.0))
    np.testing.assert_array_equal(logs["loss"], losses)
    streamed = []
    _, tapped = spoolax.tap(train, lambda logs: streamed.append(logs["loss"]))(jnp.arange(3.0))
    spoolax.flush()
    np.testing.assert_array_equal(np.stack(streamed), tapped)
