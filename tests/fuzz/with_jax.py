"""Run a program with JAX's transformations and control flow, with `log` calls in it."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import spoolax
from fuzz.grammar import DEVICES, MODULUS, Around, inner_options, signs

POLICIES = (
    None,
    jax.checkpoint_policies.nothing_saveable,
    jax.checkpoint_policies.everything_saveable,
    jax.checkpoint_policies.save_only_these_names("x"),
)


def wrapped(x):
    return jnp.mod(x, MODULUS)


def shifts(count, x):
    """The numbers 0, 1, ... along a new axis in front of those of `x`."""
    return jnp.arange(count, dtype=x.dtype).reshape(count, *(1,) * x.ndim)


def joined(ys):
    """Add up what lanes came to, with alternating signs."""
    weights = jnp.array(signs(len(ys)), ys.dtype).reshape(len(ys), *(1,) * (ys.ndim - 1))
    return wrapped(jnp.sum(ys * weights, axis=0))


def level(x):
    """A whole number that says what branches and loops do. It has no derivative."""
    return lax.stop_gradient(jnp.sum(x)).astype(jnp.int32)


def sign(x):
    """1 for even numbers, and -1 for odd ones: a factor that backward passes need."""
    return 1 - 2 * jnp.mod(lax.stop_gradient(x), 2)


def mesh():
    return jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


@dataclasses.dataclass
class Jax:
    """Runs a program. What taps inside it hear goes to `heard`; without it, nobody listens."""

    heard: list | None = None

    def __call__(self, program, x):
        return self.run(program, x, Around())

    def body(self, nodes, around):
        def run(x):
            for i, node in enumerate(nodes):
                x = self.run(node, x, around.at(i))
            return x

        return run

    def run(self, node, x, around):
        number, key = node.number, around.key
        body = self.body(node.body, around)
        match node.kind:
            case "log":
                spoolax.log({key(f"x{number}", x): x})
            case "constant":
                one = jnp.float32(number)
                spoolax.log({key("c", one): one})
            case "integer":
                spoolax.log({key(f"i{number}", x): x.astype(jnp.int32)})
            case "flag":
                spoolax.log({key(f"f{number}", x): x > 2})
            case "tree":
                spoolax.log({key("y", x): {"b": x, "a": [x.astype(jnp.int32)]}})
            case "steps":
                spoolax.log({key("s", x): x}, step=level(x), epoch=number)
            case "pair of keys":
                spoolax.log({key("z", x): x, key(f"x{number}", x): 2 * x})
            case "tagged":
                spoolax.log({key("t", x): x}, tags=("t", "u"))
            case "explicit":
                spoolax.log({key("e", x): x}, tags="t", explicit=True)
            case "log_grad":
                if around.order < 2:
                    return spoolax.log_grad(key("g", x), x, step=level(x))
            case "add":
                return wrapped(x + number)
            case "flip":
                return wrapped(number - x)
            case "turn":
                return wrapped(x * sign(x))
            case "seq":
                return body(x)
            case _:
                return getattr(self, node.kind)(node, x, around, body)
        return x

    def scan(self, node, x, around, body, reverse=False):
        xs = jnp.arange(node.number, dtype=x.dtype)
        return lax.scan(lambda x, i: (body(wrapped(x + i)), None), x, xs, reverse=reverse)[0]

    def reverse(self, node, x, around, body):
        return self.scan(node, x, around, body, reverse=True)

    def fori(self, node, x, around, body):
        return lax.fori_loop(0, node.number, lambda i, x: body(wrapped(x + i.astype(x.dtype))), x)

    def map(self, node, x, around, body):
        return joined(lax.map(body, wrapped(x[None] + shifts(node.number, x))))

    def associative_scan(self, node, x, around, body):
        calls = itertools.count()  # Each is a place of its own, as it is traced by itself.

        def combine(a, b):
            return self.body(node.body, around.stopped().at(next(calls)))(wrapped(a + b))

        xs = wrapped(lax.stop_gradient(x)[None] + shifts(node.number + 1, x))
        y = lax.associative_scan(combine, xs)[-1]
        return wrapped(x * sign(y) + y)

    def while_loop(self, node, x, around, body, in_test=False):
        if around.sharded:  # It is refused there.
            return self.scan(node, x, around, body)
        inner = self.body(node.body, around.stopped())

        def test(carry):
            i, x = carry
            if in_test:
                spoolax.log({around.key(f"w{node.number}", x): x})
            return i < level(x) % 2 + node.number

        def step(carry):
            i, x = carry
            return i + 1, inner(x)

        _, y = lax.while_loop(test, step, (0, lax.stop_gradient(x)))
        return wrapped(x * sign(y) + y)

    def test(self, node, x, around, body):
        return self.while_loop(node, x, around, body, in_test=True)

    def cond(self, node, x, around, body):
        first, rest = (self.body(part, around.at(i)) for i, part in enumerate(halves(node)))
        return lax.cond(level(x) % 2 == 0, first, rest, x)

    def switch(self, node, x, around, body):
        branches = [self.body((child,), around.at(i)) for i, child in enumerate(node.body)]
        branches.append(self.body(node.body, around.at(len(branches))))
        return lax.switch(level(x) % len(branches), branches, x)

    def jit(self, node, x, around, body):
        return jax.jit(body, inline=node.number == 1)(x)

    def twice(self, node, x, around, body):
        f = jax.jit(body)
        return f(f(x))

    def checkpoint(self, node, x, around, body):
        def named(x):
            return checkpoint_name(body(x), "x")

        return jax.checkpoint(named, policy=POLICIES[node.number])(x)

    def vmap(self, node, x, around, body):
        around = around.mapped()
        xs = wrapped(x[None] + shifts(around.lanes[-1], x))
        return joined(jax.vmap(self.body(node.body, around))(xs))

    def vmap_some(self, node, x, around, body):
        around = around.mapped(alike=True)
        inner = self.body(node.body, around)
        return joined(jax.vmap(lambda _: inner(x))(jnp.arange(around.lanes[-1])))

    def shard_map(self, node, x, around, body):
        if around.sharded:
            return body(x)
        inner = self.body(node.body, around.on_devices())
        f = jax.shard_map(
            lambda x: inner(x[0])[None], mesh=mesh(), in_specs=P("d"), out_specs=P("d")
        )
        return joined(f(wrapped(x[None] + shifts(DEVICES, x))))

    def replicated(self, node, x, around, body):
        if around.sharded:
            return body(x)
        inner = self.body(node.body, around.on_devices())
        return jax.shard_map(inner, mesh=mesh(), in_specs=P(), out_specs=P())(x)

    def stack(self, node, x, around, body):
        return joined(body(wrapped(x[None] + shifts(2, x)))) if x.ndim < 2 else body(x)

    def half(self, node, x, around, body):
        return body(x.astype(jnp.float16)).astype(x.dtype)

    def grad(self, node, x, around, body):
        inner = self.body(node.body, around.differentiated())
        return wrapped(x + jax.grad(lambda x: jnp.sum(inner(x)))(x))

    def vjp(self, node, x, around, body):
        y, pull = jax.vjp(self.body(node.body, around.differentiated()), x)
        (a,), (b,) = pull(jnp.ones_like(y)), pull(2 * jnp.ones_like(y))
        return wrapped(y + a + b)

    def jvp(self, node, x, around, body):
        inner = self.body(node.body, around.differentiated())
        return wrapped(sum(jax.jvp(inner, (x,), (jnp.ones_like(x),))))

    def linearize(self, node, x, around, body):
        y, push = jax.linearize(self.body(node.body, around.differentiated()), x)
        return wrapped(y + push(jnp.ones_like(x)))

    def custom_jvp(self, node, x, around, body):
        f = jax.custom_jvp(self.body(node.body, around.stopped()))

        @f.defjvp
        def rule(primals, tangents):
            if around.rules_log:
                spoolax.log({around.key("j", x): primals[0]})
            return f(*primals), tangents[0] * sign(primals[0])

        return f(x)

    def custom_vjp(self, node, x, around, body):
        f = jax.custom_vjp(self.body(node.body, around.stopped()))
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * sign(x),))
        return f(x)

    def rules(self, node, x, around, body):
        inner = self.body(node.body, around.stopped())
        f = jax.custom_vjp(inner)

        def forward(x):
            if around.rules_log:
                spoolax.log({around.key("r", x): x})
            return f(x), x

        def backward(x, g):
            if around.backward_rules_log:
                spoolax.log({around.key("b", x): g + x})
            if node.number % 2:  # A recomputation, which logs nothing. Its derivative would.
                g = g + 0 * inner(jax.lax.stop_gradient(x))
            return (g * sign(x),)

        f.defvjp(forward, backward)
        return f(x)

    def symbolic_zeros(self, node, x, around, body):
        """The output says which inputs are perturbed, if the rules are used at all."""
        inner = self.body(node.body, around.stopped())
        f = jax.custom_vjp(lambda x, c: inner(x))

        def forward(x, c):
            if around.rules_log:
                spoolax.log({around.key("r", x.value): x.value})
            y = f(x.value, c.value)
            return wrapped(y + 3 * int(x.perturbed) + int(c.perturbed)), x.value

        def backward(x, g):
            if around.backward_rules_log:
                spoolax.log({around.key("b", x): g + x})
            return g * sign(x), jnp.zeros_like(g)

        f.defvjp(forward, backward, symbolic_zeros=True)
        return f(x, jnp.ones_like(x))

    def spool(self, node, x, around, body):
        if self.heard is None:
            return body(x)
        inner = self.body(node.body, around.listened(rebuilt=True))
        y, logs = spoolax.spool(inner, reduce="sum", **inner_options(node.number))(x)
        for key in filter(around.logs_here, logs):
            for total in jax.tree.leaves(logs[key]):
                there = jnp.where(logs.valid[key], jnp.sum(total), 0)
                y = wrapped(y + lax.stop_gradient(there).astype(y.dtype))
        return y

    def tap(self, node, x, around, body):
        if self.heard is None:
            return body(x)
        inner = self.body(node.body, around.listened())
        prefix = f"{around.place}: "
        options = inner_options(node.number)
        return spoolax.tap(inner, self.heard.append, prefix=prefix, **options)(x)


def halves(node):
    return node.body[:1], node.body[1:]
