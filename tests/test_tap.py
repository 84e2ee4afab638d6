"""Properties of `tap` that hold for every program in the table, and what its options do."""

import contextlib
import functools
import pickle
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import (
    BATCH,
    COVER,
    REST,
    assert_equal_to_the_bit,
    assert_same_lane,
    assert_same_rows,
    expected_of,
    f_of,
    lane_of,
    logged_rows,
    medley,
    medleys,
    plain,
    plain_gradient,
    programs,
    spooled,
    tapped,
    total,
)
from lanes import assert_same_entries, joined, lane_histories
from programs import PROGRAMS, XS

import spoolax
from spoolax.errors import LogTypeError, LogValueError, NothingSelectedWarning


@programs()
def test_entries_are_those_of_a_plain_python_run_and_outputs_do_not_change(name):
    """Exactly the entries that happened, once and in order, one by one and in batches.

    The output is that of the program to the bit.
    """
    f = f_of(name)
    y, seen = tapped(f, XS)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)
    assert_equal_to_the_bit(y, plain(name))
    y, seen = tapped(f, XS, batch=True)
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)
    assert_equal_to_the_bit(y, plain(name))


@programs()
def test_inside_of_jit_entries_and_outputs_are_the_same(name):
    """`jit(tap(f))` streams what `tap(f)` does."""
    seen = []
    y = jax.jit(spoolax.tap(f_of(name), seen.append))(XS)
    spoolax.flush()
    assert_equal_to_the_bit(y, plain(name))
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@programs(reverse=True)
def test_the_forward_pass_streams_once(name):
    """Under `tap(grad(f))` and `jit(grad(tap(f)))` alike, with unchanged gradients."""
    f = f_of(name)
    inside, seen = tapped(jax.grad(total(f)), XS)
    assert_equal_to_the_bit(inside, plain_gradient(name))
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)

    seen.clear()
    outside = jax.jit(jax.grad(total(spoolax.tap(f, seen.append))))(XS)
    spoolax.flush()
    assert_equal_to_the_bit(outside, plain_gradient(name))
    assert_same_entries(joined(seen), expected_of(name), PROGRAMS[name].lanes, rtol=1e-6)


@pytest.mark.usefixtures("unoptimized")
def test_batches_keep_the_order_of_a_key_that_only_some_calls_log_in_lanes():
    """No array could hold all of its entries."""

    def lane(x, y):
        spoolax.log({"x": y})
        spoolax.log({"x": x + y})
        return x

    def body(y, _):
        jax.vmap(lane, (0, None))(jnp.arange(2.0), y)
        return y + 1, None

    _, seen = tapped(lambda y: jax.lax.scan(body, y, length=3)[0], 5.0, batch=True, latency=jnp.inf)
    rows = [row for logs in seen for row in logs["x"].tolist()]
    assert rows == [5, [5, 6], 6, [6, 7], 7, [7, 8]]


@medleys(batched=True)
def test_under_vmap_each_lane_streams_its_own(names):
    """`vmap(tap(f))` hands over all lanes at once, each with the entries of f on that lane."""
    seen = []
    ys = jax.vmap(spoolax.tap(medley(names), seen.append))(BATCH)
    spoolax.flush()
    logs = joined(seen)
    for i, (y, want) in enumerate(spooled(names)):
        assert_same_lane(ys, y, i)
        assert set(logs) <= set(want)
        for key in want:
            if key not in logs:
                assert not want.valid[key].any(), key
                continue
            got = logged_rows(*lane_of(logs, key, i, want))
            assert_same_rows(got, lane_histories(want, key), key, rtol=1e-6)


WINDOWS = [{"interval": 2}, {"interval": 3, "reduce": "last"}, {"reduce": "max"}]


@pytest.mark.once
@pytest.mark.parametrize("options", WINDOWS, ids=str)
@medleys(COVER)
def test_interval_and_reduce_mean_what_they_mean_in_spool(names, options):
    """The entries of `tap`, joined by key, are what `spool` returns with the same options.

    A mixture of programs that has each pair of constructs gets all of the options, the rest of the
    table (below) gets the pair of options that needs all of the machinery.
    """
    if "max" in options.values() and any(PROGRAMS[name].keys for name in names):
        for listen in (spoolax.spool, spoolax.tap):
            with pytest.raises(LogTypeError, match="random keys"):
                listen(medley(names), **options)(XS)
        return
    outers = [lambda f: f]
    if len(options) == 2:  # Inside of `jit`, the same stream is compiled later.
        outers.append(jax.jit)
    assert_same_windows(names, options, outers)


@pytest.mark.once
@medleys(REST)
def test_windows_are_reduced_whatever_is_in_them(names):
    """For the rest of the table, an `interval` and a `reduce` at once."""
    assert_same_windows(names, WINDOWS[1])


def assert_same_windows(names, options, outers=(lambda f: f,)):
    f = medley(names)
    _, want = spoolax.spool(f, **options)(XS)
    happened = {key for key in want if np.any(want.valid[key])}
    for outer in outers:
        seen = []
        outer(spoolax.tap(f, seen.append, **options))(XS)
        spoolax.flush()
        got = joined(seen)
        assert set(got) == happened
        for key in happened:
            rows = logged_rows(*lane_histories(want, key))
            assert_same_rows(lane_histories(got, key), rows, key)


def scanned(x, length=100):
    """A scan that logs, with something before and after it."""
    spoolax.log({"start": x})

    def body(x, i):
        x = x + 1
        spoolax.log({"x": x, "square": x**2}, tags="inner", step=i)
        return x, x

    x, ys = jax.lax.scan(body, x, jnp.arange(length))
    spoolax.log({"end": x})
    return x, ys


def test_callbacks_come_in_program_order():
    """Whatever is in one loop, before it, after it, or in loops in it."""

    def f(x):
        spoolax.log({"n": x})

        def outer(x, _):
            x += 1
            spoolax.log({"n": x})

            def inner(x):
                x += 1
                spoolax.log({"n": x})
                return x

            x = jax.lax.while_loop(lambda x: x % 5 != 0, inner, x) + 1
            spoolax.log({"n": x})
            x = jax.lax.fori_loop(0, 3, lambda _, x: inner(x), x) + 1
            spoolax.log({"n": x}, tags="big")
            return x, None

        x, _ = jax.lax.scan(outer, x, length=200)
        spoolax.log({"n": x + 1})
        return x

    x, seen = tapped(f, 0)
    assert [int(logs["n"]) for logs in seen] == list(range(int(x) + 2))
    _, seen = tapped(f, 0, batch=True)
    assert joined(seen)["n"].tolist() == list(range(int(x) + 2))


def test_large_entries_come_in_program_order():
    """Those that are sent by themselves, among those that are sent in chunks."""

    def f(x):
        def body(x, i):
            spoolax.log({"n": x})
            jax.lax.cond(
                i % 3 == 0, lambda: spoolax.log({"m": x + jnp.arange(20000)}) and None, lambda: None
            )
            spoolax.log({"n": x + 2, "l": jnp.zeros(30000)})
            spoolax.log({"n": x + 3})
            return x + 4, None

        return jax.lax.scan(body, x, jnp.arange(50))[0]

    for run in (lambda f, cb: spoolax.tap(f, cb), lambda f, cb: jax.jit(spoolax.tap(f, cb))):
        numbers = []

        def see(logs, numbers=numbers):
            numbers.append(int(logs["n"]) if "n" in logs else int(logs["m"][1]))

        run(f, see)(0)
        spoolax.flush()
        want = [
            n
            for i in range(50)
            for n in (4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3)
            if n % 4 != 1 or i % 3 == 0
        ]
        assert numbers == want


def test_origins_say_where_entries_come_from():
    """Loop path, iteration of each loop, lanes, tags, device, time."""

    def f(x):
        def outer(x, _):
            def inner(x):
                spoolax.log({"x": x}, tags="deep")
                return x + 1

            x = jax.lax.while_loop(lambda x: x % 4 != 0, inner, x + 1)
            return x, None

        x, _ = jax.lax.scan(outer, x, length=3)
        spoolax.log({"end": x})
        return x

    _, seen = tapped(f, 0)
    origins = [logs.origin for logs in seen]
    assert [o.path for o in origins] == ["scan[0]/while[0]"] * 9 + [""]
    assert [o.iteration for o in origins[:-1]] == [(i, j) for i in range(3) for j in range(3)]
    assert {o.tags for o in origins} == {("deep",), ()}
    assert origins[0].site.startswith(__file__)
    assert origins[0].device == str(jax.devices()[0])
    assert all(abs(o.time - time.time()) < 60 for o in origins)

    _, seen = tapped(jax.vmap(f), jnp.array([0, 1, 2]))
    assert seen[0].origin.lanes == (3,)
    assert seen[0].valid["x"].tolist() == [True, True, True]
    assert pickle.loads(pickle.dumps(seen[0])).origin == seen[0].origin
    assert seen[0].prefix("a/").filter("a/*").origin == seen[0].origin

    _, seen = tapped(f, 0, batch=True)
    batches = [logs for logs in seen if "x" in logs]
    assert np.concatenate([b.origin.iteration for b in batches]).tolist() == [
        [i, j] for i in range(3) for j in range(3)
    ]


def test_the_test_of_a_while_loop_belongs_to_the_iteration_that_it_ends():
    """It runs once more than the body: before the first iteration, which it counts to as well."""

    def f(x):
        def test(x):
            spoolax.log({"x": x})
            return x < 3

        return jax.lax.while_loop(test, lambda x: x + 1, x)

    _, seen = tapped(f, 0)
    assert [int(logs["x"]) for logs in seen] == [0, 1, 2, 3]
    assert [logs.origin.iteration for logs in seen] == [(0,), (0,), (1,), (2,)]


def test_origins_are_kept_under_differentiation():
    """And loops are counted as they are without it."""

    def f(x):
        def body(name, inner=None):
            def step(x, _):
                spoolax.log({name: x})
                return (inner(x) if inner else jnp.sin(x)), None

            return lambda x: jax.lax.scan(step, x, length=2)[0]

        x = body("a")(x)
        return jax.checkpoint(lambda x: body("b", body("c"))(body("d")(x)))(x)

    _, seen = tapped(jax.grad(f), 1.0)
    places = {
        key: [(o.path, o.iteration) for o in (logs.origin for logs in seen if key in logs)]
        for key in "abcd"
    }
    assert places == {
        "a": [("scan[0]", (i,)) for i in range(2)],
        "d": [("scan[1]", (i,)) for i in range(2)],
        "b": [("scan[2]", (i,)) for i in range(2)],
        "c": [("scan[2]/scan[0]", (i, j)) for i in range(2) for j in range(2)],
    }


@pytest.mark.parametrize("given", [True, False], ids=["given", "set"])
def test_entries_of_shard_map_are_labelled_with_their_devices(given):
    """One lane for each device, and the names of the devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(x):
        spoolax.log({"mine": x.sum()})
        return x

    spec = jax.sharding.PartitionSpec("d")
    with contextlib.nullcontext() if given else jax.set_mesh(mesh):
        mesh = {"mesh": mesh} if given else {}
        f = jax.shard_map(shard, **mesh, in_specs=spec, out_specs=spec)
        _, (logs,) = tapped(f, jnp.arange(4.0))
    assert logs["mine"].tolist() == [1.0, 5.0]
    assert logs.origin.device == tuple(map(str, jax.devices()[:2]))
    assert logs.origin.coordinates == ({"d": 0}, {"d": 1})


@pytest.mark.parametrize("length", [0, 1, 2, 63, 64, 65, 1000, 20011])
@pytest.mark.parametrize("unroll", [1, 4])
def test_loops_of_any_length_are_cut_into_chunks(length, unroll):
    """Whether or not the chunks come out even."""

    def f(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return x + 1, x

        return jax.lax.scan(body, x, jnp.arange(length), unroll=unroll)

    y, seen = tapped(f, 0, batch=True)
    assert_equal_to_the_bit(y, jax.jit(f)(0))
    if length:
        logs = joined(seen)
        assert logs["x"].tolist() == logs.step["x"].tolist() == list(range(length))


def test_a_loop_makes_few_calls_of_the_host():
    """A hundred thousand entries arrive in some dozen chunks."""
    _, seen = tapped(functools.partial(scanned, length=100_000), 0.0, batch=True)
    assert sum(len(logs["x"]) for logs in seen if "x" in logs) == 100_000
    assert len(seen) < 60


def test_a_slow_loop_is_live():
    """Each iteration is sent by itself, if it takes longer than the latency; in every run."""

    def f(x):
        def body(x, i):
            x = jax.lax.fori_loop(0, 20, lambda _, x: jnp.tanh(x @ x), x)
            spoolax.log({"mean": x.mean()}, step=i)
            return x, None

        return jax.lax.scan(body, x, jnp.arange(8))[0]

    seen = []
    slow = spoolax.tap(f, seen.append, batch=True, latency=1e-5)
    for run in (slow, slow, jax.jit(slow), jax.jit(slow)):
        jax.block_until_ready(run(jnp.eye(200)))
        spoolax.flush()
        assert [logs.step["mean"].tolist() for logs in seen] == [[i] for i in range(8)]
        seen.clear()


def alone(f):
    return f


@pytest.mark.parametrize("body_in", [alone, jax.checkpoint, jax.jit])
@pytest.mark.parametrize("derivative_in", [alone, jax.vmap, jax.jit])
def test_the_forward_pass_of_a_derivative_is_live(body_in, derivative_in):
    """One that would take hours can be stopped."""

    @body_in
    def body(x, i):
        spoolax.log({"x": x}, step=i)
        slowly = jax.lax.fori_loop(0, 1 << 16, lambda _, x: jnp.sin(x), jax.lax.stop_gradient(x))
        return x + slowly, None

    def hours(x):
        return jax.lax.scan(body, x, jnp.arange(1 << 20))[0]

    def callback(logs):
        if np.all(logs.step["x"] == 5):
            raise spoolax.StopRun("enough")

    with pytest.raises(spoolax.StopRun, match="enough"):
        spoolax.tap(derivative_in(jax.grad(hours)), callback)(
            jnp.ones(3 if derivative_in is jax.vmap else ())
        )


DTYPES = """bool int4 uint4 int8 uint8 int16 int32 uint32 float16 bfloat16 float8_e4m3fn float32
complex64 float64 int64 complex128"""


@pytest.mark.parametrize("dtype", DTYPES.split())
@pytest.mark.usefixtures("unoptimized")
def test_values_of_every_type_arrive_to_the_bit(dtype):
    """Small and large ones, in loops and outside."""

    def f(x):
        spoolax.log({"x": x})
        jax.lax.scan(lambda c, x: (c, spoolax.log({"row": x, "all": c}) and None), x, x)
        return x

    with jax.enable_x64(True):
        for n in (5, 200):
            x = jnp.arange(n).astype(dtype)
            _, seen = tapped(f, x)
            assert all(v.dtype == x.dtype for logs in seen for v in logs.values())
            assert np.asarray(seen[0]["x"]).tobytes() == np.asarray(x).tobytes()
            for i, logs in enumerate(seen[1:]):
                assert logs["row"].tobytes() == np.asarray(x[i]).tobytes()
                assert logs["all"].tobytes() == np.asarray(x).tobytes()


def test_random_keys_arrive_as_keys():
    """They have no NumPy type."""

    def f(key):
        def body(key, _):
            key, sub = jax.random.split(key)
            spoolax.log({"key": sub, "tree": {"k": key, "n": 1}})
            return key, None

        return jax.lax.scan(body, key, length=3)[0]

    key = jax.random.key(0)
    _, seen = tapped(f, key)
    for logs in seen:
        key, sub = jax.random.split(key)
        assert jax.random.key_data(logs["key"]).tolist() == jax.random.key_data(sub).tolist()
        assert jax.random.key_data(logs["tree"]["k"]).tolist() == jax.random.key_data(key).tolist()


def test_keys_and_steps_keep_the_order_of_the_log_call():
    """JAX would sort them."""

    def f(x):
        def body(x, i):
            jax.lax.cond(
                i > 1,
                lambda: spoolax.log({"b": x, "a": x, "c": x}, z=i, y=i) and None,
                lambda: None,
            )
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    for batch in (False, True):
        _, seen = tapped(f, 0.0, batch=batch)
        assert {tuple(logs) for logs in seen} == {("b", "a", "c")}
        assert {tuple(logs.steps) for logs in seen} == {("z", "y")}


def test_filters_prefix_and_keep_logs():
    """As in `spool`; what a tap takes, an outer listener does not get, unless it is kept."""
    _, seen = tapped(scanned, 0.0, argnames="sq*", prefix="my/")
    assert [list(logs) for logs in seen] == [["my/square"]] * 100
    _, seen = tapped(scanned, 0.0, tags="inner")
    assert len(seen) == 100
    for keep, count in ((False, 2), (True, 102)):
        inner, outer = [], []

        def f(x, inner=inner, keep=keep):
            return spoolax.tap(scanned, inner.append, ["x", "square"], keep_logs=keep)(x)

        spoolax.tap(f, outer.append)(0.0)
        spoolax.flush()
        assert len(inner) == 100
        assert len(outer) == count
        _, logs = spoolax.spool(f)(0.0)
        spoolax.flush()
        assert len(inner) == 200
        assert ("x" in logs) == keep


def test_what_nobody_asked_for_is_not_computed():
    """A filter acts when the program is traced."""
    lines = jax.jit(spoolax.tap(scanned, argnames="start")).lower(0.0).as_text()
    assert "host_call" in lines or "callback" in lines
    assert not re.search("multiply.*f32", lines)


def test_the_same_function_and_options_compile_once():
    """However often it is tapped, and with whatever callbacks."""
    traces = []

    def f(x):
        traces.append(x)
        spoolax.log({"x": x})
        return x

    seen = []
    for i in range(5):
        spoolax.tap(f, lambda logs, i=i: seen.append((i, float(logs["x"]))))(float(i))
    spoolax.flush()
    assert seen == [(i, float(i)) for i in range(5)]
    assert len(traces) == 1


def test_taps_inside_of_what_is_differentiated_eagerly():
    """Where their entries come out of loops and checkpoints, outside of any trace."""
    seen = []

    def g(x):
        spoolax.log({"x": x})
        return jnp.sin(x)

    tg = spoolax.tap(g, seen.append)

    def in_scan(x):
        return jax.lax.scan(lambda c, _: (tg(c), None), x, length=2)[0]

    def in_remat_in_scan(x):
        return jax.lax.scan(jax.checkpoint(lambda c, _: (tg(c), None)), x, length=2)[0]

    for run, count in (
        (jax.grad(in_scan), 2),
        (jax.grad(jax.checkpoint(tg)), 1),
        (jax.grad(in_remat_in_scan), 2),
        (jax.jit(jax.grad(in_scan)), 2),
        (lambda x: jax.jvp(in_scan, (x,), (x,)), 2),
    ):
        seen.clear()
        run(1.0)
        spoolax.flush()
        assert len(seen) == count
    seen.clear()
    with jax.disable_jit():
        jax.vmap(tg)(jnp.arange(3.0))
    spoolax.flush()
    assert len(seen) == 1


def test_iterations_are_right_beside_large_entries():
    """Which are sent in the middle of an iteration."""

    def f(x):
        def body(c, i):
            spoolax.log({"small": c})
            spoolax.log({"large": jnp.zeros(20000) + c})
            return c + 1, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    _, seen = tapped(f, 0.0)
    assert [(next(iter(logs)), logs.origin.iteration) for logs in seen] == [
        (key, (i,)) for i in range(3) for key in ("small", "large")
    ]


def test_methods_and_equal_functions():
    """Bound methods are made anew whenever they are looked up.

    They are compiled once for each type, and so are functions that are equal, as in `jit`.
    """
    traces = []

    class Model:
        def __call__(self, x):
            traces.append(jnp.shape(x))
            spoolax.log({"x": x})
            return x

        def method(self, x):
            return self(x)

        __hash__ = lambda self: 0  # noqa: E731
        __eq__ = lambda self, other: isinstance(other, Model)  # noqa: E731

    model, *others = (Model() for _ in range(3))  # Kept, and so are their programs.
    for functions in ([model.method, model.method, model.method], [model, *others]):
        traces.clear()
        for f, x in zip(functions, (jnp.float32(1), jnp.ones(2), jnp.float32(3)), strict=True):
            (y, (streamed,)), (z, logs) = tapped(f, x), spoolax.spool(f)(x)
            for got in (y, z, streamed["x"], logs["x"]):
                np.testing.assert_array_equal(got, x)
        assert traces == [(), (), (2,), (2,)]  # Once for `tap`, and once for `spool`.


def test_traces_do_not_leak():
    """Nothing traced is kept."""
    with jax.checking_leaks():
        tapped(functools.partial(scanned, length=3), 0.0)


def test_transfers_may_be_guarded():
    """Ours are not the user's."""
    x = jnp.float32(0)
    f = spoolax.tap(functools.partial(scanned, length=3), lambda logs: None)
    with jax.transfer_guard("disallow"):
        f(x)
    spoolax.flush()


def test_wrong_options_are_refused():
    """With what they may be."""
    for outer in (lambda f: f, jax.jit):
        with pytest.warns(NothingSelectedWarning, match="lost"):
            outer(spoolax.tap(scanned, argnames="lost"))(0.0)
    with pytest.raises(LogTypeError, match="is the callback"):
        spoolax.tap(scanned, "x")
    with pytest.raises(LogValueError, match="'wait'"):
        spoolax.tap(scanned, overflow="last")
    with pytest.raises(LogValueError, match="seconds"):
        spoolax.tap(scanned, latency=-1)


def test_entries_are_printed_without_a_callback(capsys):
    """One line for each."""
    spoolax.tap(functools.partial(scanned, length=2), argnames=["x", "start"])(0.0)
    spoolax.flush()
    assert capsys.readouterr().out == "start=0\nstep=0  x=1\nstep=1  x=2\n"

    def halve(x):
        def body(x):
            spoolax.log({"x": x})
            return x / 2

        return jax.lax.while_loop(lambda x: x > 1, body, x)

    spoolax.tap(jax.vmap(halve))(jnp.array([4.0, 2.0]))
    spoolax.flush()
    assert capsys.readouterr().out == "x=[4 2]\nx=[2 -]\n"
