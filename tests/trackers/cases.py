"""What every tracker is tested with."""

import jax
import jax.numpy as jnp
import numpy as np

import spoolax

COLOURS = np.random.default_rng(0).integers(0, 256, (8, 9, 3)).astype(np.uint8)
GREY = np.linspace(0, 1, 30).reshape(5, 6)
NUMBERS = np.random.default_rng(1).normal(size=100)
TEXT = "# A note\n\nwith ümlauts"


def log_everything(make):
    """Log one of each kind."""
    with make(
        name="everything", images="grey", config={"lr": jnp.float32(0.5), "a": {"b": 1}}
    ) as one:
        one.log({"loss/train": jnp.bfloat16(0.5), "zero": np.array(0.25), "count": 3}, 0)
        one.log({"nan": np.nan, "inf": np.inf, "minus": -np.inf}, 1)
        one.log({"colours": COLOURS, "grey": GREY}, 2)
        one.log({"numbers": NUMBERS, "few": np.arange(3.0)}, 3)
        one.log({"note": TEXT}, 4)
    return one


def train(key):
    """A random walk of 20 steps, in 4 episodes."""

    def body(x, i):
        x = x + jax.random.normal(jax.random.fold_in(key, i))
        spoolax.log({"walk/x": x}, step=i, episode=i // 5)
        return x, x

    return jax.lax.scan(body, jnp.float32(0), jnp.arange(20))[1]


def log_seeds(make):
    """Log five walks at once; return the logger, and the values that it has to have."""
    keys = jax.random.split(jax.random.key(0), 5)
    with make(name="walk", config={"lr": 0.1}) as logger:
        walks = jax.jit(jax.vmap(lambda key: logger.tap(train, logger.init(key))(key)))(keys)
    return logger, np.asarray(walks)
