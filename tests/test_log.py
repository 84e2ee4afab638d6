"""`log` itself: what it accepts, what it refuses, and what it costs."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

import spoolax
from spoolax.errors import LogTypeError, LogValueError, SpoolaxError


def test_it_returns_what_was_logged():
    """So it is of use without a transform."""
    logs = spoolax.log({"a": 1.0, "b": {"c": jnp.ones(2)}}, prefix="p/", step=3, epoch=1)
    assert list(logs) == ["p/a", "p/b"]
    assert logs.step["p/a"] == 3
    assert logs.epoch["p/b"] == 1
    assert spoolax.log({}) == {}


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([1.0], r"takes a dictionary.*\[1.0\]"),
        (jnp.ones(2), "takes a dictionary"),
        ({1: 2.0}, r"keys of a log must be strings.*1 \(of type int\)"),
        ({"a": "text"}, r"Cannot log 'a': it is 'text' \(of type str\)"),
        ({"a": None}, "Cannot log 'a': it is None"),
        ({"a": {"b": [1.0, "text"]}}, r"Cannot log 'a'\['b'\]\[1\]: it is 'text'"),
        ({"a": object()}, "Cannot log 'a'"),
        ({"a": np.array(["x"])}, "Cannot log 'a'"),
        ({"a": np.array([None])}, "Cannot log 'a'"),
    ],
)
@pytest.mark.parametrize("listened_to", [False, True])
def test_what_cannot_be_logged_is_refused_at_the_call(data, match, listened_to):
    """In the user's own terms, and whether or not anybody listens."""

    def f():
        spoolax.log(data)

    with pytest.raises(LogTypeError, match=match) as caught:
        spoolax.spool(f)() if listened_to else f()
    assert isinstance(caught.value, SpoolaxError)
    assert isinstance(caught.value, TypeError)


def test_steps_and_tags_are_checked():
    """A step is a number with a name that `LogDict` does not use; a tag is a string."""
    with pytest.raises(LogValueError, match="`valid` cannot be the name of a step"):
        spoolax.log({"a": 1.0}, valid=1)
    with pytest.raises(LogValueError, match="`items` cannot"):
        spoolax.log({"a": 1.0}, items=1)
    with pytest.raises(LogTypeError, match="step `i` must be a number"):
        spoolax.log({"a": 1.0}, i=jnp.ones(3))
    with pytest.raises(LogTypeError, match=r"step `run` must be a number.*'first'"):
        spoolax.log({"a": 1.0}, run="first")
    with pytest.raises(LogValueError, match=r"Did you mean `tags=`"):
        spoolax.log({"a": 1.0}, tag="train")
    with pytest.raises(LogValueError, match=r"Did you mean `explicit=`"):
        spoolax.log({"a": 1.0}, explict=True)
    with pytest.raises(LogTypeError, match="`tags` of a log must be strings, not 3"):
        spoolax.log({"a": 1.0}, tags=3)
    with pytest.raises(LogTypeError, match="`tags`"):
        spoolax.log({"a": 1.0}, tags=[1])
    with pytest.raises(LogTypeError, match="`prefix`"):
        spoolax.log({"a": 1.0}, prefix=1)


PARTLY = {"weights": [np.ones(2, np.float32), None], "bias": None, "scale": (None, np.float32(3))}


def of_parts(x):
    """Log a pytree that has nothing in some places, as other libraries' filters make it."""

    def body(x, i):
        spoolax.log({"model": jax.tree.map(lambda leaf: leaf * x, PARTLY), "x": x}, step=i)
        return x + 1, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


def test_a_pytree_may_have_nothing_in_some_places(unoptimized):
    structure = jax.tree.structure(PARTLY)
    _, logs = spoolax.spool(of_parts)(1.0)
    assert jax.tree.structure(logs["model"]) == structure
    np.testing.assert_array_equal(logs["model"]["scale"][1], [3, 6, 9])
    for same in (logs.filter("model"), logs.slice[1:], logs.reduce("mean"), logs + logs):
        assert jax.tree.structure(same["model"]) == structure
    assert (logs + logs)["model"]["weights"][0].shape == (6, 2)
    assert logs.to_pandas()["model['scale'][1]"].tolist() == [3, 6, 9]
    assert "['weights'][0] float32[3,2]" in repr(logs)
    assert "[&#x27;weights&#x27;][0] float32[3,2]" in logs._repr_html_()
    streamed = []
    spoolax.tap(of_parts, streamed.append)(1.0)
    spoolax.flush()
    assert [jax.tree.structure(each["model"]) for each in streamed] == [structure] * 3


def test_where_there_is_nothing_no_key_is_logged():
    assert list(spoolax.log({"a": {"b": None, "c": []}, "x": 1.0})) == ["x"]
    _, logs = spoolax.spool(lambda x: spoolax.log({"a": {"b": None, "c": []}, "x": x}))(1.0)
    assert logs == {"x": 1.0}


def test_unheard_it_leaves_the_fast_path_of_jit_alone():
    """No effect, no equation, and no second compilation when a spool has run in between."""
    calls = 0

    @jax.jit
    def f(x):
        nonlocal calls
        calls += 1
        spoolax.log({"x": x})
        return x + 1

    f(1.0)
    spoolax.spool(lambda x: f(x))(1.0)
    f(1.0)
    assert calls == 2  # Once as it is, once for the spool.
    jaxpr = jax.make_jaxpr(f)(1.0)
    assert "log" not in str(jaxpr)
    assert not jaxpr.effects


def test_importing_is_light_and_changes_nothing():
    """Only JAX and NumPy are loaded, and no setting is touched."""
    code = """if True:
        import logging, os, sys
        import jax, numpy
        settings = dict(jax.config.values), dict(os.environ), list(logging.root.handlers)
        import jax.numpy, jax.extend.core.primitives, jax.experimental.shard_map
        before = set(sys.modules)
        import spoolax
        new = {name.split(".")[0] for name in set(sys.modules) - before} - {"spoolax"}
        assert (dict(jax.config.values), dict(os.environ), logging.root.handlers) == settings
        third_party = new - set(sys.stdlib_module_names)
        assert third_party <= {"jax", "jaxlib", "numpy", "ml_dtypes"}, third_party
        """
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_taylor_series_are_the_same_and_the_primal_values_are_logged():
    def f(x):
        spoolax.log({"x": x})
        y = jax.jit(lambda x: spoolax.log({"square": x * x})["square"])(x)
        return jnp.sin(spoolax.log_grad("slope", y))

    def expand(x):
        return jet(f, (x,), ((1.0, 0.0),))

    out, logs = spoolax.spool(expand)(2.0)
    assert logs == {"x": 2.0, "square": 4.0}
    jax.tree.map(np.testing.assert_array_equal, out, jax.jit(expand)(2.0))
    streamed = []
    out = jet(spoolax.tap(f, streamed.append), (2.0,), ((1.0, 0.0),))
    spoolax.flush()
    assert streamed == [{"x": 2.0}, {"square": 4.0}]
    jax.tree.map(np.testing.assert_array_equal, out, expand(2.0))
    _, logs = spoolax.spool(jax.grad(lambda x: expand(x)[0]))(2.0)
    np.testing.assert_allclose(logs["slope"], np.cos(4.0), rtol=1e-6)
