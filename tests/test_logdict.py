"""`LogDict` as a dictionary, a pytree, a series in time, a table and a text."""

import copy
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spoolax
from spoolax import LogDict
from spoolax.errors import LogTypeError, LogValueError, MissingExtraError, MixedKeyError

pytestmark = pytest.mark.once


def make(start=0, n=4):
    def f(xs):
        def body(c, x):
            spoolax.log({"x": c + x, "v": {"a": jnp.stack([c, x])}}, step=x)
            return c + x, None

        y = lax.scan(body, 0.0, xs)[0]
        spoolax.log({"end": y})

    return spoolax.spool(f)(jnp.arange(start, start + n, dtype=jnp.float32))[1]


def test_it_is_a_dictionary_and_a_pytree():
    """Mapping, flattening, jit and pickling all keep steps, order and marks."""
    logs = make()
    assert isinstance(logs, dict)
    assert list(logs) == ["x", "v", "end"]
    doubled = jax.jit(lambda logs: jax.tree.map(lambda x: 2 * x, logs))(logs)
    assert isinstance(doubled, LogDict)
    assert list(doubled) == list(logs)
    assert doubled.stacked == logs.stacked == {"x", "v"}
    np.testing.assert_array_equal(doubled.step["v"], 2 * logs.step["v"])
    copied = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, logs)))
    np.testing.assert_array_equal(copied.step["x"], logs.step["x"])
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(logs)]
    assert paths[:3] == ["['x']", "['v']['a']", "['end']"]


def test_steps_are_attributes():
    """One mapping per named step, and an error that lists them."""
    logs = make()
    assert logs.step["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(AttributeError, match=r"no step or attribute `epoch`.*`step`"):
        logs.epoch  # noqa: B018


def test_validity_and_drops_have_values_for_every_key():
    """Also for keys of which nothing is missing."""
    logs = make()
    assert logs.valid["x"].tolist() == [True] * 4
    assert logs.valid["end"].tolist() is True
    assert logs.dropped == {"x": 0, "v": 0, "end": 0}


def test_adding_joins_in_time():
    """Single entries become a series, and everything about a key is joined with it."""
    logs = make() + make(start=7, n=2)
    assert logs["x"].tolist() == [0, 1, 3, 6, 7, 15]
    assert logs["v"]["a"].shape == (6, 2)
    assert logs.step["x"].tolist() == [0, 1, 2, 3, 7, 8]
    assert logs["end"].tolist() == [6, 15]
    assert "end" in logs.stacked
    total = LogDict({"only": 1.0}) + logs
    assert list(total) == ["only", "x", "v", "end"]
    with pytest.raises(MixedKeyError, match=r"'a'.*float32"):
        LogDict({"a": jnp.ones(2)}) + LogDict({"a": jnp.ones(3)})
    with pytest.raises(MixedKeyError, match="step `i`"):
        LogDict({"a": 1.0}, steps={"i": {"a": 1}}) + LogDict({"a": 1.0})


def test_adding_joins_validity_and_drops():
    """What is known of one side only is filled in."""
    a = LogDict({"x": jnp.ones(2)}, valid={"x": jnp.array([True, False])}, stacked=["x"])
    b = LogDict({"x": jnp.ones(1)}, dropped={"x": 3}, stacked=["x"])
    assert (a + b).valid["x"].tolist() == [True, False, True]
    assert (a + b).dropped["x"] == 3
    lanes = LogDict({"x": jnp.ones((1, 2))}, valid={"x": jnp.array([[True, False]])}, stacked=["x"])
    assert (lanes + lanes).valid["x"].shape == (2, 2)


def test_merging_takes_the_right_side():
    """`|` is that of dictionaries."""
    logs = make() | LogDict({"end": 0.0, "new": 1.0}, steps={"step": {"end": 5}})
    assert list(logs) == ["x", "v", "end", "new"]
    assert logs["end"] == 0.0
    assert logs.step["end"] == 5
    assert set(logs.step) == {"x", "v", "end"}
    assert (make() | {"end": 2.0})["end"] == 2.0


def known(logs):
    """All that is known about each key besides its value."""
    about = (logs.steps.values(), [logs._valid, logs._dropped, logs._axes, logs.stacked])
    return {key for group in about for by_key in group for key in by_key}


REMOVALS = {
    "del": lambda logs: logs.__delitem__("x"),
    "pop": lambda logs: logs.pop("x"),
    "popitem": lambda logs: [logs.popitem() for _ in range(len(logs))],
    "clear": lambda logs: logs.clear(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_a_key_that_is_removed_takes_all_that_is_known_about_it_along(remove):
    """So that it does not come back with another value. Copies have their own."""
    logs = LogDict(
        {"x": jnp.arange(2.0), "y": 1.0},
        steps={"step": {"x": jnp.arange(2)}, "epoch": {"x": jnp.arange(2), "y": 0}},
        valid={"x": jnp.array([True, False])},
        dropped={"x": 3},
        stacked=["x"],
    )
    logs = jax.tree.map(lambda x: x, logs)
    copies = [logs.copy(), copy.copy(logs), LogDict(logs)]
    remove(logs)
    assert "x" not in known(logs)
    logs["x"] = 5.0
    assert repr(logs.filter("x")) == "LogDict(\n  x: 5.0\n)"
    for one in copies:
        assert one.step["x"].tolist() == [0, 1]
        assert one.dropped["x"] == 3
        assert one.stacked == {"x"}


def test_removing_answers_as_a_dictionary_does():
    """Defaults, errors and return values are the same."""
    logs = make()
    assert logs.pop("none", 7) == 7
    with pytest.raises(KeyError):
        logs.pop("none")
    assert float(logs.pop("end")) == 6
    assert logs.popitem()[0] == "v"
    assert logs.setdefault("x", 0) is logs["x"]
    assert logs.setdefault("new", 2.0) == logs["new"] == 2.0
    assert list(logs.step) == ["x"]


def test_a_new_value_keeps_the_steps_if_it_has_as_many_entries():
    """Else they belong to other entries, and are forgotten."""
    logs = make()
    logs["x"] = 10 * logs["x"]
    assert logs.slice[:2].step["x"].tolist() == [0, 1]
    logs["v"] = logs["v"]["a"].sum(1)
    assert logs.step["v"].shape == (logs + logs).slice[:4]["v"].shape == (4,)
    logs["x"] = logs["x"][1:]
    assert "x" in logs.stacked
    assert list(logs.step) == ["v"]
    assert (logs + logs)["x"].tolist() == [10, 30, 60, 10, 30, 60]
    logs["v"] = logs["v"].mean()
    assert logs.steps == {}
    assert (logs + logs)["v"].shape == (2,)


def test_a_value_that_was_logged_once_can_become_an_array():
    """It is one entry still, so two of them are a series of two."""
    logs = spoolax.spool(lambda x: spoolax.log({"x": x}, step=3))(1.0)[1]
    logs["x"] = jnp.arange(3.0)
    assert (logs + logs)["x"].shape == (2, 3)
    assert (logs + logs).step["x"].tolist() == [3, 3]
    logs["x"] = None
    assert "x: None" in repr(logs)


def test_update_takes_over_what_is_known():
    """`update` and `|=` do what `|` does; a plain dictionary brings values only."""
    for merge in (lambda a, b: a.update(b), lambda a, b: a.__ior__(b)):
        logs, other = make(), make(start=5, n=2).filter("x")
        merge(logs, other)
        assert logs.step["x"].tolist() == (make() | other).step["x"].tolist() == [5, 6]
        merge(logs, {"x": jnp.zeros(2), "new": 1})
        assert logs.step["x"].tolist() == [5, 6]
        assert list(logs.step) == ["x", "v"]
    logs.update(end=1.0, more=2.0)
    assert (logs["end"], logs["more"]) == (1.0, 2.0)
    merged = {"a": 1.0, "x": 0.0} | make()
    assert list(merged) == ["a", "x", "v", "end"]
    assert merged.step["x"].shape == (4,)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_know_all_that_is_known(copied):
    """Also their order, and where they come from."""
    seen = []
    spoolax.tap(lambda x: spoolax.log({"b": x, "a": x}, step=1), seen.append)(1.0)
    spoolax.flush()
    for logs in (make(), seen[0]):
        again = copied(logs)
        assert repr(again) == repr(logs)
        assert again.origin == logs.origin
        assert known(again) == known(logs)


def test_map_may_change_the_shape_of_entries():
    """Time is where it was, or gone."""
    logs = make()
    assert (logs.map(lambda x: x[..., None]) + logs.map(lambda x: x[..., None]))["x"].shape == (
        8,
        1,
    )
    means = logs.map(jnp.mean)
    assert means.stacked == frozenset()
    assert (means + means)["x"].shape == (2,)


def test_compiled_functions_tell_axes_apart():
    """Arrays of the same shape may be entries of numbers in a batch, or entries of arrays."""
    batch = jax.vmap(lambda x: LogDict({"x": x}, stacked=["x"]))(jnp.ones((2, 3)))
    arrays = LogDict({"x": jnp.ones((2, 3))}, stacked=["x"])
    same = jax.jit(lambda logs: logs)
    assert (same(batch) + same(batch))["x"].shape == (2, 6)
    assert (same(arrays) + same(arrays))["x"].shape == (4, 3)


def test_derivatives_and_types_of_logs_have_a_text():
    """They are LogDicts too: of tangents, of types, and of whatever a function made of leaves."""

    def f(x):
        def body(x, i):
            def log(x):
                spoolax.log({"x": x, "i": i}, step=i)
                return x

            return 2 * lax.cond(x > 2, log, lambda x: x, x), None

        return lax.scan(body, x, jnp.arange(4))[0]

    collect = jax.jit(lambda x: spoolax.spool(f)(x)[1])
    logs, tangents = jax.jvp(collect, (1.0,), (1.0,))
    assert "x: float32[4] = 4 8  (step 2 3, 2 invalid)" in repr(logs)
    assert "x: float32[4] = 0 0 4 8  (step)" in repr(tangents)
    assert "float0[4]  (step)" in tangents._repr_html_()
    assert (tangents + tangents)["x"].shape == (8,)
    assert "x: float32[4]  (step)" in repr(jax.eval_shape(collect, 1.0))
    assert "2 invalid" in repr(jax.tree.map(lambda x: x.astype(jnp.float32), logs))
    assert "x: float32[] = 3  (step 1.25)" in repr(jax.tree.map(jnp.mean, logs))
    assert jax.tree.map(lambda x: x[3], logs).slice[1:]["x"] == 8
    assert "x: None" in repr(jax.tree.map(lambda x: None, logs))


def test_filter_prefix_slice_and_reduce():
    """Each returns a new LogDict with everything about its keys."""
    logs = make()
    assert list(logs.filter("x", lambda key: key == "end")) == ["x", "end"]
    renamed = logs.prefix("a/")
    assert renamed.step["a/x"].tolist() == [0, 1, 2, 3]
    part = logs.slice[1::2]
    assert part["x"].tolist() == [1, 6]
    assert part["v"]["a"].shape == (2, 2)
    assert part.step["x"].tolist() == [1, 3]
    assert part["end"] == logs["end"]
    with pytest.raises(LogTypeError, match="slice"):
        logs.slice[1]
    assert float(logs.reduce("mean")["x"]) == 2.5
    masked = LogDict(
        {"x": jnp.arange(3.0)}, valid={"x": jnp.array([True, False, True])}, stacked=["x"]
    )
    assert float(masked.reduce("sum")["x"]) == 2.0


def test_the_text_is_for_people():
    """Types, first and last values, steps, and what is missing."""
    text = repr(make())
    assert "x: float32[4] = 0 1 3 6  (step 0 1 2 3)" in text
    assert "v: ['a'] float32[4,2] = 0 ... 3" in text
    assert "end: float32[] = 6" in text
    assert repr(LogDict()) == "LogDict()"
    assert "(2 dropped, 1 invalid)" in repr(
        LogDict(
            {"x": jnp.ones(2)},
            valid={"x": jnp.array([True, False])},
            dropped={"x": 2},
            stacked=["x"],
        )
    )
    assert "<table" in make()._repr_html_()
    assert "<svg" in make()._repr_html_()
    assert "&lt;b&gt;" in LogDict({"<b>": 1.0})._repr_html_()
    jax.jit(lambda x: repr(spoolax.spool(lambda x: spoolax.log({"x": x}))(x)[1]) and x)(1.0)
    keys = LogDict({"k": jax.random.key(0), "b": jnp.ones(9, jnp.bfloat16), "n": 3})
    assert "k: key<fry>[] = 0 0" in repr(keys)


def test_pandas_has_one_row_per_entry_matched_by_steps():
    """Not by position: entries of one row were logged at the same step."""
    frame = make().to_pandas()
    assert list(frame.columns) == ["step", "x", "v['a'][0]", "v['a'][1]"]
    assert frame["x"].tolist() == [0, 1, 3, 6]
    assert frame.attrs == {"end": 6.0}

    def f(xs):
        def body(c, x):
            lax.cond(x % 2 == 1, lambda: spoolax.log({"odd": x}, step=x) and None, lambda: None)
            spoolax.log({"all": x, "h": x.astype(jnp.bfloat16)}, step=x)
            return c, None

        return lax.scan(body, 0.0, xs)[0]

    frame = spoolax.spool(f)(jnp.arange(5))[1].to_pandas().sort_values("step")
    assert frame["all"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(frame["odd"], [np.nan, 1, np.nan, 3, np.nan])
    unmatched = LogDict({"a": np.ones(2), "b": np.ones(3)}, stacked=["a", "b"])
    with pytest.raises(LogValueError, match=r"\['a'\] and \['b'\].*no named step in common"):
        unmatched.to_pandas()
    assert unmatched.filter("a").to_pandas().shape == (2, 1)
    lanes = LogDict(
        {"x": jnp.arange(4).reshape(2, 2)},
        valid={"x": jnp.array([[True, True], [False, True]])},
        steps={"i": {"x": jnp.array([[0, 0], [9, 1]])}},
        stacked=["x"],
    )
    frame = lanes.to_pandas()
    assert np.isnan(frame["x[0]"][1])
    assert frame["i"].tolist() == [0, 1]


def test_xarray_keeps_dimensions():
    """Time, lanes and those of an entry have names; steps are coordinates."""
    data = make().to_xarray()
    assert data["v['a']"].dims == ("entry", "v['a']_dim_0")
    assert data["step"].values.tolist() == [0, 1, 2, 3]
    assert data["x"].sel(entry=data["step"] == 2).item() == 3
    assert data["end"].dims == ()
    logs = spoolax.spool(jax.vmap(lambda x: spoolax.log({"x": x}) and x))(jnp.ones(3))[1]
    assert logs.to_xarray()["x"].dims == ("lane_0",)
    two = LogDict(
        {"x": jnp.ones((2, 2)), "h": jnp.ones(3, jnp.bfloat16)},
        valid={"x": jnp.array([[True, True], [False, True]])},
        steps={"i": {"x": jnp.arange(2)}},
        stacked=["x", "h"],
    ).to_xarray()
    assert two["x.valid"].shape == (2, 2)
    assert (two["x"].dims[0], two["h"].dims) == ("entry_x", ("entry_h",))
    assert "i_x" in two.coords


def test_axes_around_a_spool_are_not_taken_for_time():
    """Under `jax.vmap(spool(f))`, time is the second axis, for everything."""

    def f(x):
        def body(c, i):
            spoolax.log({"x": c, "v": jnp.stack([c, c])}, step=i)
            return c + 1, None

        return lax.scan(body, x, jnp.arange(4))[0]

    outside = jax.vmap(spoolax.spool(f))(jnp.arange(2.0))[1]
    inside = spoolax.spool(jax.vmap(f))(jnp.arange(2.0))[1]
    assert outside.valid["x"].shape == outside.valid["v"].shape == (2, 4)
    assert inside.valid["x"].shape == inside.valid["v"].shape == (4, 2)
    np.testing.assert_array_equal(outside.reduce("mean")["v"], inside.reduce("mean")["v"])
    np.testing.assert_array_equal(outside.reduce("max")["x"], [3.0, 4.0])
    assert outside.slice[1:3]["v"].shape == (2, 2, 2)
    assert (outside + outside)["x"].shape == (2, 8)
    assert (outside + outside).step["x"].shape == (2, 8)
    assert outside.to_pandas()["x[1]"].tolist() == inside.to_pandas()["x[1]"].tolist()
    assert outside.to_pandas()["step"].tolist() == [0, 1, 2, 3]


def test_reduce_says_what_did_not_happen():
    """As `spool(f, reduce=...)` does."""
    logs = LogDict({"x": jnp.ones(2)}, valid={"x": jnp.zeros(2, bool)}, stacked=["x"])
    assert not logs.reduce("max").valid["x"]
    assert make().reduce("first").step["x"] == 0
    assert make().reduce("mean").step["x"] == 3


def test_mapping_values_leaves_steps_and_validity_alone():
    """Which `jax.tree.map` does not."""
    logs = make().map(lambda x: 10 * x)
    assert logs["x"].tolist() == [0, 10, 30, 60]
    assert logs.step["x"].tolist() == [0, 1, 2, 3]


def test_small_conveniences():
    """Copies keep everything, sums work, and a missing key lists those that are there."""
    logs = make()
    assert logs.copy().step["x"].tolist() == [0, 1, 2, 3]
    assert sum([logs, logs])["x"].shape == (8,)
    assert list(logs.filter(["x", "end"])) == ["x", "end"]
    assert list(LogDict({"a[0]": 1.0}).filter("a[0]")) == ["a[0]"]
    with pytest.raises(KeyError, match=r"'lost' was not logged.*'x', 'v', 'end'"):
        logs["lost"]


def test_a_missing_library_is_named(monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r'`pip install "pandas>=[\d.]+"`'):
        make().to_pandas()


def test_logs_of_other_lanes_are_not_joined():
    """An axis of lanes is none of the entry."""

    def f(x):
        spoolax.log({"x": x})
        return x

    lanes = spoolax.spool(jax.vmap(f))(jnp.ones(2))[1]
    whole = spoolax.spool(f)(jnp.ones(2))[1]
    for a, b in ((lanes, whole), (whole, lanes)):
        with pytest.raises(MixedKeyError, match="lanes"):
            a + b
