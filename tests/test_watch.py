"""`watch` sees into programs without `log` calls; `watch_nan` finds where they go wrong."""

import copy
import pickle

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from checks import COVER, REST, assert_equal_to_the_bit, f_of, medley, medleys, plain, programs
from jax.interpreters import mlir
from lanes import joined
from programs import XS

import spoolax
from spoolax._watch.outline import address_matches
from spoolax.errors import LogTypeError, NothingSelectedWarning


def nested(x):
    """Two loops in a loop, and one after it."""

    def outer(c, x):
        c = jax.lax.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, c + x)
        c = jax.jit(lambda c: jax.lax.fori_loop(0, 2, lambda i, c: c - 1.0, c))(c)
        return c, jnp.linalg.cholesky(jnp.eye(2) * c)

    c, ys = jax.lax.scan(outer, x, jnp.arange(3.0))
    return jax.lax.fori_loop(0, 2, lambda i, c: c + 1.0, c), ys


def watched(f, *args, **options):
    seen = []
    y = spoolax.watch(f, seen.append, **options)(*args)
    spoolax.flush()
    return y, joined(seen)


def plain_python(x):
    """What `nested` does, as lists of carries by address."""
    seen = {"scan[0]/while[0]": [], "scan[0]/scan[1]": [], "scan[0]": [], "scan[1]": []}
    c = x
    for i in range(3):
        c = c + i
        while c < 10:
            c *= 2
            seen["scan[0]/while[0]"].append(c)
        for _ in range(2):
            c -= 1
            seen["scan[0]/scan[1]"].append(c)
        seen["scan[0]"].append(c)
    for _ in range(2):
        c += 1
        seen["scan[1]"].append(c)
    return seen


def last(carry):
    return {"c": carry[-1]}


def test_carries_are_seen_by_loop_address():
    """Every iteration of every loop, in whatever function it is called."""
    y, logs = watched(nested, 1.0, carry=last)
    assert_equal_to_the_bit(y, jax.jit(nested)(1.0))
    want = plain_python(1.0)
    assert {key: value.tolist() for key, value in logs.items()} == {
        f"{address}/c": values for address, values in want.items()
    }
    _, logs = watched(nested, 1.0)
    assert logs["scan[0]/carry[0]"].tolist() == want["scan[0]"]
    assert logs["scan[1]/carry[0]"].tolist() == [0, 1] or logs["scan[1]/carry[0]"].shape == (2,)


def test_where_chooses_loops():
    """By address, with patterns."""
    _, logs = watched(nested, 1.0, carry=last, where="scan[0]/**")
    assert set(logs) == {"scan[0]/c", "scan[0]/while[0]/c", "scan[0]/scan[1]/c"}
    _, logs = watched(nested, 1.0, carry=last, where=["**/while[*]", "scan[1]"])
    assert set(logs) == {"scan[0]/while[0]/c", "scan[1]/c"}
    for address, pattern, want in [
        ("scan[0]/while[1]/mul[0]", "scan[0]", True),
        ("scan[0]/while[1]/mul[0]", "scan[0]/*", True),
        ("scan[0]/while[1]/mul[0]", "**/mul[*]", True),
        ("scan[0]/while[1]/mul[0]", "**", True),
        ("scan[0]", "scan[0]/**", True),
        ("scan[10]", "scan[1]", False),
        ("scan[0]/while[1]", "while[1]", False),
        ("scan[0]/while[1]", "scan[?]/while[?]", True),
    ]:
        assert address_matches(address, pattern) == want, (address, pattern)


def test_outputs_and_primitives():
    """What scans stack, and what comes out of named primitives, with the user's source line."""
    seen = []
    (_, ys), _ = spoolax.watch(nested, seen.append, outputs=True)(1.0), spoolax.flush()
    logs = joined(seen)
    np.testing.assert_array_equal(logs["scan[0]/outputs[0]"], ys)

    seen = []
    spoolax.watch(nested, seen.append, primitives="chol*")(1.0)
    spoolax.flush()
    logs = joined(seen)
    assert list(logs) == ["scan[0]/cholesky[0]"]
    np.testing.assert_allclose(logs["scan[0]/cholesky[0]"], ys, rtol=1e-6)
    assert seen[0].origin.path == "scan[0]"
    assert seen[0].origin.iteration == (0,)
    assert "test_watch.py" in seen[0].origin.site


def test_interval_reduce_and_batch_are_those_of_tap():
    """They act on the device as well."""
    f = lambda x: jax.lax.fori_loop(0, 100, lambda i, x: x + 1, x)  # noqa: E731
    _, logs = watched(f, 0, carry=last, interval=10)
    assert logs["scan[0]/c"].tolist() == list(range(1, 101, 10))
    _, logs = watched(f, 0, carry=last, interval=50, reduce="sum")
    assert logs["scan[0]/c"].tolist() == [sum(range(1, 51)), sum(range(51, 101))]
    _, logs = watched(f, 0, carry=last, batch=True)
    assert logs["scan[0]/c"].tolist() == list(range(1, 101))


@programs(COVER)
def test_outputs_of_watched_programs_are_unchanged_to_the_bit(name):
    """Whatever they are made of; their own `log` calls are not seen."""
    y, seen = everything_watched(f_of(name))
    assert_equal_to_the_bit(y, plain(name))
    assert all(key.startswith(("scan", "while")) for logs in seen for key in logs)


@medleys(REST)
def test_outputs_of_several_watched_programs_are_unchanged_to_the_bit(names):
    """The same for the rest of the table."""
    f = medley(names)
    y, seen = everything_watched(f)
    assert_equal_to_the_bit(y, jax.jit(f)(XS))
    assert all(key.startswith(("scan", "while")) for logs in seen for key in logs)


def everything_watched(f):
    seen = []
    y = spoolax.watch(f, seen.append, carry=True, outputs=True, nan=True)(XS)
    spoolax.flush()
    return y, seen


def test_what_is_not_there_is_warned_about():
    """With what there is."""
    with pytest.warns(NothingSelectedWarning, match=r"scan\[0\]/while\[0\].*cholesky"):
        spoolax.watch(nested, primitives="qr")(1.0)
    with pytest.warns(NothingSelectedWarning):
        spoolax.watch(nested, where="scan[7]")(1.0)
    with pytest.raises(LogTypeError, match="carry"):
        spoolax.watch(nested, carry="x")


def test_logs_of_a_watched_function_go_to_an_outer_listener():
    """`watch` takes only what it made itself."""

    def f(x):
        def body(c, _):
            spoolax.log({"c": c})
            return c + 1, None

        return jax.lax.scan(body, x, length=3)[0]

    seen = []
    _, logs = spoolax.spool(spoolax.watch(f, seen.append))(0)
    spoolax.flush()
    assert logs["c"].tolist() == [0, 1, 2]
    assert [int(one["scan[0]/carry[0]"]) for one in seen] == [1, 2, 3]


def test_the_outline_of_a_program():
    """A tree of loops and primitives, with addresses and source lines."""
    outline = spoolax.primitives(nested, 1.0)
    lines = str(outline).splitlines()
    assert lines[0].strip() == "nested"
    text = "\n".join(lines)
    for part in ("scan[0]", "while[0]", "scan[1]", "cholesky[0]", "3 iterations", "test_watch.py"):
        assert part in text
    assert repr(outline) == str(outline)
    assert "cholesky[0]" in outline._repr_html_()
    assert str(spoolax.primitives(lambda x: x, 1.0)) == "<lambda>"


def test_the_entries_of_an_outline_can_be_looked_through():
    """Their addresses are those that `watch` takes."""
    outline = spoolax.primitives(nested, 1.0)
    loops = ["scan[0]", "scan[0]/while[0]", "scan[0]/scan[1]", "scan[1]"]
    assert [loop.address for loop in outline.loops] == loops
    assert len(outline) == len(list(outline)) == len(outline.addresses)
    loop = outline["scan[0]"]
    assert (loop.length, loop.carry, loop.outputs) == (3, ["float32[]"], ["float32[2,2]"])
    assert outline["scan[0]/while[0]"].length is None
    cholesky = outline["scan[0]/cholesky[0]"]
    assert (cholesky.primitive, cholesky.is_loop) == ("cholesky", False)
    assert line_of(nested, "cholesky") in cholesky.line
    _, logs = watched(nested, 1.0, carry=last, where=outline.loops[1].address)
    assert set(logs) == {"scan[0]/while[0]/c"}
    with pytest.raises(KeyError, match=r"nothing at 'scan\[7\]'"):
        outline["scan[7]"]


def test_parts_of_an_outline():
    """By address and depth, or only its loops; with the loops around them."""
    outline = spoolax.primitives(nested, 1.0, where="**/while[*]")
    assert outline.addresses[0] == "scan[0]/while[0]"
    assert {item.address.rpartition("/")[0] for item in outline[1:]} == {"scan[0]/while[0]"}
    assert str(outline).splitlines()[1].startswith("└─ scan[0]")
    outline = spoolax.primitives(nested, 1.0, depth=1, loops_only=True)
    assert outline.addresses == ["scan[0]", "scan[1]"]
    assert "2 more loops inside" in str(outline)
    assert outline.select(where="scan[1]").addresses == ["scan[1]"]
    with pytest.raises(ValueError, match="depth"):
        outline.select(depth=0)


def test_the_outline_of_a_large_program_is_drawn_with_its_loops():
    """And the number of primitives beside them."""

    def large(x):
        for _ in range(60):
            x = jnp.sin(x)
        return jax.lax.fori_loop(0, 3, lambda i, x: x * 2.0, x)

    outline = spoolax.primitives(large, 1.0)
    lines = str(outline).splitlines()
    assert len(lines) < 10
    assert lines[1].startswith("├─ scan[0]")
    assert any("60 others" in line and "sin x60" in line for line in lines)
    assert len(str(outline.select(loops_only=False)).splitlines()) > 60
    assert "sin[7]" in str(outline.select(where="sin[7]"))


def first_nan(f, *args):
    found = []
    spoolax.watch_nan(f, found.append)(*args)
    spoolax.flush()
    assert len(found) == 1
    return found[0]


def line_of(f, text):
    """The line of a function's source where a text is, as `file:line`."""
    import inspect

    lines, start = inspect.getsourcelines(f)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(f).rpartition('/')[2]}:{start + number}"


def goes_wrong(x):
    def outer(c, x):
        c = jax.lax.while_loop(lambda c: c % 3 != 0, lambda c: c + 1, c + x)
        safe = jnp.where(c > 100, jnp.log(-c), c)  # A NaN that does not come out.
        y = jnp.sqrt(0 * safe + 10.0 - x * x)  # The culprit.
        return c + 1, jnp.exp(y)

    return jax.lax.scan(outer, x, jnp.arange(10.0))[1].sum()


def test_the_first_nan_is_traced_to_its_primitive():
    """With loop, iteration, and source line; NaNs that are not used do not count."""
    found = first_nan(goes_wrong, 0.0)
    assert found.primitive == "sqrt"
    assert found.origin.path == "scan[0]"
    assert found.origin.iteration == (4,)
    assert line_of(goes_wrong, "The culprit") in found.origin.site
    assert "NaN" in str(found)
    assert not found.backward


def test_nans_in_inner_loops_branches_and_calls_are_found():
    """Also infinities, and outside of all loops."""

    def inner(x):
        def body(c):
            return jax.jit(lambda c: jax.lax.cond(c > 2, lambda c: c / (c - c), jnp.sin, c))(c) + 3

        return jax.lax.while_loop(lambda c: c < 100.0, body, x)

    def f(x):
        return jax.lax.scan(lambda c, _: (inner(c), None), x, length=3)[0]

    found = first_nan(f, 0.0)
    assert found.primitive == "div"
    assert found.origin.path == "scan[0]/while[0]"
    assert found.origin.iteration[0] == 0
    assert "infinity" in str(found)

    found = first_nan(lambda x: jnp.log(x - 2.0) + 1.0, 1.0)
    assert found.primitive == "log"
    assert found.origin.path == ""


def test_nans_of_the_backward_pass_are_found():
    """With the line of the forward pass that they belong to."""

    def f(x):
        def body(c, x):
            return c + jnp.sqrt(x), None  # The culprit.

        return jax.lax.scan(body, 0.0, x)[0]

    # The derivative of a square root is computed when the forward pass is.
    found = first_nan(jax.grad(f), jnp.array([1.0, 0.0, 4.0]))
    assert line_of(f, "The culprit") in found.origin.site
    assert found.origin.path == "scan[0]"
    assert found.origin.iteration == (1,)
    assert "infinity" in str(found)

    @jax.custom_vjp
    def explode(x):
        return x

    explode.defvjp(lambda x: (x, None), lambda _, ct: (ct * 1e30,))

    def g(x):
        def body(c, _):
            return explode(c), None

        return jax.lax.scan(body, x, length=5)[0]

    found = first_nan(jax.grad(g), 1.0)
    assert found.backward
    assert found.primitive == "mul"
    assert found.origin.path == "scan[1]"
    assert found.origin.iteration == (1,)


def test_it_works_under_vmap_and_jit_and_says_nothing_if_all_is_well():
    """One report for the whole batch."""
    found = []

    def g(x):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.log(x) + 3.0, x)

    f = jax.jit(jax.vmap(spoolax.watch_nan(g, found.append)))
    f(jnp.array([1.0, -50.0]))
    spoolax.flush()
    assert [nan.primitive for nan in found] == ["log"]
    found.clear()
    f(jnp.array([1.0, 2.0]))
    spoolax.flush()
    assert not found


def test_what_the_alarm_found_can_be_copied(unoptimized):
    found = []
    spoolax.watch_nan(lambda x: jnp.log(x), found.append)(-1.0)
    spoolax.flush()
    for same in (copy.deepcopy(found[0]), pickle.loads(pickle.dumps(found[0]))):
        assert type(same) is type(found[0])
        assert str(same) == str(found[0])


def test_the_alarm_is_logged_and_may_stop_the_program(caplog):
    """By default as an error of the `spoolax` logger."""
    spoolax.watch_nan(goes_wrong)(0.0)
    spoolax.flush()
    assert "sqrt" in caplog.text

    def forever(x):
        return jax.lax.while_loop(lambda x: x != 0.5, lambda x: jnp.log(x), x)

    # It stops at once, though nothing else is sent.
    with pytest.raises(spoolax.StopRun, match="log"):
        jax.block_until_ready(spoolax.watch_nan(forever, stop=True)(2.0))


def test_running_an_iteration_again_logs_nothing_again():
    """What a tap inside of the program got, it does not get twice."""
    seen = []

    def f(x):
        def body(x, _):
            spoolax.log({"x": x})
            return jax.jit(jnp.log)(x), None

        return jax.lax.scan(body, x, length=5)[0]

    found = first_nan(spoolax.tap(f, seen.append), 2.0)
    assert found.primitive == "log"
    assert found.origin.iteration == (2,)
    assert len(seen) == 5


def test_the_alarm_is_not_thinned_out():
    """By an `interval` or `reduce` that is meant for what is watched beside it."""

    def f(x):
        return jax.lax.scan(lambda c, _: (jnp.log(c), None), x, length=6)[0]

    for options in ({"interval": 4}, {"reduce": "mean"}, {"interval": 2, "reduce": "max"}):
        found = []
        spoolax.watch(f, found.append, nan=True, carry=True, **options)(2.0)
        spoolax.flush()
        (nan,) = (logs for logs in found if isinstance(logs, spoolax.NanFound))
        assert nan.origin.iteration == (2,)


def test_what_is_bad_from_the_start_is_said_to_be():
    """It did not come out of a primitive."""
    assert "among the arguments" in str(first_nan(lambda x: x, jnp.nan))
    assert first_nan(lambda x: (jnp.log(x), 0.0), -1.0).primitive == "log"
    seen = []
    f = lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x + 1, x)  # noqa: E731
    spoolax.watch(f, seen.append, carry=lambda carry: None)(1.0)
    spoolax.flush()
    assert not seen


def test_primitives_of_others_are_run_again_with_arrays():
    """Also where the program has a literal, or the value comes from the device."""
    head = jax.extend.core.Primitive("head")
    head.def_impl(lambda x, y: x.at[...].get() / y.at[...].get())
    head.def_abstract_eval(lambda x, y: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(
        head, mlir.lower_fun(lambda x, y: x / y, multiple_results=False), platform="cpu"
    )

    def f(x):
        def body(x, _):
            return jnp.sqrt(head.bind(x, np.float32(2.0)) - 1), None

        return jax.lax.scan(body, x, length=3)[0]

    found = first_nan(f, jnp.float32(4.0))
    assert (found.primitive, found.origin.iteration) == ("sqrt", (1,))


def before_a_loop(p, xs):
    def outer(c, x):
        root = jax.jit(jnp.sqrt)(x)  # In the outer loop.
        c = jax.lax.fori_loop(0, 2, lambda i, c: c + root * scale, c)
        return c, None

    scale = jnp.log(p["w"][1]).astype(jnp.float32)  # Before all loops.
    return jax.lax.scan(outer, p["w"][0], xs)[0]


@pytest.mark.usefixtures("unoptimized")
def test_what_was_bad_before_a_loop_is_not_blamed_on_the_loop():
    """The report says what made it, or in which argument it was."""
    ones, one, bad = jnp.ones(3), jnp.float32(1), jnp.float32(-1)
    found = first_nan(before_a_loop, {"w": (one, bad)}, ones)
    assert "was there before scan[0]/scan[0] began: it came out of `log` at" in str(found)
    assert (found.primitive, found.origin.path, found.origin.iteration) == ("log", "", ())
    assert line_of(before_a_loop, "Before all loops") in found.origin.site

    found = first_nan(before_a_loop, {"w": (one, one)}, ones.at[1].set(-1))
    assert (found.primitive, found.origin.path, found.origin.iteration) == ("sqrt", "scan[0]", (1,))
    assert line_of(before_a_loop, "In the outer loop") in found.origin.site

    found = first_nan(before_a_loop, {"w": (jnp.float32(jnp.nan), one)}, ones)
    assert "it is among the arguments, in `p['w'][0]`" in str(found)
    assert found.primitive == ""

    def inputs(x, ys=ones):
        return jax.lax.scan(lambda c, y: (c + y, None), x, ys)[0]

    found = first_nan(inputs, one, ones.at[2].set(jnp.nan))
    assert "before scan[0] began: it is among the arguments, in `ys`. `add` at" in str(found)
    assert np.isnan(found["ys"])

    found = first_nan(before_a_loop, {"w": (one, one)}, ones.at[1].set(jnp.nan))
    assert "it came out of `sqrt`" in str(found)
    assert "Among the arguments, `xs` had some from the start." in str(found)

    def closed_over(x):
        return jax.lax.scan(lambda c, _: (c + table.sum(), None), x, length=2)[0]

    table = jnp.array([1.0, jnp.nan, jnp.inf])
    found = first_nan(closed_over, 1.0)
    assert "in an array that the function closes over" in str(found)
    assert "float32[3] from 1 to 1, 1 NaN, 1 infinite" in str(found)


@pytest.mark.usefixtures("unoptimized")
def test_a_loop_that_is_not_watched_may_have_carried_something_bad():
    """Then nobody knows since when."""

    def f(x):
        def outer(c, _):
            return jnp.sqrt(c - 1.5), jax.lax.fori_loop(0, 2, lambda i, d: d + c, 0.0)

        return jax.lax.scan(outer, x, length=3)

    found = []
    spoolax.watch(f, found.append, nan=True, where="scan[0]/scan[0]")(2.0)
    spoolax.flush()
    assert "scan[0] carried it, which `where` leaves out" in str(found[0])


@pytest.mark.usefixtures("unoptimized")
def test_an_infinity_comes_with_the_way_to_ignore_it():
    """Programs make them on purpose."""

    def f(x):
        def masked(x):
            return jnp.where(x > 0, x, -jnp.inf)

        return jax.lax.map(masked, x)

    found = first_nan(f, jnp.array([1.0, -1.0]))
    assert "is a constant of the program" in str(found)
    assert "`inf=False` ignores infinities" in str(found)
    assert "inf=False" not in str(first_nan(jnp.log, -1.0))


@pytest.mark.usefixtures("unoptimized")
def test_infinities_that_do_not_count_are_not_suspected():
    """With `inf=False`, a NaN is traced to what made it, not to the infinity that it was given."""

    def f(x):
        def body(c, x):
            low = jnp.exp(1000 * x)
            return low, low - c  # The culprit.

        return jax.lax.scan(body, 0.0, x)[1]

    found = []
    spoolax.watch_nan(f, found.append, inf=False)(jnp.ones(3))
    spoolax.flush()
    assert found[0].primitive == "sub"
    assert found[0].origin.iteration == (1,)
    assert line_of(f, "The culprit") in found[0].origin.site


def test_an_infinity_that_a_loop_was_given_does_not_count():
    """Such as the start of a minimum; constants that are not finite do, but crash nothing."""

    def f(xs):
        def body(carry, x):
            best, total = carry
            best = jnp.where(x > 1, jnp.minimum(best, x), best)
            return (best, total + jnp.log(x)), None

        return jax.lax.scan(body, (jnp.inf, 0.0), xs)[0]

    found = first_nan(f, jnp.array([0.5, 0.6, -1.0]))
    assert found.primitive == "log"
    assert found.origin.iteration == (2,)

    def constant(x):
        return jax.lax.scan(lambda c, v: ((c[0] + v, jnp.inf), None), (0.0, 0.0), x)[0]

    assert "infinity" in str(first_nan(constant, jnp.ones(2)))
    found = []
    spoolax.watch_nan(constant, found.append, inf=False)(jnp.ones(2))
    spoolax.flush()
    assert not found


def test_a_lane_that_goes_wrong_is_run_again_by_itself():
    """With shapes that matter."""

    def f(x):
        def body(x, _):
            return jnp.linalg.cholesky(x @ x.T - jnp.eye(2)), None

        return jax.lax.scan(body, x, length=2)[0]

    found = []
    jax.vmap(spoolax.watch_nan(f, found.append))(jnp.stack([jnp.eye(2) * 9, jnp.eye(2) * 0.5]))
    spoolax.flush()
    assert found[0].primitive == "cholesky"
    assert found[0].origin.iteration == (0,)


def test_a_function_of_the_carry_is_called_for_chosen_loops_only():
    """And if it fails, the error says for which."""

    def f(x):
        (v, p), _ = jax.lax.scan(
            lambda c, i: ((c[0] + 1, c[1] * 0.5), None), (x, jnp.eye(2)), None, 2
        )
        return jax.lax.while_loop(lambda s: s[1] < 2, lambda s: (s[0] + 1, s[1] + 1), (v, 0)), p

    def trace(carry):
        return {"tr": jnp.trace(carry[1])}

    _, logs = watched(f, 0.0, carry=trace, where="scan[0]")
    assert logs["scan[0]/tr"].tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="out of bounds") as caught:
        spoolax.watch(f, carry=trace)(0.0)
    assert "while[1]" in "".join(caught.value.__notes__)


def test_primitives_can_be_given_by_address():
    """As `spoolax.primitives` prints them."""
    _, logs = watched(nested, 1.0, primitives="scan[0]/cholesky[0]")
    assert list(logs) == ["scan[0]/cholesky[0]"]
    _, logs = watched(nested, 1.0, primitives="mul", where="scan[0]/while[0]")
    assert list(logs) == ["scan[0]/while[0]/mul[0]"]
    with pytest.raises(LogTypeError, match="callback"):
        spoolax.watch(nested, "cholesky")


def test_a_lane_whose_loop_has_ended_keeps_its_carry():
    def f(n):
        def body(carry):
            i, x = carry
            return i + 1, x / (2.0 - i)  # Bad from the third iteration on.

        return jax.lax.while_loop(lambda carry: carry[0] < n, body, (0, jnp.float32(1)))[1]

    seen = []
    spoolax.watch(jax.vmap(f), seen.append)(jnp.array([1, 2]))
    spoolax.flush()
    assert [logs["while[0]/carry[0]"].tolist() for logs in seen] == [[1, 1], [1, 2]]
    found = []
    spoolax.watch_nan(jax.vmap(f), found.append)(jnp.array([2, 3]))
    spoolax.flush()
    assert [nan.origin.iteration for nan in found] == [(2,)]
    spoolax.watch_nan(jax.vmap(lambda n: f(jnp.minimum(n, 2))), found.append)(jnp.array([2, 3]))
    spoolax.flush()
    assert len(found) == 1
