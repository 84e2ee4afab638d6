"""The options of `spool`: filters, interval, reduce, prefix, capacity, overflow, keep_logs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax.errors import (
    LogTypeError,
    LogValueError,
    MixedKeyError,
    NothingSelectedWarning,
    UnboundedLogError,
)

STEPS = 23
XS = jnp.sin(jnp.arange(1.0, STEPS + 1))


def loop(xs):
    """A scan that logs a scalar, a vector and an integer, and a value outside of the loop."""

    def body(carry, now):
        i, x = now
        carry = carry * 0.9 + x
        spoolax.log({"x": carry, "v": jnp.stack([carry, -carry]), "i": i}, step=i)
        return carry, None

    y = lax.scan(body, jnp.float32(0), (jnp.arange(len(xs)), xs))[0]
    spoolax.log({"end": y})
    return y


def while_loop(xs):
    def body(carry):
        i, x = carry
        spoolax.log({"x": x + xs[i]}, step=i)
        return i + 1, x + xs[i]

    return lax.while_loop(lambda carry: carry[0] < len(xs), body, (0, jnp.float32(0)))[1]


ALL = spoolax.spool(loop)(XS)[1]
REDUCE = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    "first": lambda x, axis: x[0],
    "last": lambda x, axis: x[-1],
}


@pytest.mark.parametrize("k", [1, 2, 5, 23, 24, 1000])
@pytest.mark.parametrize("f", [loop, while_loop, jax.grad(lambda xs: loop(xs))])
def test_interval_keeps_every_kth_iteration_beginning_with_the_first(f, k):
    """It equals stacking and slicing; what is logged outside of loops is kept."""
    full = spoolax.spool(f)(XS)[1]
    thin = spoolax.spool(f, interval=k)(XS)[1]
    assert list(thin) == list(full)
    for key in full:
        rows = full[key][::k] if key in full.stacked else full[key]
        np.testing.assert_array_equal(thin[key], rows)
    np.testing.assert_array_equal(thin.step["x"], full.step["x"][::k])


def test_interval_counts_iterations_over_the_whole_run_of_nested_loops():
    """Nested loops are one axis, and an iteration is kept with all that it logs."""

    def f(xs):
        def inner(c, x):
            spoolax.log({"x": c})
            spoolax.log({"x": -c})
            return c + x, None

        return lax.scan(lambda c, _: (lax.scan(inner, c, xs)[0], None), 0.0, None, length=3)[0]

    full = spoolax.spool(f)(XS)[1]["x"].reshape(-1, 2)
    thin = spoolax.spool(f, interval=5)(XS)[1]["x"]
    np.testing.assert_array_equal(thin, full[::5].reshape(-1))


def test_interval_counts_each_loop_of_a_differentiated_program():
    """Also where entries of nested loops are stacked before they are thinned out."""

    def f(x):
        def inner(c, _):
            spoolax.log({"inner": c, "unwanted": c})
            return jnp.sin(c), None

        def outer(c, _):
            spoolax.log({"unwanted": c})
            c = lax.scan(inner, c, None, length=4)[0]
            c = lax.scan(inner, c, None, length=3)[0]
            spoolax.log({"outer": c})
            return c, None

        return lax.scan(outer, x, None, length=5)[0]

    for g in (f, jax.grad(f)):
        full = spoolax.spool(g)(1.0)[1]
        thin = spoolax.spool(g, ["inner", "outer"], interval=2)(1.0)[1]
        np.testing.assert_array_equal(thin["outer"], full["outer"][::2])
        # The two inner loops are counted each by itself: 20 and 15 iterations.
        first, second = (
            full["inner"].reshape(5, 7)[:, part].ravel() for part in (slice(4), slice(4, 7))
        )
        want = sorted([*first[::2].tolist(), *second[::2].tolist()])
        assert sorted(thin["inner"].tolist()) == want


@pytest.mark.parametrize("how", REDUCE)
def test_reduce_equals_stacking_and_reducing(how):
    """A reduced key has the shape of one entry, in scans and in while loops."""
    reduced = spoolax.spool(loop, reduce=how)(XS)[1]
    for key in ALL:
        rows = ALL[key] if key in ALL.stacked else ALL[key][None]
        want = np.asarray(REDUCE[how](np.asarray(rows, np.float64), axis=0))
        assert reduced[key].shape == want.shape
        np.testing.assert_allclose(reduced[key], want, rtol=1e-6, atol=1e-7)
    in_while = jax.jit(spoolax.spool(while_loop, reduce=how))(XS)[1]["x"]
    want = REDUCE[how](np.cumsum(np.asarray(XS, np.float64)), axis=0)
    np.testing.assert_allclose(in_while, want, rtol=1e-5)
    same = ALL.reduce(how)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), dict(same), dict(reduced)
    )


def test_reduce_keeps_no_rows_of_a_loop_that_is_differentiated():
    """Neither in its outputs, nor for the backward pass."""

    def f(x):
        def body(x, _):
            spoolax.log({"large": x + jnp.arange(70.0)})
            return jnp.sin(x), None

        return lax.scan(body, x, length=900)[0]

    spooled = spoolax.spool(jax.grad(f), reduce="mean")
    rows = 0.0 + np.asarray(spoolax.spool(f)(1.0)[1]["large"])
    np.testing.assert_allclose(spooled(1.0)[1]["large"], rows.mean(0), rtol=1e-6)
    traced = str(jax.make_jaxpr(spooled)(1.0))
    assert "f32[900]" in traced  # What the backward pass needs.
    assert "900,70" not in traced


def test_reduce_with_a_function_folds_in_order():
    """Any function of two values, such as a moving average that is not associative."""

    def average(old, new):
        return 0.9 * old + 0.1 * new

    reduced = spoolax.spool(loop, "x", reduce=average)(XS)[1]["x"]
    np.testing.assert_allclose(reduced, functools.reduce(average, ALL["x"]), rtol=1e-6)


@pytest.mark.parametrize("f", [loop, jax.grad(lambda xs: loop(xs))])
def test_interval_and_reduce_reduce_each_window(f):
    """One entry per window, the last one shorter, with the step of its last entry."""
    windows = spoolax.spool(f, "x", interval=5, reduce="mean")(XS)[1]
    full = np.asarray(ALL["x"])
    want = [full[i : i + 5].mean() for i in range(0, STEPS, 5)]
    np.testing.assert_allclose(windows["x"], want, rtol=1e-5)
    assert windows.step["x"].tolist() == [4, 9, 14, 19, 22]
    traced = jax.jit(spoolax.spool(while_loop, interval=5, reduce="max", capacity=10))(XS)[1]
    cumulative = np.cumsum(np.asarray(XS))
    want = [cumulative[i : i + 5].max() for i in range(0, STEPS, 5)]
    np.testing.assert_allclose(traced["x"][traced.valid["x"]], want, rtol=1e-5)


def test_reduce_skips_lanes_that_did_not_log():
    """Under vmap, each lane reduces its own entries."""

    def f(n):
        def body(carry):
            i, total = carry
            spoolax.log({"i": i.astype(jnp.float32)})
            return i + 1, total

        return lax.while_loop(lambda c: c[0] < n, body, (0, 0.0))

    ns = jnp.array([1, 4, 0])
    for logs in (
        spoolax.spool(jax.vmap(f), reduce="mean")(ns)[1],
        jax.vmap(spoolax.spool(f, reduce="mean"))(ns)[1],
    ):
        np.testing.assert_array_equal(logs["i"], [0.0, 1.5, 0.0])
        assert logs.valid["i"].tolist() == [True, True, False]


def test_reduce_keeps_dtypes_as_jax_numpy_does():
    """Means of integers are floats, sums of small ones are wide, half precision adds up well."""

    def f():
        def body(_, i):
            ones = jnp.ones((), jnp.bfloat16)
            spoolax.log({"int8": i.astype(jnp.int8), "half": ones, "flag": i > 2, "z": 1j * i})
            return None, None

        lax.scan(body, None, jnp.arange(1000))

    with jax.numpy_dtype_promotion("standard"):
        sums = spoolax.spool(f, reduce="sum")()[1]
        means = spoolax.spool(f, reduce="mean")()[1]
        spread = spoolax.spool(f, "z", reduce="std")()[1]
    assert {key: value.dtype for key, value in sums.items()} == {
        "int8": jnp.int32,
        "half": jnp.bfloat16,
        "flag": jnp.int32,
        "z": jnp.complex64,
    }
    assert float(sums["half"]) == 1000.0
    assert int(sums["flag"]) == 997
    assert means["int8"].dtype == jnp.float32
    np.testing.assert_allclose(means["z"], 499.5j)
    np.testing.assert_allclose(spread["z"], np.std(np.arange(1000)), rtol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("f", [loop, while_loop])
def test_capacity_and_overflow(f, traced):
    """Only so many entries are kept; how many were dropped is known."""
    full = spoolax.spool(f, "x")(XS)[1]

    def kept(**options):
        g = spoolax.spool(f, "x", **options)
        logs = (jax.jit(g) if traced else g)(XS)[1]
        rows = np.asarray(logs.valid["x"])
        return logs.step["x"][rows].tolist(), logs["x"][rows], int(logs.dropped["x"])

    steps, values, dropped = kept(capacity=6)
    assert (steps, dropped) == ([17, 18, 19, 20, 21, 22], 17)
    np.testing.assert_array_equal(values, full["x"][17:])
    steps, _, dropped = kept(capacity=6, overflow="first")
    assert (steps, dropped) == ([0, 1, 2, 3, 4, 5], 17)
    steps, _, dropped = kept(capacity=6, overflow="thin")
    assert (steps, dropped) == ([0, 4, 8, 12, 16, 20], 17)
    steps, _, dropped = kept(capacity=100, overflow="thin")
    assert (steps, dropped) == (list(range(STEPS)), 0)


def count(n):
    return lax.while_loop(lambda i: i < n, lambda i: spoolax.log({"i": i}) and i + 1, 0)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 64, 100])
def test_thinning_keeps_an_even_spread_from_the_first_entry(capacity, length):
    """What is kept has one stride, which is a power of two, and begins with entry 0."""
    logs = spoolax.spool(count, capacity=capacity, overflow="thin")(length)[1]
    kept = logs["i"].tolist()
    assert len(kept) <= capacity
    if length:
        stride = kept[1] - kept[0] if len(kept) > 1 else 1
        assert stride.bit_count() == 1
        assert kept == list(range(0, stride * len(kept), stride)) or capacity == 1
        assert len(kept) >= min(length, capacity // 2)


def test_a_long_while_loop_is_collected_without_limit():
    """Outside of any trace, entries come to the host as the loop runs, again at every call."""

    def f(n):
        def body(i):
            spoolax.log({"i": i, "v": jnp.full((3,), i)}, step=2 * i)
            return i + 1

        y = lax.while_loop(lambda i: i < n, body, 0)
        spoolax.log({"i": -y}, step=0)
        return y

    spooled = spoolax.spool(f)
    for n in (5000, 3, 1024, 1023, 1025):
        _, logs = spooled(n)
        np.testing.assert_array_equal(logs["i"], [*range(n), -n])
        np.testing.assert_array_equal(logs["v"], np.arange(n)[:, None] * np.ones(3))
        np.testing.assert_array_equal(logs.step["v"], 2 * np.arange(n))
        assert list(logs) == ["i", "v"]


def test_a_long_while_loop_under_vmap_is_collected_by_lane():
    """The rows of lanes that have ended are marked."""
    _, logs = spoolax.spool(jax.vmap(count))(jnp.array([3000, 10, 2000]))
    assert logs["i"].shape == logs.valid["i"].shape == (3000, 3)
    assert logs.valid["i"].sum(0).tolist() == [3000, 10, 2000]


def test_a_while_loop_in_a_trace_needs_a_capacity():
    """The error names the key and the ways out."""
    for wrap in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(UnboundedLogError, match=r"'x'.*capacity=.*reduce="):
            wrap(lambda x: spoolax.spool(while_loop)(XS * x)[0])(
                jnp.ones(()) if wrap is not jax.vmap else jnp.ones(2)
            )


def test_filters_select_by_name_and_by_tag():
    """Names may be patterns; both filters must hold; explicit entries must be asked for."""

    def f(x):
        spoolax.log({"loss": x, "aux": x}, tags="train")
        spoolax.log({"loss/eval": x}, tags=("eval", "slow"))
        spoolax.log({"secret": x}, tags="debug", explicit=True)
        spoolax.log({"lr": x}, prefix="opt/")

    def keys(**options):
        return list(spoolax.spool(f, **options)(1.0)[1])

    assert keys() == ["loss", "aux", "loss/eval", "opt/lr"]
    assert keys(argnames="loss") == ["loss"]
    assert keys(argnames="loss*") == ["loss", "loss/eval"]
    assert keys(argnames=["opt/*", "aux"]) == ["aux", "opt/lr"]
    assert keys(tags="train") == ["loss", "aux"]
    assert keys(tags=("slow", "debug")) == ["loss/eval", "secret"]
    assert keys(argnames="loss*", tags="eval") == ["loss/eval"]
    assert keys(argnames="secret") == ["secret"]
    with pytest.warns(NothingSelectedWarning, match=r"argnames=\('lost',\).*'aux', 'loss'"):
        assert keys(argnames="lost") == []
    assert keys(argnames=()) == []
    assert keys(prefix="run/", argnames="aux") == ["run/aux"]


def test_what_is_not_asked_for_is_not_computed():
    """A key that a filter leaves out costs nothing: the compiled program does not have it."""

    def f(x):
        def body(c, _):
            spoolax.log({"cheap": c, "costly": jnp.linalg.inv(jnp.outer(x, x) + c)})
            return c + 1, None

        return lax.scan(body, 0.0, None, length=3)[0]

    text = jax.jit(spoolax.spool(f, "cheap")).lower(jnp.ones(3)).compile().as_text()
    assert "getrf" not in text
    text = jax.jit(spoolax.spool(f)).lower(jnp.ones(3)).compile().as_text()
    assert "getrf" in text


def test_an_inner_spool_consumes_what_it_selects():
    """The rest passes on to the outer one, and with `keep_logs` everything does."""

    def f(x):
        spoolax.log({"a": x, "b": 2 * x})
        return lax.while_loop(lambda x: x < 9, lambda x: spoolax.log({"w": x}) and 2 * x, x)

    def outer(keep):
        def g(x):
            y, logs = spoolax.spool(f, ["a", "w"], keep_logs=keep, capacity=9)(x)
            spoolax.log({"y": y})
            return logs

        return spoolax.spool(g)(1.0)

    inner, logs = outer(keep=False)
    assert list(inner) == ["a", "w"]
    assert list(logs) == ["b", "y"]
    inner, logs = outer(keep=True)
    assert list(logs) == ["a", "b", "w", "y"]
    assert logs["w"].tolist() == [1.0, 2.0, 4.0, 8.0]


def test_options_that_mean_nothing_are_refused():
    """When the function is made, not when it runs."""
    for options in (
        {"interval": 0},
        {"interval": 1.5},
        {"capacity": -1},
        {"overflow": "newest"},
        {"reduce": "median"},
    ):
        with pytest.raises(LogValueError, match=next(iter(options))):
            spoolax.spool(loop, **options)
    with pytest.raises(LogTypeError, match="argnames"):
        spoolax.spool(loop, argnames=[1])
    with pytest.raises(LogTypeError, match=r"`argnames` takes a string.*spool\(f\)\(x\)"):
        spoolax.spool(loop, XS[0])
    with pytest.raises(LogTypeError, match=r"`reduce=mean` cannot fold.*'x'.*Usual reductions"):
        spoolax.spool(loop, "x", reduce=jnp.mean)(XS)


def test_lanes_of_different_sizes_are_padded():
    """As of `lax.map`, whose last batch is smaller."""

    def f(xs):
        return lax.map(lambda x: spoolax.log({"x": x}) and x, xs, batch_size=2)

    logs = spoolax.spool(f)(jnp.arange(5.0))[1]
    assert logs["x"][np.asarray(logs.valid["x"])].tolist() == [0, 1, 2, 3, 4]
    assert spoolax.spool(f, reduce="sum")(jnp.arange(5.0))[1]["x"].tolist() == [6, 4]


def test_one_key_with_two_types_is_refused_with_both_places():
    """Two shapes, dtypes, structures or sets of steps."""

    def mixed(first, second, **steps):
        def f(x):
            spoolax.log({"k": first}, **steps)
            lax.cond(x > 0, lambda: spoolax.log({"k": second}) and None, lambda: None)

        return f

    for first, second, match in (
        (1.0, 1, r"float32\[\] at .*test_options.py:\d+, and int32\[\] at .*test_options.py:\d+"),
        (jnp.ones(2), jnp.ones(3), r"float32\[2\].*float32\[3\]"),
        ([1.0], {"a": 1.0}, "'k'"),
    ):
        with pytest.raises(MixedKeyError, match=match):
            spoolax.spool(mixed(first, second))(1.0)
    with pytest.raises(MixedKeyError, match=r"steps .*epoch"):
        spoolax.spool(mixed(1.0, 1.0, epoch=3))(1.0)


def test_random_keys_can_be_kept_but_not_averaged():
    """`first` and `last` work; a mean is refused in words."""

    def f(key):
        def body(key, _):
            key, sub = jax.random.split(key)
            spoolax.log({"sub": sub})
            return key, None

        return lax.scan(body, key, None, length=4)[0]

    key = jax.random.key(3)
    full = spoolax.spool(f)(key)[1]["sub"]
    last = spoolax.spool(f, reduce="last")(key)[1]["sub"]
    assert (jax.random.key_data(last) == jax.random.key_data(full[-1])).all()
    thin = spoolax.spool(f, interval=2)(key)[1]["sub"]
    assert (jax.random.key_data(thin) == jax.random.key_data(full[::2])).all()
    with pytest.raises(LogTypeError, match=r"'sub'.*random keys.*'mean'"):
        spoolax.spool(f, reduce="mean")(key)


def test_lanes_that_did_not_log_are_no_part_of_a_window():
    """The last batch of `lax.map` is smaller, and here each batch is a window of its own."""

    def f(xs):
        def g(x):
            spoolax.log({"x": x})
            return x

        return lax.map(g, xs, batch_size=4)

    xs, seen = jnp.arange(1.0, 11.0), []
    _, logs = spoolax.spool(f, interval=2, reduce="mean")(xs)
    assert logs.valid["x"].tolist() == [[True] * 4, [True, True, False, False]]
    assert logs["x"][logs.valid["x"]].tolist() == [3, 4, 5, 6, 9, 10]
    spoolax.tap(f, seen.append, interval=2, reduce="mean")(xs)
    spoolax.flush()
    assert [entry["x"][entry.valid["x"]].tolist() for entry in seen] == [[3, 4, 5, 6], [9, 10]]


def test_what_cannot_be_reduced_is_said_before_a_capacity_is_asked_for():
    def f(key):
        def body(key):
            spoolax.log({"key": key})
            return jax.random.fold_in(key, 1)

        return lax.while_loop(lambda key: jax.random.uniform(key) < 0.9, body, key)

    with pytest.raises(LogTypeError, match="random keys, which have no 'mean'"):
        jax.jit(spoolax.spool(f, interval=2, reduce="mean"))(jax.random.key(0))
