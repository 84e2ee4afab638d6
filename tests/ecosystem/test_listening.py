"""Training loops and samplers of other libraries, in a block that listens."""

import io

import blackjax
import diffrax
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer import MCMC, NUTS

import spoolax

pytestmark = pytest.mark.usefixtures("unoptimized")
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 3))
Y = X.sum(1)


def heard(run):
    """What a run returns, and what is heard of it, each time; it is the same outside."""
    with spoolax.listening(collect=True) as logs:
        out = run()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), out, run())
    return out, logs


def test_optax():
    @jax.jit
    def step(w, state):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((X @ w - Y) ** 2))(w)
        spoolax.log({"loss": loss})
        updates, state = optimizer.update(grad, state)
        return optax.apply_updates(w, updates), state, loss

    optimizer = optax.adam(0.1)

    def run():
        w, losses = jnp.zeros(3), []
        state = optimizer.init(w)
        for _ in range(5):
            w, state, loss = step(w, state)
            losses.append(loss)
        return jnp.stack(losses)

    losses, logs = heard(run)
    np.testing.assert_array_equal(logs["loss"], losses)
    assert logs.step["loss"].tolist() == [0, 1, 2, 3, 4]


def test_equinox():
    @eqx.filter_jit
    def step(model):
        loss, grads = eqx.filter_value_and_grad(
            lambda model: jnp.mean((jax.vmap(model)(X)[:, 0] - Y) ** 2)
        )(model)
        spoolax.log({"loss": loss})
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss

    def run():
        model, losses = eqx.nn.MLP(3, 1, 4, 1, key=KEY), []
        for _ in range(3):
            model, loss = step(model)
            losses.append(loss)
        return jnp.stack(losses)

    losses, logs = heard(run)
    np.testing.assert_allclose(logs["loss"], losses, rtol=1e-6)


def test_nnx():
    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X)[:, 0] - Y) ** 2))(model)
        spoolax.log({"loss": loss})
        optimizer.update(model, grads)
        return loss

    def run():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        return jnp.stack([step(model, optimizer) for _ in range(3)])

    losses, logs = heard(run)
    np.testing.assert_allclose(logs["loss"], losses, rtol=1e-6)


def test_linen():
    class Model(nn.Module):
        @nn.jit
        @nn.compact
        def __call__(self, x):
            y = nn.Dense(1)(x)
            spoolax.log({"mean": y.mean()})
            return y

    model = Model()
    params = model.init(KEY, X)

    def run():
        return jnp.stack([model.apply(params, scale * X).mean() for scale in (1.0, 2.0)])

    means, logs = heard(run)
    np.testing.assert_allclose(logs["mean"], means, rtol=1e-5)


def test_numpyro():
    """The model is called by the sampler, in loops that it compiles itself."""

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        spoolax.log({"slope": slope})
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    def run():
        mcmc = MCMC(NUTS(model, max_tree_depth=2), num_warmup=4, num_samples=4, progress_bar=False)
        mcmc.run(KEY, X[:, 0], 2.0 * X[:, 0])
        return mcmc.get_samples()["slope"]

    samples, logs = heard(run)
    for sample in samples:  # Each of them was evaluated, and more than those.
        assert np.isclose(logs["slope"], sample, rtol=1e-6).any()
    assert len(logs["slope"]) > len(samples)


def test_samplers_have_bars_and_are_watched(monkeypatch):
    monkeypatch.setattr("spoolax._watch.progress.SLOW", 0.0)

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    shown, found = io.StringIO(), []
    shown.isatty = lambda: True
    with spoolax.progress(file=shown), spoolax.watching_nan(found.append, inf=False):
        mcmc = MCMC(NUTS(model, max_tree_depth=2), num_warmup=4, num_samples=4, progress_bar=False)
        mcmc.run(KEY, X[:, 0], 2.0 * X[:, 0])
    assert "8/8" in shown.getvalue()
    assert not found


def test_blackjax_window_adaptation():
    def log_density(x):
        spoolax.log({"x": x})
        return -0.5 * jnp.sum(x**2)

    def run():
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = adaptation.run(KEY, jnp.ones(2), num_steps=20)
        return state.position, parameters["step_size"]

    (position, _), logs = heard(run)
    assert np.isclose(logs["x"], position, rtol=1e-6).all(1).any()
    assert len(logs["x"]) > 20


def test_diffrax():
    def field(t, y, args):
        spoolax.log({"t": t})
        return -y

    def run():
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), t0=0.0, t1=1.0, dt0=0.25, y0=1.0
        ).ys

    _, logs = heard(run)
    assert float(logs["t"].min()) == 0.0
    assert len(logs["t"]) >= 20


def test_a_program_that_is_one_compiled_loop():
    """Environments in lanes, rollouts in updates, as in compiled reinforcement learning."""

    @jax.jit
    def train(key):
        def update(carry, _):
            def rollout(carry, _):
                key, position = carry
                key, noise = jax.random.split(key)
                position = 0.9 * position + jax.random.normal(noise, (4,))
                return (key, position), -(position**2)

            carry, rewards = jax.lax.scan(rollout, carry, length=3)
            spoolax.log({"return": rewards.sum(0).mean()})
            return carry, rewards.sum(0).mean()

        return jax.lax.scan(update, (key, jnp.zeros(4)), length=5)[1]

    returns, logs = heard(lambda: train(KEY))
    np.testing.assert_allclose(logs["return"], returns, rtol=1e-6)
    assert logs.step["return"].tolist() == list(range(5))
