"""The language: what programs there are, and what listeners may be asked for.

A program works on an array `x` of small whole numbers, so that no result is ever rounded. It is
piecewise linear and works on each number by itself, so that its derivatives are whole numbers too.
They depend on `x`, so that backward passes need what the forward pass has computed.
To add a construct, name it here, and say what it does in `with_jax` and in `with_python`.
"""

import dataclasses

import jax.numpy as jnp
from hypothesis import strategies as st

MODULUS = 7
DEVICES = 2
SMALLEST = 3  # The size of the outermost `vmap`; those inside it are larger, so all sizes differ.


@dataclasses.dataclass(frozen=True)
class Node:
    kind: str
    number: int = 0
    body: tuple["Node", ...] = ()

    def __repr__(self):
        body = f", ({', '.join(map(repr, self.body))},)" if self.body else ""
        number = f", {self.number}" if self.number or body else ""
        return f"Node({self.kind!r}{number}{body})"


def program(*body):
    return Node("seq", 0, body)


def kinds(node):
    return {node.kind}.union(*map(kinds, node.body))


LEAVES = (
    "log",
    "constant",
    "integer",
    "flag",
    "tree",
    "steps",
    "pair of keys",
    "tagged",
    "explicit",
    "log_grad",
    "log_grad",
    "add",
    "flip",
    "turn",
    "turn",
)
WRAPPERS = (
    "seq",
    # Loops and branches.
    "scan",
    "reverse",
    "fori",
    "map",
    "associative_scan",
    "while_loop",
    "test",
    "cond",
    "cond",
    "switch",
    # Calls.
    "jit",
    "twice",
    "checkpoint",
    # Lanes, devices, shapes and types.
    "vmap",
    "vmap_some",
    "shard_map",
    "replicated",
    "stack",
    "half",
    # Derivatives.
    "grad",
    "grad",
    "vjp",
    "jvp",
    "linearize",
    "custom_jvp",
    "custom_vjp",
    "rules",
    "symbolic_zeros",
    # Other listeners.
    "spool",
    "tap",
)


def programs(max_leaves=6, leave_out=(), always=()):
    """Draw a program: a few small trees, deep inside of others.

    Some kinds of nodes can be left out, and some can always be around the trees.
    """
    leaves = st.sampled_from([kind for kind in LEAVES if kind not in leave_out])
    wrappers = st.sampled_from([kind for kind in WRAPPERS if kind not in leave_out])
    numbers = st.sampled_from([1, 2, 3, 0])

    def bodies(children):
        return st.lists(children, min_size=1, max_size=3).map(tuple)

    def wrap(children):
        return st.builds(Node, wrappers, numbers, bodies(children))

    def nested(body, around):
        body = (*body, Node("log"))
        for kind, number in around:
            body = (Node(kind, number, body),)
        return program(*body)

    around = st.lists(st.tuples(wrappers, numbers), min_size=1, max_size=4)
    for kind in always:
        more = st.tuples(st.integers(0, 4), st.tuples(st.just(kind), numbers))
        around = st.builds(lambda nodes, more: with_inserted(nodes, *more), around, more)
    trees = st.recursive(st.builds(Node, leaves, numbers), wrap, max_leaves=max_leaves)
    return st.builds(nested, bodies(trees), around)


def with_inserted(items, index, item):
    return [*items[:index], item, *items[index:]]


def fold(old, new):
    """A reduction that depends on the order."""
    return jnp.where(old.astype(jnp.float32) > 3, old, new)


SELECTING = {"argnames": st.sampled_from(["x*", ("*0*", "s*")]), "tags": st.just("t")}
SHARED = SELECTING | {
    "interval": st.integers(1, 3),
    "reduce": st.sampled_from(["sum", "min", "max", "mean", "std", "first", "last", fold]),
    "prefix": st.just("p/"),
}
SPOOL = SHARED | {"capacity": st.integers(1, 4), "overflow": st.sampled_from(["first", "thin"])}
WATCH = {name: SHARED[name] for name in ("interval", "reduce")}
TAP = SHARED | {"batch": st.just(True)}


def options(of):
    """Draw some of the options of a listener."""

    def possible(drawn):
        # Windows of several loops may end in any order, so it is open which are the last.
        limited = not {"interval", "reduce"} <= set(drawn)
        return {k: v for k, v in drawn.items() if limited or k not in ("capacity", "overflow")}

    names = st.lists(st.sampled_from(sorted(of)), unique=True, max_size=3) if of else st.just(())
    drawn = names.flatmap(lambda names: st.fixed_dictionaries({name: of[name] for name in names}))
    return drawn.map(possible)


@dataclasses.dataclass(frozen=True)
class Around:
    """What is around a node, as far as it is known before the program runs."""

    place: tuple[int, ...] = ()  # Which node it is.
    lanes: tuple[int, ...] = ()  # The sizes of lanes: devices first, then outermost first.
    sharded: bool = False
    order: int = 0  # How many derivatives are taken.
    listeners: bool = False  # Whether there are others between here and a derivative.
    # Whether something is around that runs the tests of while loops in their bodies, and the first
    # one before the loop. Then it is open to which iteration belongs what they log.
    rebuilt: bool = False
    # Whether nothing differs between some lanes: then backward rules may run once for all of them,
    # with the sum of their cotangents.
    alike: bool = False

    def at(self, *place):
        return dataclasses.replace(self, place=(*self.place, *place))

    def mapped(self, alike=False):
        size, alike = SMALLEST + len(self.lanes) - self.sharded, alike or self.alike
        return dataclasses.replace(self, lanes=(*self.lanes, size), rebuilt=True, alike=alike)

    def on_devices(self):
        return dataclasses.replace(self, lanes=(DEVICES, *self.lanes), sharded=True)

    def differentiated(self):
        return dataclasses.replace(self, order=self.order + 1, listeners=False, rebuilt=True)

    def stopped(self):
        """Where nothing is differentiated, whatever is around."""
        return dataclasses.replace(self, order=0, listeners=False)

    def listened(self, rebuilt=False):
        rebuilt = rebuilt or self.rebuilt
        return dataclasses.replace(self, listeners=self.order > 0, rebuilt=rebuilt)

    @property
    def rules_log(self):
        """Whether custom rules log here: not if derivatives of rules are taken, and not where it
        is open who hears them: a listener inside of the derivative, or one around it.
        """
        return self.order < 2 and not self.listeners

    @property
    def backward_rules_log(self):
        return self.rules_log and not self.alike

    def key(self, name, value):
        """A key for values of one type, which says in which lanes it is logged."""
        return f"{name} {value.dtype.name}{list(value.shape)} in {list(self.lanes)}"

    def logs_here(self, key):
        """Whether a key is logged in these lanes, rather than in more of them."""
        return sizes_of(key) == self.lanes


def sizes_of(key):
    """The sizes of the lanes that a key is logged in."""
    inside = key.rpartition("[")[2].rstrip("]")
    return tuple(map(int, inside.split(", "))) if inside else ()


def signs(size):
    """Weights for a sum over lanes that is not much larger than what is in them."""
    return [1 - 2 * (i % 2) for i in range(size)]


def inner_options(number):
    """The options of a listener in the program."""
    return {"keep_logs": number % 2 == 1, "argnames": "x*" if number >= 2 else None}
