"""Where people slip, a warning points at their line; where silence is normal, there is none."""

import contextlib
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest

import spoolax
from spoolax.errors import NothingSelectedWarning, UnheardLogWarning
from spoolax.fit import curve_fit
from spoolax.loggers import CompositeLogger, PrintLogger, RingBufferLogger

pytestmark = [pytest.mark.usefixtures("unoptimized"), pytest.mark.filterwarnings("error")]


def silent(x):
    return 2 * x


def loud(x):
    spoolax.log({"x": x}, tags="train")
    return 2 * x


def tapped(f, **options):
    return spoolax.tap(f, lambda logs: None, **options)


@contextlib.contextmanager
def warned(category, match):
    """The warning is about a line of this file."""
    with pytest.warns(category, match=match) as caught:
        yield
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("listen", [spoolax.spool, tapped])
def test_a_function_that_logs_nothing_is_named(listen):
    """Once, in the line that calls it, also inside jit."""
    jitted = jax.jit(silent)
    with pytest.warns(NothingSelectedWarning, match="`silent` logs nothing") as caught:
        for _ in range(2):
            listen(jitted)(1.0)
    line = sys._getframe().f_lineno - 1
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]
    with warned(NothingSelectedWarning, "`silent` logs nothing"):
        jax.jit(listen(silent))(1.0)


def test_loggers_say_so_too():
    """They are the most common listeners."""
    with RingBufferLogger(3) as logger, warned(NothingSelectedWarning, "`silent` logs nothing"):
        logger.tap(jax.jit(silent))(1.0)


def test_a_log_grad_that_is_not_differentiated_is_explained():
    """The listener has to be outside of `grad`."""

    def f(x):
        return spoolax.log_grad("dx", x) ** 2

    with warned(NothingSelectedWarning, r"backward pass.*spool\(jax.grad\(f\)\)"):
        spoolax.spool(f)(1.0)
    assert spoolax.spool(jax.grad(f))(3.0)[1]["dx"] == 6.0


def test_what_an_inner_listener_takes_is_said():
    """`keep_logs=True` leaves it for the outer one."""
    with warned(NothingSelectedWarning, r"a `tap` inside takes \['x'\].*keep_logs=True"):
        spoolax.spool(tapped(loud))(1.0)
    with warned(NothingSelectedWarning, "logs nothing.*`spool` inside.*keep_logs=True"):
        tapped(spoolax.spool(loud))(1.0)
    assert spoolax.spool(tapped(loud, keep_logs=True))(1.0)[1] == {"x": 1.0}


def test_filters_that_select_nothing_say_something_else():
    """What there is to select."""
    with warned(NothingSelectedWarning, r"argnames=\('y',\) selects none of the keys \['x'\]"):
        spoolax.spool(loud, "y")(1.0)
    with warned(NothingSelectedWarning, "explicit=True"):
        spoolax.spool(lambda x: spoolax.log({"x": x}, explicit=True) and x)(1.0)
    with warned(NothingSelectedWarning, "selects nothing"):
        spoolax.watch(silent, primitives="cholesky")(1.0)


def test_silence_that_is_normal_is_not_remarked_on():
    """Some calls of a function that logs; watching; rules that log later; drivers."""

    def sometimes(x, log):
        if log:
            spoolax.log({"x": x})
        return x

    for log in (True, False):
        tapped(sometimes)(1.0, log)

    spoolax.watch_nan(silent)(1.0)
    tapped(spoolax.watch_nan(loud))(1.0)

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (spoolax.log({"g": g}) and g,))
    spoolax.spool(lambda x: f(x))(1.0)

    x = jnp.arange(4.0)
    fit = spoolax.spool(curve_fit)(lambda x, a: a * x, x, 3 * x, p0=[1.0])
    assert fit[1]


def test_a_log_in_a_block_with_a_logger_is_pointed_at():
    """The logger would have got `logger.log`, or what is inside of a tapped function."""
    for make in (PrintLogger, lambda: CompositeLogger(PrintLogger(), RingBufferLogger(3))):
        with make(), warned(UnheardLogWarning, r"Nobody listens.*logger.log\(values, step\)"):
            spoolax.log({"x": 1.0})
    with contextlib.ExitStack() as stack:
        stack.enter_context(PrintLogger())
        with warned(UnheardLogWarning, "PrintLogger that is open"):
            spoolax.log({"x": 1.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with PrintLogger():
            for i in range(3):
                spoolax.log({"x": i})
    assert len(caught) == 1


def test_nobody_has_to_listen_elsewhere():
    """Functions that log can be called anywhere, and the block can be over."""
    with PrintLogger():
        loud(1.0)
        jax.jit(loud)(1.0)
    spoolax.log({"x": 1.0})
    spoolax.flush()
