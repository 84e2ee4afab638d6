"""Derivative rules: they see what they would see without us, and repeat nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

import spoolax
from spoolax.errors import NothingSelectedWarning

pytestmark = pytest.mark.usefixtures("unoptimized")


def number(x):
    return jnp.zeros(x.shape) if type(x) is SymbolicZero else x


def with_vjp(seen):
    """A function of two numbers and a whole one, whose rules tell what they see."""

    @jax.custom_vjp
    def f(x, y, n):
        spoolax.log({"x": x})
        return x * y, 2.0 * y, x + n

    def forward(*args):
        seen.append([arg.perturbed for arg in args])
        x, y, n = custom_vjp_primal_tree_values(args)
        return (x * y, 2.0 * y, x + n), (x, y)

    def backward(residuals, cotangents):
        seen.append([type(ct) is SymbolicZero for ct in cotangents])
        (x, y), (a, b, c) = residuals, map(number, cotangents)
        return a * y + c, None if type(cotangents[1]) is SymbolicZero else a * x + 2.0 * b, None

    f.defvjp(forward, backward, symbolic_zeros=True)
    return f


def with_jvp(seen):
    @jax.custom_jvp
    def f(x, y, n):
        spoolax.log({"x": x})
        return x * y, 2.0 * y, x + n

    def rule(primals, tangents):
        seen.append([type(t) is SymbolicZero for t in tangents])
        (x, y, n), (dx, dy, _) = primals, tangents
        return (x * y, 2.0 * y, x + n), (number(dx) * y + number(dy) * x, dy, dx)

    f.defjvp(rule, symbolic_zeros=True)
    return f


def once(f, x, y, n):
    return f(x, y, n)[0]


def chained(f, x, y, n):
    _, b, c = f(x, y, n)
    _, d, _ = f(b, b, 1)
    return f(d, c, n)[0]


def in_loops(f, x, y, n):
    def body(carry, _):
        a, b, _ = f(*carry, n)
        return (a, b), None

    (a, _), _ = jax.lax.scan(jax.checkpoint(body), (x, y), length=2)
    return jax.lax.cond(a > 0, lambda a: f(a, y, n)[2], lambda a: a, a)


def in_jit(f, x, y, n):
    return jax.jit(functools.partial(chained, f))(x, y, n)


def spooled(f):
    spool = spoolax.spool(f, capacity=4)
    return lambda *args: spool(*args)[0]


LISTENERS = {
    "spool": spooled,
    "tap": lambda f: spoolax.tap(f, lambda logs: None),
    "watch": lambda f: spoolax.watch(f, lambda logs: None, primitives="mul"),
    "watch_nan": lambda f: spoolax.watch_nan(f, print),
}


@pytest.mark.parametrize("program", [once, chained, in_loops, in_jit])
@pytest.mark.parametrize("rules", [with_vjp, with_jvp])
def test_rules_see_which_derivatives_are_zero(rules, program):
    """Of what is given to a function, and of what came out of it, as without us."""
    seen = []
    f = functools.partial(program, rules(seen))
    want = jax.grad(f)(2.0, 3.0, 4)
    plain, seen[:] = list(seen), []
    assert [True, False, False] in plain or [False, True, True] in plain
    for name, listen in LISTENERS.items():
        assert jax.grad(listen(f))(2.0, 3.0, 4) == want, name
        assert seen == plain, name
        seen.clear()


def collected(f, *args):
    return spoolax.spool(f)(*args)[1]


def streamed(f, *args):
    seen = []
    spoolax.tap(f, seen.append)(*args)
    spoolax.flush()
    for logs in seen:
        assert all(np.all(marks == logs.origin.backward) for marks in logs.backward.values())
    keys = dict.fromkeys(key for logs in seen for key in logs)
    return sum((logs for logs in seen), spoolax.LogDict()).filter(*keys)


def marked(logs):
    """By key, the entries and whether they are of a backward pass."""
    return {
        key: (np.ravel(logs[key]).tolist(), np.ravel(logs.backward[key]).tolist()) for key in logs
    }


def rematerializing(x):
    """A function whose backward rule runs it again, and logs something of its own."""

    def run(x):
        def body(c, _):
            spoolax.log({"c": c})
            return 2.0 * c, None

        return jax.lax.scan(body, x, length=3)[0]

    @jax.custom_vjp
    def f(x):
        return run(x)

    def backward(x, g):
        spoolax.log({"g": g})
        return jax.vjp(run, x)[1](g)

    f.defvjp(lambda x: (run(x), x), backward)
    return f(x)


def in_a_while_loop(x):
    """The same with a loop whose length is not known."""

    def body(c):
        spoolax.log({"c": c})
        return 2.0 * c

    def run(x):
        return jax.lax.while_loop(lambda c: c < 8.0, body, x)

    @jax.custom_vjp
    def f(x):
        return run(x)

    def backward(x, g):
        spoolax.log({"g": g})
        return (g * run(x) / x,)

    f.defvjp(lambda x: (run(x), x), backward)
    return f(x)


def with_a_jitted_helper(x):
    @jax.jit
    def helper(x):
        spoolax.log({"c": x})
        return 2.0 * x

    @jax.custom_vjp
    def f(x):
        return helper(helper(helper(x)))

    def backward(x, g):
        spoolax.log({"g": g})
        return (g * f(x) / x,)

    f.defvjp(lambda x: (f(x), x), backward)
    return f(x)


@pytest.mark.parametrize("listen", [collected, streamed])
@pytest.mark.parametrize("f", [rematerializing, in_a_while_loop, with_a_jitted_helper])
def test_what_a_backward_rule_runs_again_is_silent(f, listen):
    """And what only it logs is there, and marked."""
    want = {"c": ([1.0, 2.0, 4.0], [False] * 3), "g": ([1.0], [True])}
    assert marked(listen(jax.grad(f), 1.0)) == want
    assert marked(listen(jax.jit(jax.grad(lambda x: f(f(x) / 8.0))), 1.0)) == {
        "c": ([1.0, 2.0, 4.0] * 2, [False] * 6),
        "g": ([1.0, 1.0], [True] * 2),
    }
    lanes = listen(jax.vmap(jax.grad(f)), jnp.array([1.0, 2.0]))
    assert not np.any(lanes.backward["c"])
    assert len(lanes["c"]) == 3
    assert np.shape(lanes.backward["g"]) == np.shape(lanes["g"])
    assert np.all(lanes.backward["g"])


@pytest.mark.parametrize("listen", [collected, streamed])
def test_it_is_silent_in_what_surrounds_it(listen):
    """Loops, checkpoints, branches, and a listener that has taken the forward pass."""

    def training(x):
        def step(x, _):
            return x - 0.25 * jax.grad(rematerializing)(x), None

        return jax.lax.scan(step, x, length=2)[0]

    assert marked(listen(training, 1.0)) == {
        "c": ([1.0, 2.0, 4.0, -1.0, -2.0, -4.0], [False] * 6),
        "g": ([1.0, 1.0], [True, True]),
    }
    for around in (
        jax.checkpoint(rematerializing),
        lambda x: jax.lax.cond(x > 0, rematerializing, lambda x: x, x),
        lambda x: jax.lax.scan(lambda c, _: (rematerializing(c), None), x, length=1)[0],
    ):
        logs = marked(listen(jax.grad(around), 1.0))
        assert logs == {"c": ([1.0, 2.0, 4.0], [False] * 3), "g": ([1.0], [True])}
    logs = marked(listen(jax.grad(spooled(rematerializing)), 1.0))
    assert logs == {"g": ([1.0], [True])}


@pytest.mark.parametrize("listen", [collected, streamed])
def test_a_tap_inside_of_a_derivative_hears_both_passes(listen):
    """As it does around it: what it has heard stays where it is, whoever differentiates it."""
    seen = []
    inner = spoolax.tap(rematerializing, seen.append)
    with pytest.warns(NothingSelectedWarning, match="a `tap` inside takes"):
        assert marked(listen(jax.grad(inner), 1.0)) == {}
    spoolax.flush()
    heard = [(key, float(logs[key]), logs.origin.backward) for logs in seen for key in logs]
    assert heard == [("c", 1.0, False), ("c", 2.0, False), ("c", 4.0, False), ("g", 1.0, True)]
    kept = spoolax.tap(rematerializing, seen.append, keep_logs=True)
    logs = marked(listen(jax.grad(kept), 1.0))
    assert logs == {"c": ([1.0, 2.0, 4.0], [False] * 3), "g": ([1.0], [True])}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 2, 3])
def test_taps_inside_of_derivatives_hear_functions_with_rules_once(taps, order):
    """Whose rules call them again, as most do."""

    @jax.custom_jvp
    def f(x):
        spoolax.log({"x": x})
        return x**4

    f.defjvp(lambda x, t: (f(*x), 4 * t[0] * x[0] ** 3))

    @jax.custom_vjp
    def g(x):
        spoolax.log({"x": x})
        return x**4

    g.defvjp(lambda x: (g(x), x), lambda x, c: (4 * c * x**3,))
    for function in (f, g):
        want, seen = function, []
        for _ in range(taps):
            function = spoolax.tap(function, seen.append, keep_logs=True)
        for _ in range(order):
            want, function = jax.grad(want), jax.grad(function)
        got, logs = spoolax.spool(function)(3.0)
        spoolax.flush()
        assert got == want(3.0)
        assert np.shape(logs["x"]) == ()
        assert len(seen) == taps


@pytest.mark.parametrize("listen", [collected, streamed])
def test_derivatives_of_derivatives_repeat_nothing(listen):
    """Whichever modes they combine."""

    @jax.custom_vjp
    def cube(x):
        spoolax.log({"x": x})
        return x**3

    def backward(x, g):
        spoolax.log({"g": g})
        cube(x)
        return (g * 3.0 * square(x),)

    cube.defvjp(lambda x: (cube(x), x), backward)

    @jax.custom_vjp
    def square(x):
        spoolax.log({"square": x})
        return x**2

    def square_backward(x, g):
        square(x)
        return (g * 2.0 * x,)

    square.defvjp(lambda x: (square(x), x), square_backward)

    want = {"x": ([2.0], [False]), "g": ([1.0], [True]), "square": ([2.0], [True])}
    assert marked(listen(jax.grad(cube), 2.0)) == want
    assert marked(listen(jax.grad(jax.grad(cube)), 2.0)) == want


@pytest.mark.parametrize("listen", [collected, streamed])
def test_a_rule_inside_a_rule_is_no_repetition(listen):
    """What a backward rule logs counts wherever that runs: also in another backward rule."""

    @jax.custom_vjp
    def same(x):
        return x

    def backward(_, g):
        spoolax.log({"g": g})
        return (g,)

    same.defvjp(lambda x: (x, None), backward)

    @jax.custom_vjp
    def doubled(x):
        return 2.0 * same(x)

    def runs_again(x, g):
        return jax.vjp(lambda x: 2.0 * same(x), x)[1](g)

    doubled.defvjp(lambda x: (2.0 * x, x), runs_again)

    def f(x):
        return same(doubled(x))

    assert marked(listen(jax.grad(f), 1.0)) == {"g": ([1.0, 2.0], [True] * 2)}
    slope_of_slope = functools.partial(jax.jvp, jax.grad(f), tangents=(1.0,))
    assert marked(listen(slope_of_slope, (1.0,))) == {"g": ([1.0, 2.0], [True] * 2)}


@pytest.mark.parametrize("listen", [collected, streamed])
def test_one_key_may_be_of_both_passes(listen):
    """Each of its entries says which it is from."""

    @jax.custom_vjp
    def f(x):
        spoolax.log({"v": x}, step=1)
        return x**2

    def backward(x, g):
        spoolax.log({"v": g}, step=2)
        return (2.0 * x * g,)

    f.defvjp(lambda x: (f(x), x), backward)

    def both(x):
        return jax.lax.fori_loop(0, 2, lambda i, x: jax.grad(f)(x), x)

    def unknown(x):
        return jax.lax.while_loop(lambda x: x < 4.0, jax.grad(f), x)

    for program in (both, unknown):
        logs = listen(program, 1.0)
        assert marked(logs) == {"v": ([1.0, 1.0, 2.0, 1.0], [False, True] * 2)}
        assert np.asarray(logs.step["v"]).tolist() == [1, 2] * 2
        assert list(logs.steps) == ["step"]


def test_marks_are_kept_by_what_logs_can_do(tmp_path):
    """Slicing, joining, folding, and saving."""
    _, logs = spoolax.spool(jax.grad(rematerializing))(1.0)
    assert "1 backward" in repr(logs)
    _, forward = spoolax.spool(rematerializing)(1.0)
    assert not any(map(np.any, forward.backward.values()))
    assert "backward" not in repr(forward)
    assert np.ravel((logs + logs).backward["g"]).tolist() == [True, True]
    mixed = spoolax.LogDict({"g": jnp.ones(2)}, stacked=["g"]) + logs.filter("g")
    assert mixed.backward["g"].tolist() == [False, False, True]
    assert mixed.slice[1:].backward["g"].tolist() == [False, True]
    assert bool(mixed.reduce("last").backward["g"])
    spoolax.save(tmp_path / "logs.h5", logs)
    assert marked(spoolax.load(tmp_path / "logs.h5")) == marked(logs)
    with spoolax.storage.SaveLogger(tmp_path / "streamed.h5") as logger:
        logger.tap(jax.grad(rematerializing))(1.0)
    assert marked(spoolax.load(tmp_path / "streamed.h5")) == marked(logs)


@pytest.mark.parametrize("reduce", [None, "last"])
def test_what_is_thinned_or_folded_is_marked(reduce):
    """If all of it was logged in a backward pass."""

    def training(x):
        def step(x, _):
            return x - 0.25 * jax.grad(rematerializing)(x), None

        return jax.lax.scan(step, x, length=4)[0]

    _, logs = spoolax.spool(training, interval=2, reduce=reduce)(1.0)
    assert np.all(logs.backward["g"])
    assert not np.any(logs.backward["c"])
    seen = []
    spoolax.tap(training, seen.append, interval=2, reduce=reduce, batch=True)(1.0)
    spoolax.flush()
    assert {key: logs.origin.backward for logs in seen for key in logs} == {"c": False, "g": True}


def stepping(x):
    """A checkpointed loop of unknown length, in a function that can be differentiated."""

    def body(c):
        spoolax.log({"c": c})
        return 2.0 * c

    @jax.checkpoint
    def f(x):
        return x**2 * jax.lax.while_loop(lambda c: c < 8.0, body, jax.lax.stop_gradient(x))

    return f(x)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
@pytest.mark.parametrize("grad", [jax.grad, lambda f: jax.grad(jax.grad(f))])
def test_a_tap_in_a_checkpointed_function_streams_once(around, grad):
    """The backward pass runs it again, perhaps as a program of its own."""
    seen = []
    tapped = jax.checkpoint(spoolax.tap(stepping, lambda logs: seen.append(float(logs["c"]))))
    assert around(grad(tapped))(1.0) == grad(stepping)(1.0)
    spoolax.flush()
    assert seen == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("listen", [collected, streamed])
def test_checkpoints_have_second_derivatives(listen):
    """With loops of unknown length, and with backward rules that log."""

    @jax.custom_vjp
    def cube(x):
        return x**3

    def backward(x, g):
        spoolax.log({"g": jax.lax.while_loop(lambda c: c < 4.0, logged_double, g)})
        return (3.0 * x**2 * g,)

    def logged_double(c):
        spoolax.log({"c": c})
        return 2.0 * c

    cube.defvjp(lambda x: (cube(x), x), backward)
    second = jax.grad(jax.grad(stepping))
    assert marked(listen(second, 1.0)) == {"c": ([1.0, 2.0, 4.0], [False] * 3)}
    assert spoolax.spool(second)(1.0)[0] == second(1.0)
    second = jax.grad(jax.grad(jax.checkpoint(cube)))
    assert marked(listen(second, 1.0)) == {"c": ([1.0, 2.0], [True] * 2), "g": ([4.0], [True])}
    assert spoolax.spool(second)(2.0)[0] == second(2.0)


def with_logging_vjp():
    @jax.custom_vjp
    def sine(x):
        spoolax.log({"x": x})
        return jnp.sin(x)

    def forward(x):
        spoolax.log({"forward": x})
        return jnp.sin(x), x

    def backward(x, g):
        spoolax.log({"backward": g})
        return (jnp.cos(x) * g,)

    sine.defvjp(forward, backward)
    return sine, {"forward": [1.0, 2.0], "backward": [1.0, 1.0]}


def with_logging_jvp():
    @jax.custom_jvp
    def sine(x):
        spoolax.log({"x": x})
        return jnp.sin(x)

    def rule(primals, tangents):
        spoolax.log({"rule": primals[0]})
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * number(tangents[0])

    sine.defjvp(rule, symbolic_zeros=True)
    return sine, {"rule": [1.0, 2.0]}


@pytest.mark.parametrize("listen", [collected, streamed])
@pytest.mark.parametrize("rules", [with_logging_vjp, with_logging_jvp])
def test_rules_in_a_branch_log_in_the_lanes_that_take_it(rules, listen):
    """It makes no difference whether lanes or derivatives come first."""
    sine, want = rules()
    xs = jnp.array([1.0, -1.0, 2.0])

    def f(x):
        return jax.lax.cond(x > 0, sine, lambda x: 2.0 * x, x)

    for program in (
        jax.vmap(jax.grad(f)),
        jax.grad(lambda xs: jnp.sum(jax.vmap(f)(xs))),
        jax.grad(lambda xs: jnp.sum(jax.checkpoint(jax.vmap(f))(xs))),
    ):
        logs = listen(program, xs)
        happened = {key: logs[key][np.asarray(logs.valid[key])].tolist() for key in logs}
        assert happened == want
        assert {key: bool(np.any(logs.backward[key])) for key in logs} == {
            key: key == "backward" for key in want
        }
        np.testing.assert_array_equal(spoolax.spool(program)(xs)[0], program(xs))


@pytest.mark.parametrize("rule", ["jvp", "vjp"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_rule_that_calls_its_function_logs_once_in_every_derivative(rule, depth):
    """In loops, however deep, and derivatives of derivatives."""

    def f(x):
        spoolax.log({"x": x})
        return jnp.sin(x)

    if rule == "jvp":
        f = jax.custom_jvp(f)
        f.defjvp(lambda primals, tangents: (f(*primals), jnp.cos(*primals) * tangents[0]))
    else:
        f = jax.custom_vjp(f)
        f.defvjp(lambda x: (f(x), x), lambda x, g: (jnp.cos(x) * g,))
    g = f
    for _ in range(depth):
        g = functools.partial(lax.scan, lambda x, _, g=g: (g(x), None), length=2)
        g = functools.partial(lambda g, x: g(x, None)[0], g)
    for _ in range(3):
        g = jax.grad(g)
        assert spoolax.spool(g)(0.7)[1]["x"].size == 2**depth
