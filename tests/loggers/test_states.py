"""What can be logged in a Python loop, and how views take values out of it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spoolax import testing
from spoolax.loggers._protocol import view as _view


def test_values_of_one_name_are_refused():
    with testing.capture() as logger, pytest.raises(ValueError, match="called 'a/b'"):
        logger.log({"a": {"b": 1.0}, "a/b": 2.0}, 0)


def test_large_arrays_of_numpy_are_counted():
    view = _view.View(None)
    assert view.copies({"x": np.zeros(1000), "y": 1.0}).nbytes == 8008


def test_states_are_any_pytree_of_numbers():
    class Inner(NamedTuple):
        b: object
        a: object

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        x: object
        rest: object

    state = State(jnp.ones(2), {"z": Inner(1, np.float32(2)), "a": [True, None, "text"]})
    with testing.capture() as logger:
        logger.log(state, 0)
        logger.log(jnp.float32(3), 1)
    values = {name: np.asarray(x).tolist() for name, x in logger.records[0].values.items()}
    assert values == {
        "x": [1, 1],
        "rest/z/b": 1,
        "rest/z/a": 2,
        "rest/a/0": True,
        "rest/a/2": "text",
    }
    assert list(logger.records[1].values) == ["value"]


def test_views_are_compiled_if_that_changes_nothing():
    calls = []

    def view(state):
        calls.append(1)
        return {"z": state["x"].sum(), "a": {"first": state["x"][0]}}

    with testing.capture(view=view) as logger:
        for i in range(5):
            logger.log({"x": jnp.arange(3.0) + i}, i)
    assert len(calls) == 1
    assert list(logger.records[0].values) == ["z", "a/first"], "in the order of the view"
    assert logger.values("z") == [3.0 + 3 * i for i in range(5)]
    for view in (
        lambda state: {"x": float(state["x"])},  # It reads numbers,
        lambda state: {"x": state["x"], "i": len(calls)},  # returns others than arrays,
        lambda state: {"x": np.asarray(state["x"])},
    ):
        with testing.capture(view=view) as logger:
            for i in range(3):
                calls.append(1)
                logger.log({"x": jnp.float32(i)}, i)
        assert logger.values("x") == [0, 1, 2]
        if "i" in logger.records[0].values:
            first, *_, last = logger.values("i")
            assert last == first + 2
    with testing.capture(view=lambda state: state) as logger:
        logger.log({"x": 0.1}, 0)  # and this one would lose digits.
    assert logger.values("x") == [0.1]


def test_a_state_of_something_else_is_refused_with_the_way_out():
    with testing.capture() as logger:
        with pytest.raises(TypeError, match="give the logger a `view`"):
            logger.log(object(), 0)
        with pytest.raises(TypeError, match="'a/b'"):
            logger.log({"a": {"b": object()}}, 0)


def test_a_state_that_was_donated_is_refused_with_the_way_out():
    """JAX says so in one way if such states were logged before, and in another if they were not."""
    for shape in ((3,), (3,), (29,)):
        x = jnp.ones(shape)
        jax.jit(lambda x: x + 1, donate_argnums=0)(x)
        with testing.capture() as logger:
            logger.log({"x": jnp.ones(3)}, 0)
            with pytest.raises(ValueError, match="'x' has been donated"):
                logger.log({"x": x}, 0)


def test_log_is_not_for_traced_functions():
    def f(x):
        logger.log({"x": x}, 0)
        return x

    with testing.capture() as logger, pytest.raises(TypeError, match=r"use `spoolax\.log`"):
        jax.jit(f)(1.0)


def test_arrays_on_several_devices_and_numpy_arrays_are_copied():
    there = jax.device_put(jnp.arange(3), jax.devices()[1])
    mine = np.zeros(3)
    with testing.capture() as logger:
        logger.log({"here": jnp.arange(2), "there": there, "mine": mine}, 0)
        mine += 1
    assert logger.values("mine") == [[0, 0, 0]]
    assert logger.values("there") == [[0, 1, 2]]


@pytest.mark.parametrize("devices", [1, 2])
def test_arrays_are_copied_before_they_are_donated(devices):
    """Small and large ones, also if they are on several devices and cannot be packed."""
    step = jax.jit(lambda x: x + x, donate_argnums=0)
    numbers = [np.arange(3), np.arange(1000)]
    state = {f"x{i}": jax.device_put(x, jax.devices()[i % devices]) for i, x in enumerate(numbers)}
    with testing.capture() as logger:
        for i in range(3):
            logger.log(state, i)
            state = {name: step(x) for name, x in state.items()}
    for i, x in enumerate(numbers):
        assert logger.values(f"x{i}") == [(x * factor).tolist() for factor in (1, 2, 4)]
