"""What listening leaves as it is, to the bit, and what it takes: an optimizer tells every bit."""

import os
import subprocess
import sys
import textwrap

# Loops inside a loop, in which one rounding more or less leads to another path.
PROGRAM = """
    import io, jax, jax.numpy as jnp, numpy as np, optax, spoolax

    def value(w):
        return jnp.sum(100.0 * (w[1:] - w[:-1] ** 2) ** 2 + (1.0 - w[:-1]) ** 2)

    optimizer, both = optax.lbfgs(), optax.value_and_grad_from_state(value)

    def minimize(w):
        def step(carry, i):
            w, state = carry
            at, slope = both(w, state=state)
            updates, state = optimizer.update(slope, state, w, value=at, grad=slope, value_fn=value)
            spoolax.log({"w": w}, step=i)
            return (optax.apply_updates(w, updates), state), at

        (w, _), values = jax.lax.scan(step, (w, optimizer.init(w)), jnp.arange(40))
        return w, values

    def check(listened):
        out = listened(jnp.zeros(8))
        spoolax.flush()
        jax.tree.map(np.testing.assert_array_equal, out, jax.jit(minimize)(jnp.zeros(8)))

    def bars(**options):
        return spoolax.progress(minimize, file=io.StringIO(), **options)
"""


def run(check, flags=""):
    """Run checks in a process with flags for XLA, which reads them once."""
    code = textwrap.dedent(PROGRAM) + textwrap.dedent(check)
    flags = " ".join([os.environ.get("XLA_FLAGS", ""), flags])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "XLA_FLAGS": flags}, check=True)


def test_bars_of_the_outermost_loops_change_no_bit():
    run("check(bars(depth=1))")


def test_where_loops_are_compiled_alike_no_bit_changes():
    """Also with pauses in loops inside of loops, if XLA makes no function of a loop without any."""
    checks = """
        check(bars())
        check(spoolax.watch(minimize, lambda _: None))
        check(spoolax.watch_nan(minimize))
        check(spoolax.tap(minimize, lambda _: None))
        check(lambda w: spoolax.spool(minimize)(w)[0])
    """
    run(checks, "--xla_disable_hlo_passes=small-while-loop-hoisting")
