"""What is compiled otherwise for other platforms, run here: it logs what it logs on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import COVER, f_of
from jax import lax
from programs import PROGRAMS, XS

import spoolax
from spoolax._tap._meaning import looping, reeling

pytestmark = pytest.mark.usefixtures("unoptimized")


@pytest.fixture
def blocks(monkeypatch):
    """Have loops run in blocks of at most as many iterations as the fixture is called with."""

    def of(most):
        monkeypatch.setattr(reeling, "waits_for_loops", lambda: True)
        monkeypatch.setattr(looping, "MOST_IN_BLOCK", most)
        monkeypatch.setattr(looping, "BLOCK_SECONDS", 1000.0)

    return of


def entries(f, *args, **options):
    """What a tap hears, and what comes out: at first, and once it is known how long that takes."""
    seen, heard = [], []
    tapped = spoolax.tap(f, seen.append, **options)
    for _ in range(4):
        seen.clear()
        out = tapped(*args)
        spoolax.flush()
        heard.append([(logs.origin.path, logs.origin.iteration, dict(logs)) for logs in seen])
    for later in heard[1:]:
        same(later, heard[0])
    return heard[0], out


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if not isinstance(x, str):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("name", [name for name in COVER if not PROGRAMS[name].keys])
def test_blocks_log_what_chunks_log(name, most, blocks):
    """In the same order, with the same origins, and with the same outputs."""
    want = entries(f_of(name), XS)
    blocks(most)
    same(entries(f_of(name), XS), want)


@pytest.mark.parametrize("name", [name for name in COVER if not PROGRAMS[name].keys])
def test_slow_calls_log_what_fast_ones_log(name, monkeypatch):
    """Where the host cannot be called with plain arrays, `io_callback` does it."""
    want = entries(f_of(name), XS)
    monkeypatch.setattr("spoolax._jax.host_call.has_fast_calls", lambda platforms: False)
    same(entries(f_of(name), XS), want)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("options", [{}, {"interval": 3}, {"interval": 3, "reduce": "mean"}])
def test_lengths_that_are_no_multiple_of_the_block_are_complete(length, options, blocks):
    """The rest runs in chunks. In nested loops, no reel is overrun between the two."""

    def nested(x):
        def inner(x, i):
            spoolax.log({"inner": x}, i=i)
            return x + 1.0, 2.0 * x

        def outer(x, _):
            x, ys = lax.scan(inner, x, jnp.arange(length), reverse=True)
            spoolax.log({"outer": x})
            return x, ys

        return lax.scan(outer, x, length=length)

    want = entries(nested, 0.0, **options)
    blocks(8)
    same(entries(nested, 0.0, **options), want)


def test_a_reel_is_sent_before_it_is_overrun(blocks, monkeypatch):
    """Also in a program that would not call the host otherwise."""
    monkeypatch.setattr("spoolax._tap._reels.reel.MOST_ROWS", 10)
    monkeypatch.setattr("spoolax._tap._reels.reel.MOST_BYTES_OF_ALL", 0)

    def nested(x):
        def inner(x, _):
            spoolax.log({"x": x})
            return x + 1.0, None

        def outer(x, _):
            return lax.scan(inner, x, length=7)[0], None

        return lax.scan(outer, x, length=50)[0]

    blocks(4)
    heard, _ = entries(nested, 0.0)
    assert [float(logs["x"]) for _, _, logs in heard] == list(range(350))
