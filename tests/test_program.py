"""Calling a spooled function: what is compiled when, and what may be an argument."""

import dataclasses
import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spoolax
from spoolax.errors import ArgumentChangedWarning, LogTypeError, UnsupportedError


def counted(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return f(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


def double(x):
    spoolax.log({"x": x})
    return 2 * x


def test_it_traces_once_per_shape():
    """Like jit: new values are no reason to trace again, new shapes and dtypes are."""
    f = counted(double)
    spooled = spoolax.spool(f)
    for x in (1.0, 2.0, 3.0):
        spooled(x)
    assert f.calls == 1
    for n in (2, 3, 2, 3):
        y, logs = spooled(jnp.ones(n))
        assert y.shape == logs["x"].shape == (n,)
    assert f.calls == 3
    spooled(np.ones(2, np.float32))
    spooled(np.ones(2, np.float32))
    assert f.calls <= 4


def test_a_while_loop_is_traced_once_too():
    """Also when the logs have to go by way of the host."""

    @counted
    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: spoolax.log({"i": i}) and i + 1, 0)

    spooled = spoolax.spool(f)
    for n in (3, 5, 3000):
        assert len(spooled(n)[1]["i"]) == n
    assert f.calls == 1


def test_arguments_that_are_no_arrays_are_static():
    """Strings, functions, flags, modules and None; in positional, keyword and nested places."""

    @counted
    def f(x, mode, options, *, activation, flag=False, module=None):
        assert isinstance(flag, bool)
        y = activation(x) if flag else x
        y = module.cos(y) if module is not None else y
        y = y * options["scale"] if mode == "scaled" else y
        spoolax.log({"y": y})
        return y, mode

    spooled = spoolax.spool(f)
    x = jnp.ones(2)
    for scale in (2.0, 3.0):
        (y, mode), logs = spooled(x, "scaled", {"scale": scale}, activation=jnp.sin, flag=True)
        np.testing.assert_allclose(y, np.sin(1.0) * scale * np.ones(2), rtol=1e-6)
        assert mode == "scaled"
        np.testing.assert_array_equal(logs["y"], y)
    assert f.calls == 1
    spooled(x, "plain", {"scale": 2.0}, activation=jnp.sin, flag=True)
    spooled(x, "plain", {"scale": 2.0}, activation=jnp.cos, flag=True)
    (y, _), _ = spooled(x, "plain", {"scale": 2.0}, activation=jnp.cos, module=jnp)
    assert f.calls == 4
    np.testing.assert_allclose(y, np.cos(1.0) * np.ones(2), rtol=1e-6)
    with pytest.raises(LogTypeError, match="set is neither an array nor hashable"):
        spooled(x, {1}, {"scale": 2.0}, activation=jnp.sin)


def test_what_is_static_to_a_jitted_function_stays_static():
    """By position and by name."""

    @functools.partial(jax.jit, static_argnums=1, static_argnames="m")
    def f(x, n, *, m=1):
        for i in range(n * m):
            spoolax.log({"x": x + i})
        return x

    spooled = spoolax.spool(f)
    assert spooled(1.0, 3)[1]["x"].tolist() == [1, 2, 3]
    assert spooled(1.0, 2, m=2)[1]["x"].tolist() == [1, 2, 3, 4]
    assert jax.jit(spooled, static_argnums=1)(1.0, 2)[1]["x"].tolist() == [1, 2]


def test_a_number_that_must_be_static_gets_a_hint():
    """JAX's own error, with the way out."""

    def f(x, n):
        return sum(x for _ in range(n))

    with pytest.raises(jax.errors.TracerIntegerConversionError) as caught:
        spoolax.spool(f)(1.0, 3)
    assert "functools.partial" in "".join(caught.value.__notes__)
    assert spoolax.spool(functools.partial(f, n=3))(1.0)[0] == 3.0
    with pytest.raises(LogTypeError, match="listen to functions only"):
        spoolax.spool(1.0)


def test_spooling_the_same_function_again_compiles_nothing_again():
    """So `spool(f)(x)` may stand in a loop; functions are forgotten with their last use."""
    f = counted(double)
    for _ in range(3):
        spoolax.spool(f)(1.0)
        spoolax.spool(f, prefix="p/")(1.0)
    assert f.calls == 2
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


def test_no_arguments_and_no_logs():
    """The trivial cases."""
    assert spoolax.spool(lambda: None)() == (None, {})
    assert spoolax.spool(lambda: spoolax.log({"a": 1.0}) and 3)() == (3, {"a": 1.0})


def test_outputs_that_are_no_arrays_are_returned_as_they_are():
    """As from the function itself."""
    marker = object()
    (y, same, text), _ = spoolax.spool(lambda x: (x, marker, "text"))(1.0)
    assert (float(y), same, text) == (1.0, marker, "text")


def test_donated_buffers_are_donated():
    """What a jitted function gives away when called, it gives away when spooled."""
    step = jax.jit(lambda x, y: spoolax.log({"x": x[0]}) and (x + y, y), donate_argnums=0)
    for f in (step, lambda x, y: step(x, y), lambda x, y: (step(x, y), y)):
        x, y = jnp.ones(1000), jnp.ones(1000)
        spoolax.spool(f)(x, y)
        assert x.is_deleted()
        assert not y.is_deleted()
    x = jnp.ones(1000)
    spoolax.spool(lambda x: (step(x, x), x))(
        x,
    )
    assert not x.is_deleted()


def test_what_is_donated_may_depend_on_the_shape():
    """An array that the function does not give away is never deleted."""
    taken = jax.jit(lambda x: spoolax.log({"x": x.sum()}) and x + 1, donate_argnums=0)
    spooled = spoolax.spool(lambda x: taken(x) if len(x) == 4 else x * 2)
    for _ in range(2):
        four, five = jnp.ones(4), jnp.ones(5)
        spooled(four)
        spooled(five)
        assert four.is_deleted()
        assert not five.is_deleted()


def test_what_is_logged_may_depend_on_the_shape():
    """Also where entries go by way of the host."""

    def f(x, n):
        def body(i):
            spoolax.log({f"key {x.ndim}": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    spooled = spoolax.spool(f)
    for x in (jnp.zeros(2), jnp.zeros((2, 2)), jnp.zeros(2)):
        logs = spooled(x, 3000)[1]
        assert list(logs) == [f"key {x.ndim}"]
        assert len(logs[f"key {x.ndim}"]) == 3000


def test_debugging_modes_work_too():
    """`disable_jit` runs loops in Python; `debug_nans` finds none of ours."""

    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: spoolax.log({"i": i}) and i + 1, 0.0)

    with jax.disable_jit():
        assert spoolax.spool(f)(1030.0)[1]["i"].shape == (1030,)
    with jax.debug_nans(True):
        logs = spoolax.spool(f, reduce="mean")(-1.0)[1]
    assert not logs.valid["i"]


def test_a_spool_inside_of_shard_map_keeps_a_state_per_device():
    """Reductions and buffers differ between devices, as what they hold does."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def loop(x):
        def body(c, _):
            spoolax.log({"c": c.sum()})
            return c + 1, None

        return lax.scan(body, x, None, length=6)[0]

    for options, want in (
        ({"reduce": "mean"}, [6, 10]),
        ({"capacity": 2}, [9, 11, 13, 15]),
        ({"interval": 3}, [1, 7, 5, 11]),
        ({"interval": 3, "reduce": "sum"}, [9, 27, 21, 39]),
    ):

        @jax.jit
        @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        def f(x, options=options):
            return jnp.atleast_1d(spoolax.spool(loop, **options)(x)[1]["c"])

        assert f(jnp.arange(4.0)).tolist() == want


def test_errors_of_the_function_are_its_own():
    """They come out as they were raised, and a later call works."""
    broken = True

    def f(x):
        if broken:
            raise KeyError("mine")
        return double(x)

    spooled = spoolax.spool(f)
    with pytest.raises(KeyError, match="mine"):
        spooled(1.0)
    broken = False
    assert spooled(1.0)[0] == 2.0


def test_sharded_arguments_stay_sharded():
    """Outputs and logs of sharded arrays are sharded, and while loops work on them."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    xs = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
    y, logs = spoolax.spool(double)(xs)
    assert y.sharding.is_equivalent_to(xs.sharding, 1)
    assert logs["x"].sharding.is_equivalent_to(xs.sharding, 1)

    def loop(xs):
        def body(x):
            spoolax.log({"sum": x.sum(), "x": x})
            return x + 1

        return lax.while_loop(lambda x: x.sum() < 1e5, body, xs)

    y, logs = spoolax.spool(loop)(xs)
    assert len(logs["sum"]) == 12497
    np.testing.assert_array_equal(logs["x"].sum(1), logs["sum"])
    np.testing.assert_array_equal(y, logs["x"][-1] + 1)


EXPLICIT = {
    "scan": lambda log, x: lax.scan(lambda c, _: (log(c) and c * 2, None), x, None, length=3)[0],
    "while": lambda log, x: lax.while_loop(lambda c: c.sum() < 400, lambda c: log(c) and c * 2, x),
    "cond": lambda log, x: lax.cond(x.sum() > 3, lambda: log(x) and x, lambda: x * 2),
    "vmap cond": lambda log, x: jax.vmap(
        lambda v: lax.cond(v > 3, lambda: log(v) and v, lambda: v * 2)
    )(x),
    "vmap while": lambda log, x: jax.vmap(
        lambda v: lax.while_loop(lambda c: c < 20, lambda c: log(c) and c * 2, v + 1)
    )(x),
}


@pytest.mark.parametrize("options", [{}, {"capacity": 2}, {"interval": 2}, {"reduce": "sum"}])
@pytest.mark.parametrize("name", EXPLICIT)
def test_shardings_may_be_part_of_types(name, options):
    """On a mesh with explicit axes, what comes out is what comes out without a mesh."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jnp.arange(8.0)

    def f(x):
        return EXPLICIT[name](lambda value: spoolax.log({"x": value}), x)

    y, logs = spoolax.spool(f, **options)(x)
    with jax.set_mesh(mesh):
        spread, spread_logs = spoolax.spool(f, **options)(jax.device_put(x, P("d")))
    np.testing.assert_array_equal(spread, y)
    jax.tree.map(np.testing.assert_array_equal, dict(spread_logs), dict(logs))


def test_threads_do_not_mix_their_entries():
    """Two calls of one spooled function at the same time."""

    def f(start, n):
        def body(carry):
            i, x = carry
            spoolax.log({"x": x})
            return i + 1, x

        return lax.while_loop(lambda c: c[0] < n, body, (0, start))

    spooled = spoolax.spool(f)
    results = {}

    def work(start):
        for n in (5000, 10, 3000):
            logs = spooled(jnp.float32(start), n)[1]
            results[start, n] = logs["x"].shape == (n,) and bool((logs["x"] == start).all())

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9
    assert all(results.values())


def test_methods_and_wrapped_names():
    """A spooled function looks like the original, and a jitted one is as good."""
    assert spoolax.spool(double).__name__ == "double"
    y, logs = spoolax.spool(jax.jit(double))(1.0)
    assert (y, logs) == (2.0, {"x": 1.0})

    class Model:
        scale = 3.0

        def __call__(self, x):
            spoolax.log({"x": x * self.scale})
            return x

    assert spoolax.spool(Model())(1.0)[1] == {"x": 3.0}


def test_constructs_that_cannot_be_looked_into_are_refused_by_name():
    """Never dropped silently."""
    from jax.experimental import pallas as pl

    def kernel(x_ref, out_ref):
        spoolax.log({"x": x_ref[...]})
        out_ref[...] = x_ref[...]

    def f(x):
        call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((4,), jnp.float32), interpret=True)
        return call(x)

    with pytest.raises(UnsupportedError, match=r"inside `pallas_call`.*test_program.py"):
        spoolax.spool(f)(jnp.ones(4))

    @functools.partial(
        jax.shard_map, mesh=jax.make_mesh((2,), ("d",)), in_specs=P("d"), out_specs=P("d")
    )
    def g(x):
        return lax.while_loop(lambda x: x[0] < 9, lambda x: spoolax.log({"x": x}) and x + 1, x)

    with pytest.raises(UnsupportedError, match=r"\['x'\].*while_loop.*shard_map"):
        spoolax.spool(
            lambda: g(
                jax.device_put(jnp.ones(2), NamedSharding(jax.make_mesh((2,), ("d",)), P("d")))
            )
        )()


def test_logs_can_be_spooled_under_every_transformation_of_a_user():
    """jit, vmap and grad around spool, in both orders, agree with the plain call."""

    def f(x):
        def body(c, _):
            spoolax.log({"c": c})
            return jnp.sin(c), None

        return lax.scan(body, x, None, length=3)[0]

    _, plain = spoolax.spool(f)(0.5)
    for g in (
        jax.jit(spoolax.spool(f)),
        spoolax.spool(jax.jit(f)),
        jax.jit(spoolax.spool(jax.jit(f))),
    ):
        np.testing.assert_array_equal(g(0.5)[1]["c"], plain["c"])
    xs = jnp.array([0.5, 0.25])
    assert jax.vmap(spoolax.spool(f))(xs)[1]["c"].shape == (2, 3)
    assert spoolax.spool(jax.vmap(f))(xs)[1]["c"].shape == (3, 2)
    slope, logs = jax.grad(spoolax.spool(f), has_aux=True)(0.5)
    np.testing.assert_allclose(slope, jax.grad(f)(0.5), rtol=1e-6)
    np.testing.assert_allclose(logs["c"], plain["c"], rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    x: float


def assign(state):
    state["x"] = state["x"] + 1
    spoolax.log(state)


def append(value, *, rows):
    rows.append(value)
    spoolax.log({"value": value})


def take(value, queue):
    spoolax.log({"value": value + queue["inner"].pop()})
    return value


def move(point):
    point.x = point.x + 1
    spoolax.log({"x": point.x})


CHANGING = {
    "state": lambda listen: listen(assign)({"x": 1.0}),
    "rows": lambda listen: listen(append)(1.0, rows=[]),
    "queue": lambda listen: listen(take)(1.0, {"inner": [2.0, 3.0]}),
    "point": lambda listen: listen(move)(Point(1.0)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_an_argument_that_is_changed_in_a_copy_is_named(name, unoptimized):
    """The caller's own stays as it was, as under jit, but a plain function would change it."""
    call = CHANGING[name]
    for listen in (spoolax.spool, lambda f: spoolax.tap(f, lambda logs: None), spoolax.watch_nan):
        with pytest.warns(ArgumentChangedWarning, match=f"its argument `{name}` in") as caught:
            call(listen)
        assert caught[0].filename == __file__
        call(lambda f, listen=listen: listen(jax.jit(f)))  # Says that this is what is wanted.


def test_a_changed_argument_that_is_returned_is_not_lost(unoptimized):
    """Nor is one that a function copies before it changes it."""

    def returned(state, other):
        state["x"] = state["x"] + 1
        other["rows"].append(state["x"])
        spoolax.log({"x": state["x"]})
        return {"states": [state], "rows": other["rows"]}

    out, _ = spoolax.spool(returned)({"x": 1.0}, {"rows": []})
    assert out == {"states": [{"x": 2.0}], "rows": [2.0]}

    def copied(state):
        state = dict(state)
        state["x"] = state["x"] + 1
        spoolax.log(state)
        return state["x"]

    assert spoolax.spool(copied)({"x": 1.0})[0] == 2.0


def accumulate(total, n):
    def body(i):
        total[...] = total[...] + i
        spoolax.log({"i": i})
        return i + 1

    def step(x, _):
        total[...] = total[...] + x
        spoolax.log({"x": x})
        return x + 1, None

    lax.scan(step, jnp.int32(0), None, length=1000)
    return lax.while_loop(lambda i: i < n, body, 0)


@pytest.mark.parametrize("jitted", [False, True])
def test_arrays_that_are_changed_in_place_are_changed(jitted, unoptimized):
    """A `jax.Ref` is an argument like an array: one program for all of them."""
    f = counted(jax.jit(accumulate) if jitted else accumulate)
    alone = jax.new_ref(jnp.int32(0))
    jax.jit(accumulate)(alone, 5)
    listeners = (
        lambda f: spoolax.spool(f, capacity=1000),
        lambda f: spoolax.tap(f, lambda logs: None),
        lambda f: spoolax.watch(f, lambda logs: None),
    )
    for listen in listeners:
        f.calls = 0
        for g in (listen(f), listen(f), jax.jit(listen(f))):
            total = jax.new_ref(jnp.int32(0))
            g(total, 5)
            assert total[...] == alone[...]
        assert f.calls == 2
    with pytest.raises(UnsupportedError, match=r"`jax.Ref`.*Pass arrays"):
        spoolax.watch_nan(f)(jax.new_ref(jnp.int32(0)), 5)
