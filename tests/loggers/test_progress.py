"""Progress bars for compiled programs."""

import functools
import io
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from logger_cases import Terminal, five

import spoolax
from spoolax import errors


def shown(f, *args, **options):
    file = io.StringIO()
    out = spoolax.progress(f, file=file, **options)(*args)
    spoolax.flush()
    return out, file.getvalue()


def test_a_scan_has_a_total_and_a_while_loop_a_counter():
    def f(x):
        x = lax.scan(lambda x, _: (jnp.sin(x), x), x, None, length=30)[0]
        return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, jnp.cos(c[1])), (0, x))[1]

    out, text = shown(f, 1.0)
    assert out.tobytes() == jax.jit(f)(1.0).tobytes()
    first, second = text.splitlines()
    assert first.startswith("f scan[0]: 100%")
    assert "30/30" in first
    assert second.startswith("f while[1]: 7it")


def test_a_fraction_gives_a_while_loop_a_bar():
    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    def drawn(f, *args, **options):
        """What a bar in a terminal showed, one after the other."""
        terminal = Terminal()
        tapped = spoolax.progress(f, file=terminal, **options)
        tapped._sink.latency = 0  # Every iteration by itself.
        tapped(*args)
        return re.findall(r"(\d+)%", terminal.getvalue())

    assert {"10", "50", "80"} < set(drawn(f, 8, fraction=lambda carry: carry[0] / 10))
    lanes = jax.vmap(f)
    shown = drawn(lanes, jnp.array([2, 10]), fraction=lambda carry: carry[0].min() / 10)
    assert "20" in shown
    assert "50" not in shown


def test_a_while_loop_that_has_converged_is_done():
    """Whatever its fraction was at the end, and how many iterations it took."""

    def f(n):
        n = lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)
        return lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    _, text = shown(f, 62, fraction=lambda carry: carry[0] / 100)
    first, second = text.splitlines()
    assert first.startswith("f while[0]: 100%")
    assert second.startswith("f while[1]: 100%")
    assert first.endswith("62 iterations]")


class Trainer:
    def __call__(self, x):
        return self.fit(x)

    def fit(self, x):
        return lax.fori_loop(0, 3, lambda i, x: x + 1, x)


def test_bars_are_named_after_what_runs():
    """Not after what it is wrapped in."""
    fit = Trainer().fit
    for f, name in [
        (functools.partial(functools.partial(fit)), "fit"),
        (jax.jit(functools.partial(fit)), "fit"),
        (fit, "fit"),
        (Trainer(), "Trainer"),
        (jax.jit(Trainer()), "Trainer"),
    ]:
        _, text = shown(f, 1.0)
        assert text.startswith(f"{name} scan[0]: 100%"), text


def test_lanes_share_a_bar_and_maps_have_one():
    def f(x):
        return lax.map(jnp.sin, x).sum()

    x = jnp.ones((4, 6))
    file = io.StringIO()
    out = jax.jit(jax.vmap(spoolax.progress(f, file=file)))(x)
    spoolax.flush()
    assert out.tobytes() == jax.jit(jax.vmap(f))(x).tobytes()
    (line,) = file.getvalue().splitlines()
    assert "6/6" in line


def test_bars_nest_if_the_inner_loop_is_slow():
    from spoolax._watch import progress as _progress

    def f(x):
        def outer(x, _):
            return lax.scan(lambda x, _: (x + 1, None), x, None, length=4)[0], None

        return lax.scan(outer, x, None, length=3)[0]

    file, now = io.StringIO(), 0.0

    def clock():
        nonlocal now
        now += 0.4
        return now

    bars = _progress.Bars("f", file, clock)
    told = []

    def tell(logs):
        told.append(logs)
        bars(logs)

    tapped = spoolax.progress(f)
    tapped._sink.callback = tell
    tapped._sink.latency = 0  # Every iteration by itself.
    assert tapped(0) == 12
    spoolax.flush()
    text = file.getvalue()
    assert "f scan[0]: 100%" in text
    assert "3/3" in text
    assert "\n└ scan[0]/scan[0]:" in "\n" + text


def test_no_loop_no_bar():
    with pytest.warns(errors.NothingSelectedWarning, match="no JAX loop"):
        shown(lambda x: x + 1, 1.0)
    with pytest.raises(ValueError, match="depth"):
        spoolax.progress(five, depth=0)


def test_bars_are_closed_when_the_program_fails():
    def fails(i):
        if i == 5:
            raise ValueError("the program fails")
        return i

    def f(x):
        def body(x, i):
            return x + jax.pure_callback(fails, i, i), None

        return lax.scan(body, x, jnp.arange(10))[0]

    file = io.StringIO()
    tapped = spoolax.progress(f, file=file)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program fails"):
        jax.block_until_ready(tapped(1))
    spoolax.flush()
    assert "5/10" in file.getvalue()
