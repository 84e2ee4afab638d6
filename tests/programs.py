"""One program for each JAX construct. Properties are tested over all of them.

A program is a function of `XS`. To test a new rule under every transformation, add an entry here.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from oracle import checkpoint, log, vmap

XS = jnp.array([1.0, 2.0, 5.0])


@dataclasses.dataclass(frozen=True)
class Program:
    f: Callable[[Any], Any]
    expected: list | None = None  # None: ask the plain-Python run.
    reverse: bool = True  # Whether it has reverse-mode derivatives.
    batched: bool = True  # Whether it can be mapped over.
    lanes: tuple[int, ...] = (len(XS), 2)  # The sizes of its lanes, outermost first.
    keys: bool = False  # Whether it logs random keys, which have no maximum.
    silent_rule: bool = False  # Whether `vmap` runs a rule of the program's own that logs nothing.

    @property
    def mixes(self):
        """Whether it can be one of several programs that are compiled as one function."""
        return self.batched and not self.keys


PROGRAMS: dict[str, Program] = {}


def program(f=None, **properties):
    if f is None:
        return partial(program, **properties)
    PROGRAMS[f.__name__] = Program(f, **properties)
    return f


def entries(key, values, **steps):
    """Expected entries, without lanes."""
    return [((), key, v, {name: at[i] for name, at in steps.items()}) for i, v in enumerate(values)]


@program
def straight_line(xs):
    y = xs * 2
    log({"y": y, "sum": y.sum()}, step=3)
    return jnp.sin(y)


@program
def logged_twice(xs):
    log({"x": xs}, step=0)
    log({"x": xs + 1}, step=1)
    return xs


@program
def pytrees(xs):
    log({"tree": {"a": xs, "b": [xs[0], (xs[1:],)]}})
    return {"out": (xs, [2 * xs])}


@program
def jit(xs):
    @jax.jit
    def inner(x):
        log({"inner": x})
        return jnp.cos(x)

    return inner(xs) + inner(2 * xs)


@program
def nested_jit(xs):
    outer = jax.jit(lambda x: jax.jit(lambda y: log({"deep": y}) or y * 3)(x) + 1)
    return outer(xs)


def walk(key="x"):
    def body(carry, x):
        carry = jnp.sin(carry + x)
        log({key: carry}, step=x)
        return carry, carry * 2

    return body


@program
def scan(xs):
    return lax.scan(walk(), 0.0, xs)


@program
def scan_reverse(xs):
    return lax.scan(walk(), 0.0, xs, reverse=True)


@program
def scan_unrolled(xs):
    return lax.scan(walk(), 0.0, xs, unroll=2)


@program(expected=[])
def scan_of_no_length(xs):
    return lax.scan(walk(), 0.0, xs[:0])[0] + xs


@program
def scan_of_one(xs):
    return lax.scan(walk(), 0.0, xs[:1])


@program
def scan_without_carry_or_inputs(xs):
    def body(_, __):
        log({"same": xs})
        return None, xs.sum()

    return lax.scan(body, None, None, length=3)[1]


@program
def scan_logging_twice(xs):
    def body(carry, x):
        log({"x": carry})
        log({"x": x, "other": carry})
        return carry + x, None

    log({"x": xs[0]})
    return lax.scan(body, 0.0, xs)[0]


@program
def nested_scans(xs):
    def outer(carry, x):
        carry, ys = lax.scan(walk("inner"), carry + x, xs)
        log({"outer": carry})
        return carry, ys

    return lax.scan(outer, 0.0, xs)


@program
def same_body_scanned_twice(xs):
    body = walk()
    y, _ = lax.scan(body, 0.0, xs)
    return lax.scan(body, y, xs)


@program
def lax_map(xs):
    return lax.map(lambda x: log({"x": x}) or x * 2, xs)


@program
def fori_loop(xs):
    def body(i, x):
        log({"x": x}, step=i)
        return jnp.cos(x) + jnp.float32(i)

    return lax.fori_loop(0, 4, body, xs)


@program(reverse=False)
def fori_loop_of_dynamic_length(xs):
    return lax.fori_loop(0, xs[1].astype(int), lambda i, x: log({"x": x}) or x + jnp.float32(i), xs)


def double(key, limit=20.0):
    def body(x):
        log({key: x})
        return x * 2

    return partial(lax.while_loop, lambda x: x.sum() < limit, body)


@program(reverse=False)
def while_loop(xs):
    return double("x")(xs)


@program(reverse=False)
def while_loop_that_does_not_run(xs):
    return double("x", limit=0.0)(xs)


@program(reverse=False)
def while_loop_with_a_log_in_its_test(xs):
    def test(x):
        log({"test": x.sum()})
        return x.sum() < 30

    return lax.while_loop(test, lambda x: x * 2, xs)


@program(reverse=False)
def nested_while_loops(xs):
    def outer(carry):
        i, x = carry
        x = double("inner", limit=40.0)(x) / 4
        log({"outer": x}, step=i)
        return i + 1, x

    return lax.while_loop(lambda carry: carry[0] < 3, outer, (0, xs))


@program(reverse=False)
def while_loop_in_scan(xs):
    def body(carry, x):
        carry = double("x", limit=9.0)(carry + x) / 8
        log({"x": carry})
        return carry, None

    return lax.scan(body, 0.5, xs)[0]


@program(reverse=False)
def scan_in_while_loop(xs):
    def body(x):
        return lax.scan(walk(), x, xs)[0] + 3 + x

    return lax.while_loop(lambda x: x < 9, body, 0.0)


@program
def cond_with_equal_branches(xs):
    return lax.cond(xs[0] > 0, lambda x: log({"x": x}) or x * 2, lambda x: log({"x": -x}) or x, xs)


@program
def cond_with_unequal_branches(xs):
    def yes(x):
        log({"yes": x, "both": x[0]})
        log({"yes": x + 1, "both": x[1]})
        return jnp.sin(x)

    def no(x):
        log({"no": x[:2]})
        log({"both": x[2]})
        return x

    return lax.cond(xs.sum() > 0, yes, no, xs) + lax.cond(xs.sum() < 0, yes, no, xs)


@program
def cond_with_one_silent_branch(xs):
    return lax.cond(xs[1] < 0, lambda x: log({"x": x}) or x, lambda x: x * 2, xs)


@program
def cond_in_scan(xs):
    def body(carry, x):
        def odd(c):
            log({"odd": c}, step=x)
            return c + x

        return lax.cond(x % 2 == 1, odd, lambda c: log({"even": c}) or c - x, carry), None

    return lax.scan(body, 0.0, jnp.concatenate([xs, xs]))[0]


@program
def scan_in_cond(xs):
    def yes(x):
        return lax.scan(walk(), 0.0, x)[0]

    return lax.cond(xs[0] > 0, yes, lambda x: log({"x": x[0]}, step=x[1]) or x[0], xs)


@program(reverse=False)
def while_loop_in_cond(xs):
    return lax.cond(xs[0] > 0, double("x"), lambda x: x, xs)


@program
def switch(xs):
    branches = [lambda x, i=i: log({f"branch {i}": x, "any": x[i]}) or x * i for i in range(3)]
    total = xs
    for index in (1, 2, 1):
        total = total + lax.switch(xs[0].astype(int) * index, branches, xs)
    return total


@program
def vmap_scan(xs):
    return vmap(lambda x: lax.scan(walk(), x, xs)[0])(xs)


@program
def vmap_of_values_that_do_not_depend_on_the_lane(xs):
    def f(x):
        log({"same": 3.0, "mixed": x})
        log({"mixed": 1.0})
        return x

    return vmap(f)(xs)


@program
def vmap_cond(xs):
    def f(x):
        return lax.cond(
            x > 1.5, lambda x: log({"big": x}) or x, lambda x: log({"small": x}) or -x, x
        )

    return vmap(f)(xs)


@program
def vmap_scan_cond(xs):
    def body(carry, x):
        carry = carry + x
        return lax.cond(carry > 6, lambda c: log({"x": c}) or c - 6, lambda c: c, carry), None

    return vmap(lambda x: lax.scan(body, x, xs)[0])(xs)


@program(reverse=False)
def vmap_while(xs):
    return vmap(double("x"))(xs)


@program(reverse=False)
def vmap_while_in_scan(xs):
    def body(carry, x):
        return double("x", limit=8.0)(carry + x) / 8, None

    return vmap(lambda x: lax.scan(body, x, xs)[0])(xs)


@program(reverse=False)
def vmap_cond_while(xs):
    def f(x):
        return lax.cond(x > 1.5, double("x"), lambda x: log({"y": x}) or x, x)

    return vmap(f)(xs)


@program(reverse=False)
def nested_vmaps(xs):
    def inner(y):
        log({"y": y})
        return double("w", limit=12.0)(y)

    def outer(x):
        log({"x": x})
        return vmap(inner)(x + xs[:2])

    return vmap(outer)(xs)


@program
def grad(xs):
    def loss(x):
        log({"x": x})
        return jnp.sum(jnp.sin(x) ** 2)

    return jax.grad(loss)(xs)


@program
def value_and_grad_of_scan(xs):
    return jax.value_and_grad(lambda x: lax.scan(walk(), x, xs)[0])(xs[0])


@program
def grad_of_scan_of_something_invariant(xs):
    def body(carry, x):
        log({"constant": 2.0, "invariant": xs * 2})
        return jnp.sin(carry * x), None

    return jax.grad(lambda x: lax.scan(body, x, xs)[0])(xs[0])


@program
def training_loop(xs):
    def step(w, x):
        def loss(w):
            y = lax.scan(walk("hidden"), w, xs)[0]
            log({"y": y})
            return (y - x) ** 2

        value, slope = jax.value_and_grad(loss)(w)
        log({"loss": value, "slope": slope}, step=x)
        return w - 0.1 * slope, value

    return lax.scan(step, xs[0], xs)


@program
def jvp(xs):
    return jax.jvp(lambda x: lax.scan(walk(), 0.0, x)[0], (xs,), (xs,))


@program(reverse=False)
def jvp_of_while(xs):
    return jax.jvp(double("x"), (xs,), (xs,))


@program(reverse=False)
def linearize_while(xs):
    y, push = jax.linearize(double("x"), xs)
    return y + push(xs)


@program(reverse=False)
def linearize_while_with_a_log_in_its_test(xs):
    def test(x):
        log({"test": x})
        return x.sum() < 30

    y, push = jax.linearize(partial(lax.while_loop, test, lambda x: x * 2), xs)
    return y + push(xs)


@program
def vjp(xs):
    y, pull = jax.vjp(lambda x: lax.scan(walk(), 0.0, x)[0], xs)
    return pull(y)


@program
def linearize(xs):
    y, push = jax.linearize(lambda x: log({"x": x}) or jnp.cos(x), xs)
    return push(y)


@program
def jacobians(xs):
    def f(x):
        log({"x": x})
        return jnp.cumsum(jnp.sin(x))

    return jax.jacfwd(f)(xs) + jax.jacrev(f)(xs)


@program
def hessian(xs):
    return jax.hessian(lambda x: lax.scan(walk(), x, xs)[0])(xs[0])


@program(expected=[])
def linear_transpose(xs):
    return jax.linear_transpose(lambda x: log({"never": x}) or x * 2, xs)(xs)


@program
def remat(xs):
    def f(x):
        log({"x": x})
        return jnp.sum(jnp.sin(jnp.sin(x)))

    return jax.grad(checkpoint(f))(xs) + checkpoint(f)(xs)


@program
def remat_of_scan(xs):
    return jax.grad(checkpoint(lambda x: lax.scan(walk(), x, xs)[0]))(xs[0])


@program
def scan_of_remat(xs):
    body = checkpoint(walk())
    return jax.grad(lambda x: lax.scan(body, x, xs)[0])(xs[0])


@program
def remat_in_remat(xs):
    @checkpoint
    def outer(x):
        y = checkpoint(lambda x: log({"x": x}) or jnp.sin(x))(x)
        log({"y": y})
        return jnp.sin(y).sum()

    return jax.grad(outer)(xs)


@program(reverse=False)
def remat_of_while(xs):
    @checkpoint
    def f(x):
        y = double("x")(lax.stop_gradient(x))
        return jnp.sum(jnp.sin(x) * y)

    return jax.grad(f)(xs)


@program(reverse=False)
def grad_of_scan_of_while(xs):
    def body(carry, x):
        fixed = double("x", limit=9.0)(lax.stop_gradient(x))
        invariant = double("invariant", limit=9.0)(jnp.float32(1.0))
        return jnp.sin(carry) * fixed + invariant, None

    return jax.grad(lambda x: lax.scan(body, x, xs)[0])(xs[0])


def _checkpointed_steps(x, key):
    def body(carry, x):
        i = lax.while_loop(lambda i: i < 2, lambda i: log({key: i}) or i + 1, jnp.float32(0))
        return jnp.sin(carry * x * i), None

    return lax.scan(checkpoint(body), 1.0, x)[0]


@program(reverse=False)
def remat_of_scan_of_remat_of_while(xs):
    return jax.grad(checkpoint(partial(_checkpointed_steps, key="i")))(xs)


@program(reverse=False)
def remat_of_remat_of_while(xs):
    return jax.grad(checkpoint(checkpoint(partial(_checkpointed_steps, key="i"))))(xs)


@program(reverse=False)
def remat_of_while_with_a_log_in_its_test(xs):
    def body(carry, x):
        def test(i):
            log({"i": i})
            return i < 2

        i = lax.while_loop(test, lambda i: i + 1, jnp.float32(0))
        return carry + jnp.sin(jnp.sin(x) * i), None

    def f(xs):
        return lax.scan(checkpoint(body), 0.0, xs)[0]

    return jax.grad(f)(xs) + jax.grad(checkpoint(f))(xs)


# Each program makes its own functions with custom rules: JAX caches their traces, and the keys that
# were logged in them.


def cubing():
    @jax.custom_jvp
    def cubed(x):
        log({"cubed": x})
        return x**3

    cubed.defjvp(lambda p, t: (cubed(*p), 5 * p[0] * t[0]))
    return cubed


def halving():
    @jax.custom_vjp
    def halved(x):
        log({"halved": x})
        return x / 2

    halved.defvjp(lambda x: (halved(x), x), lambda x, g: (g * x,))
    return halved


@program
def custom_jvp(xs):
    cubed = cubing()
    return cubed(xs) + jax.grad(lambda x: cubed(x).sum())(xs)


@program
def custom_vjp(xs):
    halved = halving()
    return halved(xs) + jax.grad(lambda x: halved(x).sum())(xs)


@program
def custom_derivatives_in_scan(xs):
    cubed, halved = cubing(), halving()

    def body(carry, x):
        return jnp.sin(cubed(carry) + halved(carry * x)), None

    def f(x):
        return lax.scan(body, x, xs)[0]

    return f(xs[0]), jax.grad(f)(xs[0])


@program(reverse=False)  # Differentiated again, the rule runs again, and logs again.
def custom_jvp_whose_rule_logs(xs):
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        log({"in the rule": primals[0]})
        return f(*primals), 2 * tangents[0]

    return jax.grad(lambda x: f(x).sum())(xs)


@program(reverse=False)  # As above.
def custom_vjp_whose_rules_log(xs):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    def forward(x):
        log({"forward": x})
        return f(x), x

    def backward(x, g):
        log({"backward": g})
        return (g * x,)

    f.defvjp(forward, backward)
    return jax.grad(lambda x: lax.scan(lambda c, x: (f(c) * x, None), x, xs)[0])(xs[0])


@program(expected=entries("custom", [XS]), reverse=False, silent_rule=True)
def custom_vmap(xs):
    @jax.custom_batching.custom_vmap
    def mapped_by_hand(x):
        log({"custom": x})
        return x + 1

    @mapped_by_hand.def_vmap
    def _(axis_size, in_batched, x):
        return x + 1, in_batched[0]

    return mapped_by_hand(xs)


def _newton(f, x):
    def body(carry):
        i, x = carry
        log({"root": x}, step=i)
        return i + 1, x - f(x) / jax.grad(f)(x)

    return lax.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1]


def _newton_steps(a):
    x, steps = jnp.float32(1.0), []
    for _ in range(4):
        steps.append(x)
        x = jax.jit(lambda x: x - (x**2 - a) / jax.grad(lambda x: x**2 - a)(x))(x)
    return steps


@program(
    expected=entries("root", _newton_steps(XS[1]), step=range(4)),
    reverse=False,
)
def custom_root(xs):
    return lax.custom_root(
        lambda x: x**2 - xs[1], jnp.float32(1.0), _newton, lambda g, y: y / g(jnp.float32(1.0))
    )


@program(
    expected=entries("b", [XS]) + entries("guess", [XS * 0.5, XS * 0.75]),
    reverse=False,
)
def custom_linear_solve(xs):
    def solve(matvec, b):
        log({"b": b})

        def body(x, _):
            x = x + 0.5 * (b - matvec(x))
            log({"guess": x})
            return x, None

        return lax.scan(body, jnp.zeros_like(b), None, length=2)[0]

    return lax.custom_linear_solve(lambda x: x, xs, solve, solve)


@program
def associative_scan(xs):
    def add(a, b):
        log({f"sum of {len(a)}": a + b})
        return a + b

    return lax.associative_scan(add, xs)


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


@program(
    expected=[
        *[((i,), "mine", 2 * jnp.arange(2.0) + 4 * i, {}) for i in range(2)],
        ((), "total", jnp.float32(12.0), {}),
    ],
    batched=False,
    reverse=False,
    lanes=(2,),
)
def shard_map(xs):
    @partial(jax.shard_map, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    def f(x):
        log({"mine": x})
        log({"total": lax.psum(x.sum(), "d")})
        return x + 1

    return f(2 * jnp.arange(4.0)) + 0 * xs[0]


@program(
    expected=[((d,), "mine", jnp.float32(d + i), {"step": i}) for d in range(2) for i in range(3)],
    batched=False,
    reverse=False,
    lanes=(2,),
)
def scan_in_shard_map(xs):
    @partial(jax.shard_map, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    def f(x):
        def body(c, i):
            log({"mine": c[0]}, step=i)
            return c + 1, None

        return lax.scan(body, x, jnp.arange(3))[0]

    return f(jnp.arange(2.0)) + 0 * xs[0]


@program(
    expected=[((d,), "mine", jnp.float32(d + i), {}) for i in range(3) for d in range(2)],
    batched=False,
    reverse=False,
    lanes=(2,),
)
def shard_map_in_scan(xs):
    @partial(jax.shard_map, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False)
    def f(x):
        log({"mine": x[0]})
        return x + 1

    return lax.scan(lambda c, _: (f(c), None), jnp.arange(2.0), None, length=3)[0] + 0 * xs[0]


@program(
    expected=[
        ((0,), "small", jnp.float32(1.0), {}),
        *[((1,), "big", jnp.float32(5.0 + i), {}) for i in range(2)],
        ((0,), "small", jnp.float32(2.0), {}),
    ],
    batched=False,
    reverse=False,
    lanes=(2,),
)
def cond_in_scan_in_shard_map(xs):
    def body(x, _):
        def big(x):
            log({"big": x.sum()})
            return x + 0.5

        def small(x):
            log({"small": x.sum()})
            return 2 * x

        return lax.cond(x[1] > 2, big, small, x), None

    @partial(jax.shard_map, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    def f(x):
        return lax.scan(body, x, None, length=2)[0]

    return f(jnp.arange(4.0)) + 0 * xs[0]


@program(batched=False)
def jit_with_shardings(xs):
    sharded = NamedSharding(mesh(), P("d"))
    f = jax.jit(lambda x: log({"x": x}) or x * 2, in_shardings=sharded, out_shardings=sharded)
    return f(jnp.concatenate([xs, xs]))


@program(reverse=False, keys=True)
def dtypes(xs):
    keys = jax.random.split(jax.random.key(0), 2)
    values = {
        "bfloat16": xs.astype(jnp.bfloat16),
        "float8": xs.astype(jnp.float8_e4m3fn),
        "int8": xs.astype(jnp.int8),
        "bool": xs > 1,
        "complex": lax.complex(xs, -xs),
        "empty": jnp.zeros((0, 3)),
        "python": 3,
    }

    def body(carry, _):
        log(values)
        return carry, None

    log({"keys": keys})
    lax.cond(xs[0] > 0, lambda: log({"maybe": keys[0]}), lambda: None)
    return lax.scan(body, xs, None, length=2)[0]


@program(reverse=False, keys=True)
def random_walk(xs):
    def body(carry, _):
        key, x = carry
        key, sub = jax.random.split(key)
        log({"key": sub, "x": x})
        return (key, x + jax.random.normal(sub)), None

    return lax.scan(body, (jax.random.key(1), xs[0]), None, length=3)[0][1]
