"""Train an agent for several seeds at once, in one compiled program, and watch each of them.

    python examples/seeds.py            # the curves of five seeds, for TensorBoard
    python examples/seeds.py wandb      # or for wandb, mlflow or trackio

The agent learns to balance a pole on a cart (actor-critic, with advantages as in PPO). Training is
a pure function of a key: `jax.jit(jax.vmap(train))(keys)`. It takes two lines to log every key to a
run of its own: `state = logger.init(key)`, and `logger.tap(train, state)(key)`.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

import spoolax
from spoolax.loggers import MlflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger

LOGGERS = {
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "trackio": TrackioLogger,
    "wandb": WandbLogger,
}
LOOK = {
    "mlflow": "mlflow ui --backend-store-uri sqlite:///mlflow.db",
    "tensorboard": "tensorboard --logdir runs",
    "trackio": "trackio show --project cart-pole",
    "wandb": "wandb sync wandb/offline-run-*",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """The hyperparameters."""

    updates: int = 200
    carts: int = 16
    steps: int = 128
    width: int = 32
    learning_rate: float = 3e-3
    discount: float = 0.99
    smoothing: float = 0.95
    entropy: float = 0.01


def push(cart, action):
    """Move a cart with a pole by 0.02 s: its position and velocity, angle and angular velocity."""
    _, v, angle, turn = cart
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    pull = (force + 0.05 * turn**2 * sin) / 1.1
    twist = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    speed = pull - 0.05 * twist * cos / 1.1
    return cart + 0.02 * jnp.array([v, speed, turn, twist])


def fallen(cart, age):
    """Whether the pole fell, the cart left the track, or the episode is long enough."""
    return (jnp.abs(cart[0]) > 2.4) | (jnp.abs(cart[2]) > 0.21) | (age >= 500)


def make_net(key, width):
    """Make a network with two hidden layers, whose outputs are two actions and a value."""
    sizes = [4, width, width, 3]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (a, b)) / jnp.sqrt(a), jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_net(net, cart):
    x = cart
    for weights, bias in net[:-1]:
        x = jnp.tanh(x @ weights + bias)
    x = x @ net[-1][0] + net[-1][1]
    return x[:2], x[2]


def make_train(config):
    """Make the training function: a pure function of a key."""

    def play(net, carry, key):
        """Play one step with one cart."""
        cart, age = carry
        act, reset = jax.random.split(key)
        logits, value = apply_net(net, cart)
        action = jax.random.categorical(act, logits)
        after, age = push(cart, action), age + 1
        done = fallen(after, age)
        fresh = jax.random.uniform(reset, (4,), minval=-0.05, maxval=0.05)
        seen = (cart, action, value, done, jnp.where(done, age, 0))
        return (jnp.where(done, fresh, after), jnp.where(done, 0, age)), seen

    def advantages(last, values, done):
        def back(carry, at):
            gain, after = carry
            value, done = at
            alive = 1.0 - done
            error = 1 - config.discount + config.discount * after * alive - value
            gain = error + config.discount * config.smoothing * alive * gain
            return (gain, value), gain

        start = (jnp.zeros_like(last), last)
        return lax.scan(back, start, (values, done), reverse=True)[1]

    def loss(net, carts, actions, gains, targets):
        logits, values = jax.vmap(jax.vmap(lambda c: apply_net(net, c)))(carts)
        logp = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(logp, actions[..., None], -1)[..., 0]
        gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        entropy = -(jnp.exp(logp) * logp).sum(-1).mean()
        policy, value = -(taken * gains).mean(), ((values - targets) ** 2).mean()
        spoolax.log({"loss/policy": policy, "loss/value": value, "entropy": entropy})
        return policy + value - config.entropy * entropy

    def update(carry, i):
        net, moments, carts, ages, recent, key = carry
        key, sub = jax.random.split(key)
        keys = jax.random.split(sub, (config.steps, config.carts))

        def together(carry, keys):
            return jax.vmap(lambda c, k: play(net, c, k))(carry, keys)

        (carts, ages), (seen, actions, values, done, lived) = lax.scan(
            together, (carts, ages), keys
        )
        last = jax.vmap(lambda c: apply_net(net, c)[1])(carts)
        gains = advantages(last, values, done)
        grads = jax.grad(loss)(net, seen, actions, gains, gains + values)
        net, moments = adam(net, grads, moments, i, config.learning_rate)
        ended = done.sum()
        length = jnp.where(ended > 0, lived.sum() / jnp.maximum(ended, 1), recent)
        spoolax.log({"episode/length": length}, step=i)
        return (net, moments, carts, ages, length, key), length

    def train(key):
        make, first, key = jax.random.split(key, 3)
        net = make_net(make, config.width)
        moments = (jax.tree.map(jnp.zeros_like, net),) * 2
        carts = jax.random.uniform(first, (config.carts, 4), minval=-0.05, maxval=0.05)
        ages = jnp.zeros(config.carts, int)
        carry = (net, moments, carts, ages, jnp.float32(0), key)
        return lax.scan(update, carry, jnp.arange(config.updates))[1]

    return train


def adam(net, grads, moments, i, rate):
    """Take a step of Adam, with the usual settings."""
    mean, square = moments
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, square, grads)
    first, second = 1 - 0.9 ** (i + 1.0), 1 - 0.999 ** (i + 1.0)

    def moved(x, m, v):
        return x - rate * (m / first) / (jnp.sqrt(v / second) + 1e-8)

    return jax.tree.map(moved, net, mean, square), (mean, square)


def main(tracker="tensorboard", seeds=5, **changes):
    config = Config(**changes)
    train = make_train(config)
    logger = LOGGERS[tracker](project="cart-pole", name="actor-critic", config=config)
    with logger:

        @jax.jit
        @jax.vmap
        def run(key):
            return logger.tap(train, logger.init(key))(key)

        lengths = run(jax.random.split(jax.random.key(0), seeds))
    for seed, length in enumerate(lengths[:, -10:].mean(1)):
        print(f"seed {seed}: the pole stays up for {length:.0f} steps")
    print(f"To see the curves: {LOOK[tracker]}")
    return lengths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tracker", nargs="?", default="tensorboard", choices=sorted(LOGGERS))
    parser.add_argument("--seeds", type=int, default=5)
    main(**vars(parser.parse_args()))
