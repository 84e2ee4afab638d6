"""`spool` against outputs carried out of the loop by hand."""

import jax
import jax.numpy as jnp
from jax import lax

import spoolax

from .measure import compare, compile_seconds, memory, show

STEPS = 20_000


def cheap(x):
    return x * 0.999 + 0.001


def costly(x):
    for _ in range(3):
        x = jnp.tanh(x @ jnp.eye(32) * 0.99)
    return x


BODIES = {
    "cheap body": (cheap, jnp.ones(()), STEPS),
    "32x32 body": (costly, jnp.ones((32, 32)), 500),
}


def metrics(x):
    return {"mean": jnp.mean(x), "max": jnp.max(x), "first": x.ravel()[0], "sum": jnp.sum(x)}


def by_hand(body, steps):
    def f(x):
        def step(x, _):
            x = body(x)
            return x, metrics(x)

        return lax.scan(step, x, None, length=steps)

    return f


def without(body, steps):
    return lambda x: lax.scan(lambda x, _: (body(x), None), x, None, length=steps)[0]


def logged(body, steps):
    def f(x):
        def step(x, _):
            x = body(x)
            spoolax.log(metrics(x))
            return x, None

        return lax.scan(step, x, None, length=steps)[0]

    return f


def run_time():
    print("\nrun time: by hand, spool, ratio")
    for name, (body, x, steps) in BODIES.items():
        hand = jax.jit(by_hand(body, steps)).lower(x).compile()
        spool = jax.jit(spoolax.spool(logged(body, steps))).lower(x).compile()
        result = compare(lambda hand=hand, x=x: hand(x), lambda spool=spool, x=x: spool(x))
        show(f"{name}, {steps} steps, 4 scalars", *result, "goal 1.05x")
        sizes = memory(hand), memory(spool)
        print(f"  {'':<46} memory {sizes[0] / 1e3:.1f} kB by hand, {sizes[1] / 1e3:.1f} kB spool")


def dispatch():
    print("\ndispatch of a small function: jit of the same by hand, spool, ratio")
    hand = jax.jit(lambda x: (x * 3, {"a": x, "b": x + 1, "c": x * 2}))
    spool = spoolax.spool(lambda x: spoolax.log({"a": x, "b": x + 1, "c": x * 2}) and x * 3)
    x = jnp.float32(1)
    show("one array", *compare(lambda: hand(x), lambda: spool(x)), "goal 1.5x")

    def both(tree):
        return jax.tree.map(lambda x: x * 3, tree)

    hand = jax.jit(lambda tree: (both(tree), {"a": tree["w"][0]}))
    spool = spoolax.spool(lambda tree: spoolax.log({"a": tree["w"][0]}) and both(tree))
    tree = {"w": [jnp.ones(3)] * 10, "b": (jnp.ones(()),) * 10}
    show("a pytree of 20 arrays", *compare(lambda: hand(tree), lambda: spool(tree)), "goal 1.5x")


def reductions():
    print("\nreducing on the device: stack then reduce, spool, ratio")
    x = jnp.ones((64, 64))

    def body(x):
        return x * 0.999 + 0.001

    steps = 2000

    def stacked(then):
        def f(x):
            def step(x, _):
                x = body(x)
                return x, x

            x, xs = lax.scan(step, x, None, length=steps)
            return x, then(xs)

        return jax.jit(f).lower(x).compile()

    def spooled(**options):
        def f(x):
            def step(x, _):
                x = body(x)
                spoolax.log({"x": x})
                return x, None

            return lax.scan(step, x, None, length=steps)[0]

        return jax.jit(spoolax.spool(f, **options)).lower(x).compile()

    for name, then, options in (
        ("reduce='mean'", lambda xs: xs.mean(0), {"reduce": "mean"}),
        ("reduce='std'", lambda xs: xs.std(0), {"reduce": "std"}),
        ("interval=100", lambda xs: xs[::100], {"interval": 100}),
        (
            "interval=100, reduce='mean'",
            lambda xs: xs.reshape(-1, 100, 64, 64).mean(1),
            {"interval": 100, "reduce": "mean"},
        ),
    ):
        hand, spool = stacked(then), spooled(**options)
        show(name, *compare(lambda hand=hand: hand(x), lambda spool=spool: spool(x)))
        sizes = memory(hand), memory(spool)
        print(f"  {'':<46} memory {sizes[0] / 1e6:.2f} MB stacked, {sizes[1] / 1e6:.2f} MB spool")


def unheard():
    print("\nan unheard log: no log, log, ratio")
    for name, (body, x, steps) in BODIES.items():
        plain = jax.jit(without(body, steps))
        quiet = jax.jit(logged(body, steps))
        texts = [f.lower(x).as_text() for f in (plain, quiet)]
        same = (
            "same HLO"
            if texts[0].split("\n", 1)[1] == texts[1].split("\n", 1)[1]
            else "NOT the same HLO"
        )
        result = compare(lambda plain=plain, x=x: plain(x), lambda quiet=quiet, x=x: quiet(x))
        show(name, *result, f"goal 1.00x; {same}")


def compile_time():
    print("\ntracing, lowering and compiling: by hand, spool, ratio")
    for name, (body, x, _) in BODIES.items():
        hand = compile_seconds(lambda body=body: by_hand(body, 100), x)
        spool = compile_seconds(lambda body=body: spoolax.spool(logged(body, 100)), x)
        show(name, hand, spool, spool / hand, "goal 1.3x")


def while_loops():
    print("\nwhile loops, collected by way of the host: bare loop, spool, ratio")

    def loop(log):
        def f(n):
            def body(carry):
                i, x = carry
                x = x * 0.999 + 0.001
                if log:
                    spoolax.log({"x": x})
                return i + 1, x

            return lax.while_loop(lambda carry: carry[0] < n, body, (0, jnp.float32(1)))

        return f

    bare, spool = jax.jit(loop(log=False)), spoolax.spool(loop(log=True))
    n = jnp.int32(100_000)
    show("cheap body, 100000 iterations", *compare(lambda: bare(n), lambda: spool(n), rounds=7))


def main():
    for part in (run_time, dispatch, reductions, unheard, compile_time, while_loops):
        part()
