"""Train a small network to tell two moons apart, in one compiled loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import spoolax

from .compiling import look_at

CONFIG: dict[str, Any] = {
    "steps": 20_000,
    "rate": 0.05,
    "momentum": 0.9,
    "hidden": [32, 32],
    "noise": 0.2,
}


def two_moons(key: Any, count: int, noise: float) -> tuple[Any, Any]:
    """Points on two half circles that reach into each other, and which of them they are on."""
    angle_key, noise_key = jax.random.split(key)
    angle = jax.random.uniform(angle_key, (count,), maxval=jnp.pi)
    label = jnp.arange(count) % 2
    upper = jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
    lower = jnp.stack([1 - jnp.cos(angle), 0.5 - jnp.sin(angle)], -1)
    points = jnp.where(label[:, None] == 1, upper, lower)
    return points + noise * jax.random.normal(noise_key, points.shape), label


def predict(params: Any, x: Any) -> Any:
    """Log odds."""
    for weights, bias in params[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return (x @ weights + bias)[:, 0]


@jax.jit
def train(key: Any) -> Any:
    """20000 steps of gradient descent, in one `lax.scan`."""
    data_key, *keys = jax.random.split(key, 4)
    x, label = two_moons(data_key, 256, CONFIG["noise"])
    sizes = [2, *CONFIG["hidden"], 1]
    params = [
        (jax.random.normal(k, (n, m)) / jnp.sqrt(n), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]

    def loss(params: Any) -> Any:
        odds = predict(params, x)
        spoolax.log({"accuracy": jnp.mean((odds > 0) == label)})
        return jnp.mean(jnp.logaddexp(0.0, jnp.where(label == 1, -odds, odds)))

    def step(carry: Any, i: Any) -> Any:
        params, speed = carry
        value, grads = jax.value_and_grad(loss)(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        rate = CONFIG["rate"] * jnp.cos(0.5 * jnp.pi * i / CONFIG["steps"])
        spoolax.log({"loss": value, "gradient": norm, "rate": rate})
        speed = jax.tree.map(lambda s, g: CONFIG["momentum"] * s + g, speed, grads)
        return (jax.tree.map(lambda p, s: p - rate * s, params, speed), speed), None

    start = params, jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(step, start, jnp.arange(CONFIG["steps"]))[0][0]


def main(directory: str) -> None:
    """Run it."""
    steps = CONFIG["steps"]
    print(f"{steps} training steps in one jitted scan, which calls `spoolax.log` in every one:\n")
    with spoolax.run("two-moons", CONFIG, directory=directory, total=steps, announce=False) as run:
        jax.block_until_ready(train(jax.random.key(0)))
    look_at(run.path, "loss", log_y=True)
