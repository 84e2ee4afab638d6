"""Run a program with ordinary Python loops, appending what it logs to a list.

Every node returns its output, and a function that takes the cotangent of the output to that of the
input, and logs what a backward pass logs on its way. This knows nothing of spoolax or JAX.
"""

import collections
import dataclasses
import fnmatch
import functools
import itertools
import math

import numpy as np

from fuzz.grammar import DEVICES, MODULUS, Around, inner_options, signs

LARGEST = 1000  # Numbers above this may be rounded in half precision.


class TooLargeError(Exception):
    """Derivatives are too large to be exact."""


@dataclasses.dataclass(frozen=True)
class Here:
    """Where the program is: static surroundings, lane, loops and iterations, and calls."""

    around: Around = Around()  # noqa: RUF009 (it is frozen)
    lane: tuple[int, ...] = ()
    loops: tuple[tuple[str, int], ...] = ()
    calls: tuple[int, ...] = ()  # Which of two calls of the same function.
    innermost: tuple | None = None  # Which loop it is in, and the lane of that loop.
    live: bool = False  # Whether `x` is differentiated.

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def at(self, *place):
        return self.replace(around=self.around.at(*place))

    def stopped(self):
        return self.replace(around=self.around.stopped(), live=False)

    def differentiated(self):
        return self.replace(around=self.around.differentiated(), live=True)


@dataclasses.dataclass(frozen=True)
class Logged:
    """An entry."""

    key: str
    lane: tuple[int, ...]
    value: object
    steps: dict
    loops: tuple[tuple[str, int], ...] | None  # None: open, as for backward passes.
    loop: tuple | None  # The innermost one.
    count: int | None  # How many iterations of it there were before, in the whole run. None: open.


@dataclasses.dataclass
class Listener:
    """Hears what is logged, and passes it on if it keeps logs or is not interested."""

    argnames: str | tuple[str, ...] | None = None
    tags: str | None = None
    keep_logs: bool = True
    entries: list = dataclasses.field(default_factory=list)

    def selects(self, key, tags, explicit):
        if self.argnames is None and self.tags is None:
            return not explicit
        patterns = (self.argnames,) if isinstance(self.argnames, str) else self.argnames
        by_name = patterns is None or any(fnmatch.fnmatchcase(key, p) for p in patterns)
        return by_name and (self.tags is None or self.tags in tags)


def wrapped(x):
    return np.mod(x, MODULUS)


def level(x):
    return int(np.sum(x))


def times_sign(x):
    """A function that multiplies by 1 where numbers are even, and by -1 where they are odd."""
    return lambda g: g * (1 - 2 * np.mod(x, 2))


def exact(x):
    if np.size(x) and np.max(np.abs(x)) > LARGEST:
        raise TooLargeError
    return x


def same(cotangent):
    return cotangent


def chained(pulls):
    """Pull a cotangent back, the last one first."""
    return lambda g: functools.reduce(lambda g, pull: pull(g), reversed(pulls), g)


class Python:
    """Runs a program. What taps inside it hear goes to `heard`, with their places as prefixes."""

    def __init__(self, listener):
        self.listeners = [listener]
        self.heard = []
        self.watched = []  # The carry of each iteration, and where it is.
        self.silent = False
        self.backward = None, None  # Which backward pass is running, and in which loop.
        self.counts = collections.Counter()  # The iterations of loops, in each of their lanes.
        self.runs = collections.defaultdict(dict)  # The iterations of each run of a loop, by lane.
        self.lanes_of = {}  # The sizes of the lanes that loops are in.

    def __call__(self, program, x):
        return self.run(program, np.float32(x), Here())[0]

    def log(self, here, name, like, value, tags=(), explicit=False, counted=True, **steps):
        if self.silent:
            return
        key = here.around.key(name, like)
        loop = here.innermost and self.loop_at(here.innermost)
        loops = here.loops if counted and not (loop and loop[0]) else None
        count = self.counts[loop] if counted else None
        entry = Logged(key, here.lane, value, steps, loops, loop, count)
        for listener in reversed(self.listeners):
            if listener.selects(key, tags, explicit):
                listener.entries.append(entry)
                if not listener.keep_logs:
                    return

    def loop_at(self, innermost):
        """Name a loop, or its backward pass, if that is what is running."""
        which, outside = self.backward
        return (None if innermost == outside else which), innermost

    def pulled(self, pull, like, here=None, number=0):
        """Run a backward pass; without a place, one that only asks for the derivative."""
        before = self.silent, self.backward
        self.silent = self.silent or here is None
        if here is not None:
            self.backward = (here.around.place, here.calls, number), here.innermost
        try:
            return exact(pull(np.ones_like(like)))
        finally:
            self.silent, self.backward = before

    def body(self, nodes, x, here):
        pulls = []
        for i, node in enumerate(nodes):
            x, pull = self.run(node, x, here.at(i))
            pulls.append(pull)
        return x, chained(pulls)

    def run(self, node, x, here):
        number = node.number
        match node.kind:
            case "log":
                self.log(here, f"x{number}", x, x)
            case "constant":
                one = np.float32(number)
                self.log(here, "c", one, one)
            case "integer":
                self.log(here, f"i{number}", x, x.astype(np.int32))
            case "flag":
                self.log(here, f"f{number}", x, x > 2)
            case "tree":
                self.log(here, "y", x, {"a": [x.astype(np.int32)], "b": x})
            case "steps":
                self.log(here, "s", x, x, step=level(x), epoch=number)
            case "pair of keys":
                self.log(here, "z", x, x)
                self.log(here, f"x{number}", x, 2 * x)
            case "tagged":
                self.log(here, "t", x, x, ("t", "u"))
            case "explicit":
                self.log(here, "e", x, x, ("t",), explicit=True)
            case "log_grad":

                def back(g):
                    if here.around.order < 2:
                        self.log(here, "g", x, exact(g), step=level(x))
                    return g

                return x, back
            case "add":
                return wrapped(x + number), same
            case "flip":
                return wrapped(number - x), np.negative
            case "turn":
                times = times_sign(x)
                return wrapped(times(x)), times
            case "seq" | "jit" | "checkpoint":
                return self.body(node.body, x, here)
            case _:
                return getattr(self, node.kind)(node, x, here)
        return x, same

    # Loops.

    def scan(self, node, x, here, order=iter):
        loop, pulls = Loop(self, "scan", here), []
        for i in order(range(node.number)):
            x, pull = self.body(node.body, wrapped(x + i), loop.here())
            pulls.append(loop.ended(pull, carry=x))
        return x, chained(pulls)

    fori = scan

    def reverse(self, node, x, here):
        return self.scan(node, x, here, reversed)

    def map(self, node, x, here):
        loop, ys = Loop(self, "scan", here), []
        for i in range(node.number):
            y, pull = self.body(node.body, wrapped(x + i), loop.here())
            ys.append((y, loop.ended(pull)))
        return joined(ys, x, reverse=True)

    def while_loop(self, node, x, here, in_test=False):
        if here.around.sharded:
            return self.scan(node, x, here)
        loop, i, y = Loop(self, "while", here.stopped()), 0, x

        def goes_on():
            """A test belongs to the iteration that it ends, and the first one to the first."""
            if in_test:
                inside = loop.here().replace(around=here.around)
                self.log(inside, f"w{node.number}", y, y, counted=not here.around.rebuilt)
            return i < level(y) % 2 + node.number

        go_on = goes_on()
        while go_on:
            y, pull = self.body(node.body, y, loop.here())
            i += 1
            go_on = goes_on()
            loop.ended(pull, carry=y)
        times = times_sign(y)
        return wrapped(times(x) + y), times

    def test(self, node, x, here):
        return self.while_loop(node, x, here, in_test=True)

    def associative_scan(self, node, x, here):
        inside, calls = here.stopped(), itertools.count()

        def combine(a, b):
            return self.body(node.body, wrapped(a + b), inside.at(next(calls)))[0]

        def scan(xs):
            """Pairs first, then what is between them."""
            if len(xs) < 2:
                return xs
            odd = scan(combine(xs[:-1:2], xs[1::2]))
            even = combine(odd[: (len(xs) - 1) // 2], xs[2::2])
            ys = np.empty_like(xs)
            ys[0], ys[1::2], ys[2::2] = xs[0], odd, even
            return ys

        xs = np.stack([wrapped(x + x.dtype.type(i)) for i in range(node.number + 1)])
        y = scan(xs)[-1]
        times = times_sign(y)
        return wrapped(times(x) + y), times

    # Branches and calls.

    def cond(self, node, x, here):
        which = level(x) % 2
        return self.body((node.body[:1], node.body[1:])[which], x, here.at(which))

    def switch(self, node, x, here):
        which = level(x) % (len(node.body) + 1)
        return self.body(node.body[which : which + 1] or node.body, x, here.at(which))

    def twice(self, node, x, here):
        y, first = self.body(node.body, x, here.replace(calls=(*here.calls, 0)))
        z, second = self.body(node.body, y, here.replace(calls=(*here.calls, 1)))
        return z, lambda g: first(second(g))

    # Lanes, devices, shapes and types.

    def lanes(self, node, x, here, shift=1):
        around = here.around.mapped(alike=shift == 0)
        ys = [
            self.body(
                node.body, wrapped(x + i * shift), here.replace(around=around, lane=(*here.lane, i))
            )
            for i in range(around.lanes[-1])
        ]
        return joined(ys, x)

    vmap = lanes

    def vmap_some(self, node, x, here):
        return self.lanes(node, x, here, shift=0)

    def devices(self, node, x, here, shift):
        around = here.around.on_devices()
        return [
            self.body(
                node.body, wrapped(x + i * shift), here.replace(around=around, lane=(i, *here.lane))
            )
            for i in range(DEVICES)
        ]

    def shard_map(self, node, x, here):
        if here.around.sharded:
            return self.body(node.body, x, here)
        return joined(self.devices(node, x, here, shift=1), x)

    def replicated(self, node, x, here):
        if here.around.sharded:
            return self.body(node.body, x, here)
        (y, first), (_, second) = self.devices(node, x, here, shift=0)
        return y, lambda g: (first(g), second(g))[0]

    def stack(self, node, x, here):
        if x.ndim >= 2:
            return self.body(node.body, x, here)
        ys, pull = self.body(node.body, np.stack([x, wrapped(x + 1)]), here)

        def back(g):
            return exact(np.sum(pull(np.stack([g, -g])), axis=0))

        return wrapped(ys[0] - ys[1]), back

    def half(self, node, x, here):
        y, pull = self.body(node.body, x.astype(np.float16), here)
        return y.astype(x.dtype), lambda g: pull(g.astype(np.float16)).astype(x.dtype)

    # Derivatives.

    def grad(self, node, x, here):
        y, pull = self.body(node.body, x, here.differentiated())
        return wrapped(x + self.pulled(pull, y, here)), same

    def vjp(self, node, x, here):
        y, pull = self.body(node.body, x, here.differentiated())
        a = self.pulled(pull, y, here, 0)
        b = self.pulled(lambda g: pull(2 * g), y, here, 1)
        return wrapped(y + a + b), pull

    def jvp(self, node, x, here):
        y, pull = self.body(node.body, x, here.differentiated())
        return wrapped(y + self.pulled(pull, y)), pull

    linearize = jvp

    def custom_jvp(self, node, x, here):
        if here.live and here.around.rules_log:
            self.log(here, "j", x, x)
        return self.body(node.body, x, here.stopped())[0], times_sign(x)

    def custom_vjp(self, node, x, here):
        return self.body(node.body, x, here.stopped())[0], times_sign(x)

    def rules(self, node, x, here):
        back = self.logged_rules(x, here)
        return self.body(node.body, x, here.stopped())[0], back

    def logged_rules(self, x, here):
        """Log what the forward rule logs. What is returned does the same for the backward rule."""
        if here.live and here.around.rules_log:
            self.log(here, "r", x, x)

        def back(g):
            if here.live and here.around.backward_rules_log:
                self.log(here, "b", x, exact(g + x))
            return times_sign(x)(g)

        return back

    def symbolic_zeros(self, node, x, here):
        back = self.logged_rules(x, here)
        y, _ = self.body(node.body, x, here.stopped())
        # The rule calls the function, which is differentiated by the derivative around that.
        return wrapped(y + 3 * here.around.order * here.live), back

    # Other listeners.

    def listened(self, node, x, here, **by):
        listener = Listener(**inner_options(node.number))
        self.listeners.append(listener)
        y, pull = self.body(node.body, x, here.replace(around=here.around.listened(**by)))
        self.listeners.pop()
        return y, pull, listener.entries

    def spool(self, node, x, here):
        y, pull, entries = self.listened(node, x, here, rebuilt=True)
        for entry in entries:
            if here.around.logs_here(entry.key):
                for value in leaves(entry.value):
                    y = wrapped(y + y.dtype.type(np.sum(value)))
        return y, pull

    def tap(self, node, x, here):
        y, pull, entries = self.listened(node, x, here)
        prefix = f"{here.around.place}: "
        self.heard += [dataclasses.replace(e, key=prefix + e.key) for e in entries]
        return y, pull

    def counted(self, entry):
        """Whether it is clear which iteration of a loop an entry belongs to.

        Mapped loops take their steps together. If lanes differ in how often a loop ran that runs
        more than once, it is open which steps of a lane are kept if every other one is.
        """
        if not entry.loop or entry.count is None:
            return not entry.loop
        _, (name, _) = entry.loop
        by_lane = list(self.runs[name].values())
        several = len(set().union(*by_lane)) > 1
        all_lanes = len(by_lane) == math.prod(self.lanes_of[name])
        return not several or (all_lanes and all(runs == by_lane[0] for runs in by_lane))


class Loop:
    """Counts the iterations of a loop: of this run of it, and of all its runs in one lane."""

    def __init__(self, python, kind, here):
        self.python, self.kind, self.outside = python, kind, here
        self.name = (here.around.place, here.calls), here.lane
        self.count = 0
        python.lanes_of[self.name[0]] = here.around.lanes
        self.runs = python.runs[self.name[0]].setdefault(here.lane, {})
        self.runs[here.loops] = 0

    def here(self):
        """A place in the current iteration."""
        loops = (*self.outside.loops, (self.kind, self.count))
        return self.outside.replace(loops=loops, innermost=self.name)

    def ended(self, pull, carry=None):
        """End an iteration. Its backward pass is an iteration of the loop of the backward pass."""
        if carry is not None:
            loop = None, self.name
            count = self.python.counts[loop]
            entry = Logged(self.name, (), carry, {}, self.here().loops, loop, count)
            self.python.watched.append(entry)
        self.count += 1
        self.runs[self.outside.loops] = self.count
        self.python.counts[None, self.name] += 1

        def back(g):
            g = pull(g)
            if not self.python.silent:  # Forward mode has no backward pass.
                self.python.counts[self.python.loop_at(self.name)] += 1
            return g

        return back


def joined(ys, x, reverse=False):
    """Add up what lanes came to, with alternating signs."""
    weights = signs(len(ys))
    total = sum((w * y for w, (y, _) in zip(weights, ys, strict=True)), np.zeros_like(x))

    def back(g):
        pairs = [(w, pull) for w, (_, pull) in zip(weights, ys, strict=True)]
        parts = [pull(w * g) for w, pull in (pairs[::-1] if reverse else pairs)]
        return exact(sum(parts, np.zeros_like(x)))

    return wrapped(total), back


def leaves(value):
    return [value["a"][0], value["b"]] if isinstance(value, dict) else [value]
