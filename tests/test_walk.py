"""One walker, one table of anatomies, one stage of windows: what other parts rely on."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import spoolax
from spoolax._jax import anatomy, filtered
from spoolax._listen.options import Options, OptionsDict
from spoolax._walk.counts import Count, loops
from spoolax._walk.interpret import rules
from spoolax.errors import UnsupportedError

SOURCE = Path(spoolax.__file__).parent


def test_every_rule_has_an_anatomy():
    assert set(rules) == {*anatomy._ANATOMIES, filtered.Filtered}


def test_parameters_of_jax_are_read_in_one_place():
    """The fits know elementwise operations by theirs; our own primitive has its entries there."""
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        if not name.startswith("_jax/") and "pointwise" not in name:
            assert set(re.findall(r'params\["(\w+)"\]', path.read_text())) <= {"tree"}, name


def test_a_construct_that_nobody_knows_still_has_its_programs():
    closed = jax.make_jaxpr(lambda x: x + 1)(1.0)

    class Unknown:
        primitive, params = "unknown", {"a": closed, "b": (closed, 3), "c": "text"}

    assert anatomy.anatomy(Unknown).programs == (closed, closed)
    assert type(anatomy.anatomy(Unknown)) is anatomy.Anatomy


def flip(x):
    return jax.lax.fori_loop(0, 3, lambda i, x: -x, x)


def nested(x):
    def outer(x, _):
        x = jax.lax.while_loop(lambda x: x < 3, lambda x: x + 1, x)
        return jax.lax.cond(
            x > 2, lambda x: jax.lax.fori_loop(0, 3, lambda i, x: -x, x), jnp.sin, x
        ), x

    return jax.lax.scan(outer, jax.jit(jnp.cos)(x), length=2)


@pytest.mark.parametrize("construct", ["composite", "jax.lax.platform_dependent"])
def test_where_values_cannot_be_taken_out_the_log_call_is_named(construct):
    def f(x):
        def body(x):
            spoolax.log({"inner": x})
            return x + 1

        made = {
            "composite": lambda x: jax.lax.composite(body, "mine.body")(x),
            "jax.lax.platform_dependent": lambda x: jax.lax.platform_dependent(
                x, cpu=body, tpu=body
            ),
        }
        return made[construct](x)

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(UnsupportedError) as caught:
        spoolax.spool(f)(1.0)
    message = str(caught.value)
    assert re.search(rf"`spoolax.log` of \['inner'\] at \S*test_walk.py:{line} ", message)
    assert re.search(rf"inside `{construct}`, which is called at \S*test_walk.py:", message)
    assert "log them outside it" in message


def test_a_count_looks_at_every_depth():
    """And not into what it has counted, nor into what is closed to it."""
    (eqn,) = jax.make_jaxpr(jax.jit(nested))(1.0).eqns
    sines = Count(lambda eqn: str(eqn.primitive) in ("sin", "cos"))
    assert sines(eqn) == 2
    assert loops(eqn) == 1
    scan = next(e for e in eqn.params["jaxpr"].eqns if str(e.primitive) == "scan")
    assert loops.within(anatomy.Scan.of(scan).body) == 2
    closed = Count(
        lambda eqn: str(eqn.primitive) == "sin", closed=lambda e: str(e.primitive) == "cond"
    )
    assert closed(eqn) == 0


@pytest.mark.parametrize("options", [{}, {"interval": 3}, {"reduce": "mean"}])
def test_collecting_puts_no_conditional_into_a_loop(options):
    """On a GPU, each one is a wait for the device in every iteration."""

    def f(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(10))[0]

    spooled = spoolax.spool(f, **{"interval": 2, "reduce": "std", **options})
    assert "cond[" not in str(jax.make_jaxpr(spooled)(1.0))


def test_options_of_listeners_are_the_same_everywhere():
    """`tap` and `spool` have all of them, with the defaults of `Options`."""
    fields = {field.name: field.default for field in dataclasses.fields(Options)}
    assert set(typing.get_type_hints(OptionsDict)) == set(fields)
    for function in (spoolax.tap, spoolax.spool):
        parameters = inspect.signature(function).parameters
        assert {name: parameters[name].default for name in fields} == fields
