"""What it costs to see the iterations of somebody else's solver: logged in it, or watched."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import optax
import optimistix
from jax import lax

import spoolax

from .measure import _time, race, verdict

GOAL = 1.3  # Of the solve without logs.


def count(*_, **__):
    pass


def nothing(*_, **__):
    pass


def integrate(report, field, y0, t1):
    def reporting(t, y, args):
        report({"t": t, "y": jnp.ravel(y)[:2]})
        return field(y)

    return diffrax.diffeqsolve(
        diffrax.ODETerm(reporting),
        diffrax.Tsit5(),
        t0=0.0,
        t1=t1,
        dt0=0.01,
        y0=y0,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
    ).ys


def oscillator(report, y0):
    """A Van der Pol oscillator, with diffrax: 35 steps, which XLA makes one kernel of."""
    return integrate(
        report, lambda y: jnp.stack([y[1], 2.0 * (1 - y[0] ** 2) * y[1] - y[0]]), y0, 6.0
    )


def reactions(report, y0):
    """Waves in an excitable medium of 500 points, with diffrax: 290 steps."""

    def field(y):
        u, v = y
        diffusion = 40.0 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))
        return jnp.stack([u - u**3 - v + diffusion, 0.1 * (u - 0.5 * v)])

    return integrate(report, field, y0, 5.0)


def decay(report, start):
    """A fit of an exponential by Levenberg and Marquardt, with optimistix: about 10 steps."""
    x = jnp.linspace(0.0, 4.0, 200)
    y = 2.5 * jnp.exp(-1.3 * x) + 0.5

    def residuals(p, _):
        report({"p": p})
        return p[0] * jnp.exp(-p[1] * x) + p[2] - y

    solver = optimistix.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
    return optimistix.least_squares(residuals, solver, start, throw=False).value


def valley(report, start):
    """Rosenbrock's function of ten numbers by BFGS, with optimistix: about 60 steps."""

    def value(x, _):
        report({"x": x})
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    solver = optimistix.BFGS(rtol=1e-5, atol=1e-5)
    return optimistix.minimise(value, solver, start, throw=False, max_steps=100).value


def lbfgs(report, start):
    """The same by L-BFGS, with optax: 50 steps."""

    def value(x):
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    optimizer, both = optax.lbfgs(), optax.value_and_grad_from_state(value)

    def step(carry):
        i, x, state = carry
        loss, grad = both(x, state=state)
        report({"loss": loss, "norm": jnp.linalg.norm(grad)})
        updates, state = optimizer.update(grad, state, x, value=loss, grad=grad, value_fn=value)
        return i + 1, optax.apply_updates(x, updates), state

    start = 0, start, optimizer.init(start)
    return lax.while_loop(lambda carry: carry[0] < 50, step, start)[1]


SOLVES = {
    "diffrax, Van der Pol": (oscillator, lambda: jnp.array([2.0, 0.0])),
    "diffrax, 500 points": (reactions, lambda: jnp.sin(jnp.arange(1000.0)).reshape(2, 500)),
    "optimistix, Levenberg-Marquardt": (decay, lambda: jnp.ones(3)),
    "optimistix, BFGS": (valley, lambda: jnp.zeros(10)),
    "optax, L-BFGS": (lbfgs, lambda: jnp.zeros(10)),
}


def main():
    for name, (solve, start) in SOLVES.items():
        x = start()
        plain = functools.partial(solve, nothing)
        logging = functools.partial(solve, spoolax.log)
        calls = {
            "no logging": functools.partial(jax.jit(plain), x),
            "tap": functools.partial(spoolax.tap(logging, count), x),
            "watch": functools.partial(spoolax.watch(plain, callback=count, carry=True), x),
        }
        for call in calls.values():  # How long they take is known from the third call on.
            for _ in range(3):
                jax.block_until_ready(call())
                spoolax.flush()
        times = race(calls, after=spoolax.flush)
        print(f"\n{name}")
        for what, t in times.items():
            ratio = t / times["no logging"]
            goal = verdict(ratio, GOAL) if what == "tap" else ""
            print(f"  {what:<34} {_time(t):>9} {ratio:8.2f}x{goal}")
