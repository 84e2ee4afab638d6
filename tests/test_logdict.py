"""`LogDict` as a dictionary, a pytree, a series in time, a table and a text."""

import builtins
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import chiplog
from chiplog import LogDict
from chiplog.errors import LogTypeError, MissingExtraError, MixedKeyError


def make(start=0, n=4):
    def f(xs):
        def body(c, x):
            chiplog.log({"x": c + x, "v": {"a": jnp.stack([c, x])}}, step=x)
            return c + x, None

        y = lax.scan(body, 0.0, xs)[0]
        chiplog.log({"end": y})

    return chiplog.spool(f)(jnp.arange(start, start + n, dtype=jnp.float32))[1]


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
    assert "<th" in make()._repr_html_()
    assert "&lt;b&gt;" in LogDict({"<b>": 1.0})._repr_html_()
    jax.jit(lambda x: repr(chiplog.spool(lambda x: chiplog.log({"x": x}))(x)[1]) and x)(1.0)
    keys = LogDict({"k": jax.random.key(0), "b": jnp.ones(9, jnp.bfloat16), "n": 3})
    assert "k: key<fry>[] = 0 0" in repr(keys)


def test_tables():
    """pandas has one row per entry; xarray keeps the dimensions."""
    frame = make().to_pandas()
    assert list(frame.columns) == ["step", "x", "v['a'][0]", "v['a'][1]", "end"]
    assert frame["x"].tolist() == [0, 1, 3, 6]
    assert frame["end"].dropna().tolist() == [6]
    data = make().to_xarray()
    assert data["v['a']"].dims == ("entry", "v['a']_dim_0")
    assert data["step[x]"].values.tolist() == [0, 1, 2, 3]
    lanes = LogDict(
        {"x": jnp.arange(4).reshape(2, 2), "h": jnp.ones(3, jnp.bfloat16)},
        valid={"x": jnp.array([[True, True], [False, True]])},
        steps={"i": {"x": jnp.arange(2), "h": jnp.arange(3)}},
        stacked=["x", "h"],
    )
    frame = lanes.to_pandas()
    assert np.isnan(frame["x[0]"][1])
    assert "i[h]" in frame
    data = lanes.to_xarray()
    assert data["x.valid"].shape == (2, 2)
    assert data["x"].dims[0] == "entry_x"


def test_a_missing_library_is_named(monkeypatch):
    """With the extra that brings it."""
    real = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name.startswith("pandas"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtraError, match=r"chiplog\[pandas\]"):
        make().to_pandas()
