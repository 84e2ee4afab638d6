"""A Python loop around a jitted step: with nothing, with blocks that listen, and by other means."""

import contextlib
import io
import tempfile

import jax
import jax.numpy as jnp

import spoolax

from .measure import _time, race, verdict

STEPS = 1000
# The size of the matrix in a step, about how long the step takes, and the goals: the most that
# listening may add, in seconds, and the most of the time without it.
SIZES = ((8, "20 us", 30e-6, None), (130, "100 us", None, 1.2), (500, "2 ms", None, 1.02))


def main():
    for size, about, more, ratio in SIZES:
        loops(size, about, more, ratio)
    with contextlib.suppress(ImportError):
        by_numpyro()
    with contextlib.suppress(ImportError):
        by_blackjax()


def make_step(report):
    @jax.jit
    def step(x):
        x = jnp.tanh(x @ x / x.shape[0] + 0.1)
        report({"mean": x.mean(), "max": x.max(), "first": x[0, 0], "last": x[-1, -1]})
        return x

    return step


def loops(size, about, more, ratio):
    start = jnp.eye(size)
    silent, logging = make_step(lambda values: None), make_step(spoolax.log)
    debug = make_step(lambda values: jax.debug.callback(lambda **_: None, **values))
    tapped = spoolax.tap(logging, lambda logs: None)

    def python(step, each=lambda x: None):
        def run():
            x = start
            for _ in range(STEPS):
                x = step(x)
                each(x)
            x.block_until_ready()

        return run

    def listened():
        with spoolax.listening(lambda logs: None):
            python(logging)()

    def tap():
        python(tapped)()
        spoolax.flush()

    calls = {
        "nothing": python(silent),
        "listening, callback": listened,
        "tap of the step": tap,
        "float(x[0, 0]) in every step": python(silent, lambda x: float(x[0, 0])),
        "jax.debug.callback": python(debug),
    }
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            calls["wandb offline, by hand"] = by_wandb(stack, start, silent)
        times = race(calls, rounds=5, target=0.0)
    print(f"\n{STEPS} calls of a step of about {about}, each")
    base = times["nothing"] / STEPS
    for name, t in times.items():
        each, said = t / STEPS, ""
        if name.startswith("listening"):
            if more is not None:
                said = f"  goal +{_time(more)}: {'met' if each - base <= more else 'MISSED'}"
            else:
                said = verdict(each / base, ratio)
        print(f"  {name:<32} {_time(each):>9} {each / base:>8.2f}x{said}")


def by_wandb(stack, start, step):
    import wandb

    directory = stack.enter_context(tempfile.TemporaryDirectory())
    settings = wandb.Settings(silent=True, mode="offline")
    run = stack.enter_context(wandb.init(dir=directory, settings=settings))

    def call():
        x = start
        for _ in range(STEPS):
            x = step(x)
            values = {"mean": x.mean(), "max": x.max(), "first": x[0, 0], "last": x[-1, -1]}
            run.log({name: float(value) for name, value in values.items()})

    return call


def by_numpyro(samples=3000):
    """Sampling without a bar, with numpyro's own, and in a block that has bars."""
    import numpyro.distributions as dist
    from numpyro import sample
    from numpyro.infer import MCMC, NUTS

    x = jnp.linspace(-1.0, 1.0, 50)

    def model(y):
        slope, width = sample("slope", dist.Normal(0, 1)), sample("width", dist.HalfNormal(1))
        sample("y", dist.Normal(slope * x, width), obs=y)

    def sampling(bar):
        mcmc = MCMC(NUTS(model), num_warmup=samples, num_samples=samples, progress_bar=bar)

        def run():
            mcmc.run(jax.random.key(0), 2 * x + 0.1 * jnp.sin(40 * x))
            return mcmc.get_samples()["slope"]

        return run

    bars("numpyro's NUTS", sampling(False), {"numpyro's progress_bar": sampling(True)})


def by_blackjax(steps=3000):
    """Window adaptation without a bar, and in a block that has bars."""
    import blackjax

    def log_density(x):
        return -0.5 * jnp.sum(x**2 * jnp.arange(1.0, 6.0))

    warm_up = blackjax.window_adaptation(blackjax.nuts, log_density)
    run = jax.jit(lambda key: warm_up.run(key, jnp.ones(5), num_steps=steps)[0][0].position)
    bars("blackjax's window adaptation", lambda: run(jax.random.key(0)), {})


def bars(title, plain, others):
    def block():
        with spoolax.progress(file=io.StringIO()):
            return jax.block_until_ready(plain())

    with contextlib.redirect_stderr(io.StringIO()):
        times = race(
            {"no bar": plain, "with spoolax.progress()": block, **others}, rounds=5, target=0.0
        )
    print(f"\n{title}")
    for name, t in times.items():
        print(f"  {name:<32} {_time(t):>9} {t / times['no bar']:>8.2f}x")
