"""The NaN alarm finds the first bad iteration, wherever in a chunk of the loop it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import spoolax
from spoolax._tap._meaning import looping, reeling

LENGTH = 11
pytestmark = pytest.mark.usefixtures("unoptimized")


CHUNKS, BLOCKS = ["chunks of 1", "chunks of 4"], ["blocks of 3", "blocks of 11"]


@pytest.fixture(params=[*CHUNKS, *BLOCKS])
def pauses(request, monkeypatch):
    """How loops pause: after so many iterations, or so many that are a loop of known length."""
    kind, _, size = request.param.partition(" of ")
    monkeypatch.setattr(looping, "most_at_once", lambda program: int(size))
    monkeypatch.setattr(reeling, "waits_for_loops", lambda: kind == "blocks")


@pytest.fixture
def chunks_of_4(monkeypatch):
    monkeypatch.setattr(looping, "most_at_once", lambda program: 4)


def nan_if(flag):
    return jnp.log(jnp.where(flag, -1.0, 1.0))


def infinity_if(flag):
    return 1.0 / jnp.where(flag, 0.0, 1.0) - 1.0


def stays(x, bad, _):
    return x * 1.25 + bad, x


def goes_away(x, bad, _):
    return jnp.where(jnp.isfinite(x), x, 0.0) * 1.25 + bad, 0.0


def comes_out(x, bad, _):
    return x * 1.25, x + bad


def moves_on(x, bad, i):
    """A bad number of its own comes back in another place when one has gone."""
    x = jnp.where(jnp.isfinite(x), x, 1.0) * 1.25
    return x.at[i % x.size].add(bad) if x.ndim else x + bad, 0.0


EVENTS = [stays, goes_away, comes_out, moves_on]


def scan(event, make, reverse=False, unroll=1):
    def f(k, x):
        def body(x, i):
            return event(x, make(i == k), i)

        iterations = jnp.arange(LENGTH)
        if reverse:
            iterations = iterations[::-1]
        return lax.scan(body, x, iterations, reverse=reverse, unroll=unroll)

    return f


def while_loop(event, make):
    def f(k, x):
        def body(carry):
            i, x, ys = carry
            x, y = event(x, make(i == k), i)
            return i + 1, x, ys.at[i].set(jnp.broadcast_to(y, x.shape))

        ys = jnp.zeros((LENGTH, *x.shape))
        return lax.while_loop(lambda carry: carry[0] < LENGTH, body, (0, x, ys))[1:]

    return f


FEW, MANY = jnp.float32(0.5), jnp.linspace(0.5, 1.0, 100)


def reports_of(f, **options):
    """A function that says what the alarm makes of another one, whose results must not change."""
    found = []
    watched, plain = spoolax.watch_nan(f, found.append, **options), jax.jit(f)

    def call(*args):
        found.clear()
        out, want = watched(*args), plain(*args)
        spoolax.flush()
        for got, wanted in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(got, wanted)
        return [(nan.primitive, nan.origin.path, nan.origin.iteration) for nan in found]

    return call


@pytest.mark.parametrize(("x", "make"), [(FEW, nan_if), (MANY, infinity_if)], ids=["one", "many"])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("loop", "pauses"),
    [*((scan, how) for how in CHUNKS + BLOCKS), *((while_loop, how) for how in CHUNKS)],
    indirect=["pauses"],
)
def test_the_first_bad_iteration_is_found_wherever_it_is(loop, event, x, make, pauses):
    """The first or last of a chunk, or of the loop; also if nothing is bad any more afterwards."""
    primitive = {nan_if: "log", infinity_if: "div"}[make]
    watched = reports_of(loop(event, make))
    for k in (0, 1, 2, 3, 4, 7, 10):
        assert watched(k, x) == [(primitive, watched_loop(loop), (k,))]
    assert watched(LENGTH, x) == []


def watched_loop(loop):
    return "while[0]" if loop is while_loop else "scan[0]"


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 4}, {"unroll": LENGTH}])
def test_iterations_are_counted_as_they_run(options, pauses):
    """Backwards, and if the user wants several as one."""
    watched = reports_of(scan(goes_away, nan_if, **options))
    for k in (0, 3, 4, 9):
        assert watched(k, FEW) == [("log", "scan[0]", (k,))]


def test_what_was_bad_before_does_not_hide_anything(pauses):
    """Nor do numbers whose squares are infinite; the alarm looks more closely then."""
    inf, huge = MANY.at[0].set(jnp.inf), MANY * 1e30

    def event(x, bad, i):
        # An infinity that is there from the start, goes away, and comes back.
        first = jnp.where(i == 2, 0.0, jnp.where(i == 5, x[0] + infinity_if(i == 5), x[0]))
        return x.at[0].set(first).at[7].set(1.0 + bad), 0.0

    watched = reports_of(scan(event, nan_if))
    for k in (0, 1, 2, 4):
        assert watched(k, inf) == [("log", "scan[0]", (k,))]
        assert watched(k, huge) == [("log", "scan[0]", (k,))]
    assert watched(LENGTH, inf) == [("div", "scan[0]", (5,))]
    watched = reports_of(scan(goes_away, nan_if))
    assert watched(LENGTH, huge) == []
    watched = reports_of(scan(stays, nan_if))
    assert watched(LENGTH, inf) == [("", "scan[0]", (0,))]  # It comes out, as it was given.


@pytest.mark.usefixtures("chunks_of_4")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "float8_e5m2"])
def test_numbers_of_all_types_are_looked_at(dtype):
    """Also those that are not summed as they are."""

    def event(x, bad, _):
        return jnp.where(jnp.isnan(x), 0, x) + jnp.asarray(bad, x.dtype), jnp.asarray(0.0)

    watched = reports_of(scan(event, nan_if), inf=False)
    x = jnp.asarray(MANY, dtype)
    for k in (0, 6):
        assert watched(k, x) == [("log", "scan[0]", (k,))]
    assert watched(LENGTH, x.at[1].set(jnp.inf)) == []


def nested(k, x):
    """Two loops in a loop; `k` says where something goes wrong."""

    def outer(x, i):
        def inner(x, j):
            return goes_away(x, nan_if((k[0] == 0) & (i == k[1]) & (j == k[2])), j)

        x, _ = lax.scan(inner, x, jnp.arange(6))
        at = jnp.int32(0)
        x, _ = lax.while_loop(
            lambda c: c[1] < 3,
            lambda c: (stays(c[0], infinity_if(c[1] == k[3]), 0)[0], c[1] + 1),
            (x, at),
        )
        return goes_away(x, nan_if((k[0] == 1) & (i == k[1])), i)[0], None

    return lax.scan(outer, x, jnp.arange(7))


def test_the_innermost_loop_is_named(pauses):
    """With the iterations of all loops around it."""
    watched = reports_of(nested)
    for i in (0, 3, 4, 6):
        for j in (0, 3, 4, 5):
            where = [("log", "scan[0]/scan[0]", (i, j))]
            assert watched(jnp.array([0, i, j, 9]), MANY) == where
        assert watched(jnp.array([1, i, 0, 9]), MANY) == [("log", "scan[0]", (i,))]
    assert watched(jnp.array([2, 0, 0, 2]), MANY) == [("div", "scan[0]/while[1]", (0, 2))]


def test_everything_else_is_seen_once_and_in_order(pauses):
    """Though iterations run again: what is watched or logged, up to the report and after it."""

    def f(k, x):
        def body(x, i):
            spoolax.log({"i": i})
            return goes_away(x, nan_if(i == k), i)

        return lax.scan(body, x, jnp.arange(LENGTH))

    for k in (0, 3, 4, 9):
        seen, logged = [], []
        watched = spoolax.watch(f, seen.append, carry=lambda c: {"c": c[-1]}, nan=True)
        spoolax.tap(watched, logged.append)(k, FEW)
        spoolax.flush()
        is_nan = [isinstance(logs, spoolax.NanFound) for logs in seen]
        assert (len(seen), is_nan.index(True)) == (LENGTH + 1, k + 1)
        carries = [logs["scan[0]/c"] for logs in seen if "scan[0]/c" in logs]
        want = [0.5]
        for i in range(LENGTH):
            want.append(np.nan if i == k else np.nan_to_num(want[-1]) * 1.25)
        np.testing.assert_allclose(carries, want[1:])
        assert [int(logs["i"]) for logs in logged] == list(range(LENGTH))


def test_what_loops_inside_log_is_seen_once(pauses):
    """A loop that goes back would have it logged again."""

    def f(k, x):
        def outer(x, i):
            def inner(x, j):
                spoolax.log({"at": 10 * i + j})
                return x * 1.25, None

            x, _ = lax.scan(inner, x, jnp.arange(2))
            return goes_away(x, nan_if(i == k), i)

        return lax.scan(outer, x, jnp.arange(LENGTH))

    logged, found = [], []
    watched = spoolax.watch_nan(spoolax.tap(f, logged.append), found.append)
    for k in (0, 5):
        logged.clear(), found.clear()
        watched(k, FEW)
        spoolax.flush()
        assert [nan.origin.iteration for nan in found] == [(k,)]
        assert [int(logs["at"]) for logs in logged] == [
            10 * i + j for i in range(LENGTH) for j in (0, 1)
        ]


@pytest.mark.usefixtures("chunks_of_4")
def test_the_programs_own_calls_are_not_made_again_by_going_back():
    """Only by running the iteration again on the host."""
    calls = []

    def f(k, x):
        def body(x, i):
            io_callback(lambda i: calls.append(int(i)), None, i, ordered=True)
            return goes_away(x, nan_if(i == k), i)

        return lax.scan(body, x, jnp.arange(LENGTH))

    found = []
    jax.block_until_ready(spoolax.watch_nan(f, found.append)(6, FEW))
    spoolax.flush()
    jax.effects_barrier()
    assert [nan.origin.iteration for nan in found] == [(6,)]
    assert sorted(calls) == sorted([*range(LENGTH), 6])


def test_lanes_make_one_report(pauses):
    """Of the first that goes wrong, whether the alarm is inside of `vmap` or around it."""
    one = scan(goes_away, nan_if)
    lanes = jnp.array([LENGTH, 7, 4, 5]), jnp.stack([MANY] * 4)
    for f in (jax.vmap(one), while_lanes):
        path = watched_loop(scan if f is not while_lanes else while_loop)
        assert reports_of(f)(*lanes) == [("log", path, (4,))]
    found = []
    jax.jit(jax.vmap(spoolax.watch_nan(one, found.append)))(*lanes)
    spoolax.flush()
    assert [nan.origin.iteration for nan in found] == [(4,)]


def while_lanes(k, x):
    """Loops that end after different numbers of iterations, one of them before it goes wrong."""

    def one(k, x):
        def body(carry):
            i, x = carry
            return i + 1, goes_away(x, nan_if(i == k), i)[0]

        return lax.while_loop(lambda carry: carry[0] < jnp.where(k == 4, LENGTH, 3), body, (0, x))

    return jax.vmap(one)(k, x)


@pytest.mark.usefixtures("chunks_of_4")
def test_each_alarm_has_a_first_report_of_its_own():
    """Also if loops go back for another one."""

    def f(x):
        def outer(x, i):
            def inner(x, j):
                return goes_away(x, infinity_if((i == 5) & (j == 1)), j)

            x, _ = lax.scan(inner, x, jnp.arange(3))
            return goes_away(x, nan_if(i == 7), i)[0], None

        return lax.scan(outer, x, jnp.arange(LENGTH))

    found, others = [], []
    spoolax.watch_nan(spoolax.watch_nan(f, others.append), found.append, inf=False)(FEW)
    spoolax.flush()
    assert [nan.origin.iteration for nan in others] == [(5, 1)]
    assert [nan.origin.iteration for nan in found] == [(7,)]


@pytest.mark.usefixtures("chunks_of_4")
def test_loops_in_branches_and_derivatives_are_watched():
    """In the branch that is taken, and in both passes."""
    one = scan(goes_away, nan_if)

    def branches(k, x):
        return lax.cond(k < 20, lambda: one(k, x), lambda: one(k - 20, x))

    watched = reports_of(branches)
    assert watched(6, FEW) == [("log", "scan[1]", (6,))]
    assert watched(26, FEW) == [("log", "scan[0]", (6,))]
    assert watched(40, FEW) == []

    def loss(x, k):
        return lax.scan(lambda c, i: (stays(c, nan_if(i == k), i)[0], None), x, jnp.arange(LENGTH))[
            0
        ]

    assert reports_of(jax.grad(loss))(FEW, 6) == [("log", "scan[0]", (6,))]
    found = []
    jax.grad(spoolax.watch_nan(loss, found.append))(FEW, 6)
    spoolax.flush()
    assert [nan.origin.iteration for nan in found] == [(6,)]


@pytest.mark.usefixtures("chunks_of_4")
def test_an_alarm_in_the_body_of_somebody_elses_loop():
    """The function that it watches is called in every iteration."""

    watched = spoolax.watch_nan(
        lambda x, bad: goes_away(x, nan_if(bad), 0)[0], lambda nan: found.append(nan)
    )

    def f(k, x):
        return lax.scan(lambda x, i: (watched(x, i == k), None), x, jnp.arange(LENGTH))[0]

    found = []
    jax.jit(f)(6, MANY)
    spoolax.flush()
    assert [(nan.primitive, nan.origin.iteration) for nan in found] == [("log", (6,))]


@pytest.mark.usefixtures("chunks_of_4")
def test_a_program_stops_at_the_iteration_that_went_wrong():
    """It does not end otherwise."""

    def forever(x):
        def body(carry):
            i, x = carry
            return i + 1, goes_away(x, nan_if(i == 9), i)[0]

        return lax.while_loop(lambda carry: carry[0] >= 0, body, (0, x))

    with pytest.raises(spoolax.StopRun, match="iteration 9"):
        jax.block_until_ready(spoolax.watch_nan(forever, stop=True)(MANY))


def test_a_test_that_calls_the_host_does_not_hide_the_bad_iteration():
    """It is evaluated once in an iteration, with the body."""

    def f(k, x):
        def test(carry):
            return io_callback(lambda i: np.bool_(i < 5), jax.ShapeDtypeStruct((), bool), carry[0])

        return lax.while_loop(test, lambda c: (c[0] + 1, c[1] * 1.5 + nan_if(c[0] == k)), (0, x))

    watched = reports_of(f)
    assert watched(3, FEW) == [("log", "while[0]", (3,))]
    assert watched(9, FEW) == []
