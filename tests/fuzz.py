"""Random programs: the same little language run by JAX and by plain Python.

A program works on one number `x`, a small whole number, so that no result is ever rounded, and it
is piecewise linear, so that its derivatives are whole numbers as well. `run_jax` builds the program
from JAX's transformations and control flow with `spoolax.log` calls in it; `run_python` walks it
with ordinary loops and a tangent beside every value, and appends to a list.
"""

import dataclasses

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

import spoolax

MODULUS = 7


@dataclasses.dataclass(frozen=True)
class Node:
    kind: str
    number: int = 0
    body: tuple["Node", ...] = ()

    def __repr__(self):
        inner = ", ".join(map(repr, self.body))
        return f"Node({self.kind!r}, {self.number}, ({inner}{',' * (len(self.body) == 1)}))"


def leaves():
    return st.one_of(
        st.builds(Node, st.just("log"), st.integers(0, 2)),
        st.builds(Node, st.just("constant"), st.integers(0, 2)),
        st.builds(Node, st.just("add"), st.integers(1, 5)),
        st.builds(Node, st.just("flip"), st.integers(0, 6)),
    )


WRAPPERS = (
    "scan",
    "reverse",
    "while",
    "test",
    "jit",
    "checkpoint",
    "vmap",
    "vmap_some",
    "grad",
    "jvp",
    "linearize",
    "custom_jvp",
    "custom_vjp",
    "cond",
    "cond",
    "switch",
    "seq",
)


def nodes(max_leaves=12):
    def wrap(children):
        body = st.lists(children, min_size=1, max_size=3).map(tuple)
        return st.builds(Node, st.sampled_from(WRAPPERS), st.integers(0, 3), body)

    tree = st.recursive(leaves(), wrap, max_leaves=max_leaves)
    return st.lists(tree, min_size=1, max_size=3).map(lambda body: Node("seq", 0, tuple(body)))


def wrapped(x):
    return jnp.mod(x, MODULUS)


class Jax:
    """Runs a program with JAX. `depth` is the number of `vmap`s around."""

    def __init__(self, listen=True):
        self.listen = listen

    def log(self, key, value):
        if self.listen:
            spoolax.log({key: value})

    def seq(self, body, depth):
        def run(x):
            for node in body:
                x = self.run(node, x, depth)
            return x

        return run

    def run(self, node, x, depth):
        body = self.seq(node.body, depth)
        number = node.number
        match node.kind:
            case "log":
                self.log(f"k{number}@{depth}", x)
                return x
            case "constant":
                self.log(f"k{number}@{depth}", jnp.float32(number))
                return x
            case "add":
                return wrapped(x + number)
            case "flip":
                return wrapped(number - x)
            case "seq":
                return body(x)
            case "scan" | "reverse":
                xs = jnp.arange(number, dtype=jnp.float32)
                reverse = node.kind == "reverse"
                return lax.scan(lambda x, i: (body(wrapped(x + i)), None), x, xs, reverse=reverse)[
                    0
                ]
            case "while" | "test":

                def go_on(carry):
                    i, x = carry
                    if node.kind == "test":
                        self.log(f"t{number}@{depth}", x)
                    return i < jnp.mod(lax.stop_gradient(x), 2) + number

                def step(carry):
                    i, x = carry
                    return i + 1, body(x)

                still = lax.stop_gradient(x)
                _, y = lax.while_loop(go_on, step, (jnp.float32(0), still))
                return wrapped(x + y)
            case "jit":
                return jax.jit(body)(x)
            case "checkpoint":
                return jax.checkpoint(body)(x)
            case "vmap" | "vmap_some":
                size = depth + 2
                inner = self.seq(node.body, depth + 1)
                if node.kind == "vmap":
                    ys = jax.vmap(inner)(wrapped(x + jnp.arange(size, dtype=jnp.float32)))
                else:  # Nothing in there depends on the lane.
                    ys = jax.vmap(lambda _: inner(x))(jnp.arange(size))
                return wrapped(jnp.sum(ys))
            case "grad":
                return wrapped(x + jax.grad(body)(x))
            case "jvp":
                y, t = jax.jvp(body, (x,), (jnp.float32(1),))
                return wrapped(y + t)
            case "linearize":
                y, push = jax.linearize(body, x)
                return wrapped(y + push(jnp.float32(1)))
            case "custom_jvp":
                f = jax.custom_jvp(body)
                f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
                return f(x)
            case "custom_vjp":
                f = jax.custom_vjp(body)
                f.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
                return f(x)
            case "cond":
                rest = self.seq(node.body[1:], depth)
                first = self.seq(node.body[:1], depth)
                return lax.cond(jnp.mod(x, 2) == 0, first, rest, x)
            case "switch":
                branches = [self.seq((child,), depth) for child in node.body]
                return lax.switch(x.astype(jnp.int32) % (len(branches) + 1), [*branches, body], x)
        raise AssertionError(node.kind)


class Python:
    """Runs a program with plain Python, on a value and its tangent."""

    def __init__(self):
        self.entries = []

    def log(self, key, value, lane):
        self.entries.append((lane, key, value, {}))

    def seq(self, body, x, t, lane):
        for node in body:
            x, t = self.run(node, x, t, lane)
        return x, t

    def run(self, node, x, t, lane):
        number, depth = node.number, len(lane)
        match node.kind:
            case "log":
                self.log(f"k{number}@{depth}", x, lane)
                return x, t
            case "constant":
                self.log(f"k{number}@{depth}", float(number), lane)
                return x, t
            case "add":
                return (x + number) % MODULUS, t
            case "flip":
                return (number - x) % MODULUS, -t
            case "seq" | "jit" | "checkpoint":
                return self.seq(node.body, x, t, lane)
            case "custom_jvp" | "custom_vjp":
                return self.seq(node.body, x, t, lane)[0], t
            case "scan" | "reverse":
                order = range(number) if node.kind == "scan" else reversed(range(number))
                for i in order:
                    x, t = self.seq(node.body, (x + i) % MODULUS, t, lane)
                return x, t
            case "while" | "test":
                i, y = 0, x
                while True:
                    if node.kind == "test":
                        self.log(f"t{number}@{depth}", y, lane)
                    if not i < y % 2 + number:
                        break
                    i, y = i + 1, self.seq(node.body, y, 0.0, lane)[0]
                return (x + y) % MODULUS, t
            case "vmap" | "vmap_some":
                starts = [
                    (x + (i if node.kind == "vmap" else 0)) % MODULUS for i in range(depth + 2)
                ]
                pairs = [self.seq(node.body, y, t, (*lane, i)) for i, y in enumerate(starts)]
                return sum(y for y, _ in pairs) % MODULUS, sum(d for _, d in pairs)
            case "grad":
                return (x + self.seq(node.body, x, 1.0, lane)[1]) % MODULUS, t
            case "jvp" | "linearize":
                y, dy = self.seq(node.body, x, 1.0, lane)
                return (y + dy) % MODULUS, dy * t
            case "cond":
                return self.seq(node.body[:1] if x % 2 == 0 else node.body[1:], x, t, lane)
            case "switch":
                which = int(x) % (len(node.body) + 1)
                which = node.body[which : which + 1] if which < len(node.body) else node.body
                return self.seq(which, x, t, lane)
        raise AssertionError(node.kind)
