"""Entries as trackers get them: scalars, histograms, images and texts, as lines of JSON."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_tracker import scalars_only
from hypothesis import given
from hypothesis import strategies as st

import spoolax
from spoolax.errors import (
    LogTypeError,
)
from spoolax.loggers._protocol.record import Record
from spoolax.loggers.trackers._config import plain_config
from spoolax.loggers.trackers._rows.builder import RowBuilder
from spoolax.loggers.trackers._rows.row import row_from_json, row_to_json, steps_to_log

pytestmark = pytest.mark.once


def row_of(values, **about):
    options = {name: about.pop(name) for name in ("histograms", "images") if name in about}
    builder = RowBuilder(**{"histograms": 16, "images": (), **options})
    return builder.row(Record(**{"step": 3, "values": values, **about}))


def test_numbers_of_every_kind_become_scalars():
    values = {
        "python": 1.5,
        "whole": 2**60,
        "truth": True,
        "numpy": np.float32(0.5),
        "array": np.array(7),
        "bfloat16": np.asarray(jnp.bfloat16(1.5)),
        "float8": np.asarray(jnp.float8_e4m3fn(0.5)),
        "int4": np.asarray(jnp.int4(-3)),
        "complex": np.complex64(1 + 2j),
        "nan": np.nan,
        "inf": np.float32(-np.inf),
    }
    scalars = row_of(values).scalars
    assert np.isnan(scalars.pop("nan"))
    assert scalars == {
        "python": 1.5,
        "whole": 2**60,
        "truth": True,
        "numpy": 0.5,
        "array": 7,
        "bfloat16": 1.5,
        "float8": 0.5,
        "int4": -3,
        "complex/real": 1.0,
        "complex/imag": 2.0,
        "inf": -np.inf,
    }
    assert all(type(x) in (int, float, bool) for x in scalars.values())


def test_small_arrays_have_a_curve_for_each_number_and_large_ones_a_histogram():
    numbers = np.random.default_rng(0).normal(size=1000)
    row = row_of({"few": np.arange(4).reshape(2, 2), "many": numbers})
    assert row.scalars == {"few/0/0": 0, "few/0/1": 1, "few/1/0": 2, "few/1/1": 3}
    counted = row.histograms["many"]
    assert sum(counted.counts) == 1000
    assert len(counted.edges) == len(counted.counts) + 1
    assert (counted.low, counted.high) == (numbers.min(), numbers.max())
    assert counted.total == pytest.approx(numbers.sum())
    assert not row_of({"few": np.arange(4)}, histograms=3).scalars
    four = row_of({"many": numbers}, histograms=None)
    assert not four.histograms
    assert four.scalars == {
        "many/mean": numbers.mean(),
        "many/std": numbers.std(),
        "many/min": numbers.min(),
        "many/max": numbers.max(),
    }


@pytest.mark.parametrize("value", [0.0, 1e300, -1e-300, 5e-324, 3.7])
def test_histograms_of_equal_numbers_count_them(value):
    counted = row_of({"x": np.full(100, value)}).histograms["x"]
    assert sum(counted.counts) == 100
    assert counted.low == counted.high == value
    assert np.all(np.diff(counted.edges) > 0)


def test_what_is_not_finite_is_counted_besides_a_histogram():
    row = row_of({"x": np.array([np.nan, np.inf, *range(20)])})
    assert sum(row.histograms["x"].counts) == 20
    assert row.scalars == {"x/nonfinite": 2}
    assert row_of({"x": np.full(20, np.nan)}).scalars == {"x/nonfinite": 20}


def test_images_are_bytes_or_named_or_tagged():
    grey = np.linspace(0, 1, 12).reshape(3, 4)
    colours = np.random.default_rng(0).integers(0, 256, (5, 6, 3)).astype(np.uint8)
    row = row_of({"a": colours, "b": colours[:, :, 0], "c": np.array([1, 2], np.uint8)})
    assert list(row.images) == ["a", "b"]
    np.testing.assert_array_equal(row.images["a"], colours)
    assert row.scalars == {"c/0": 1, "c/1": 2}
    named = row_of({"seen/grey": grey, "other": grey}, images="seen/*")
    assert list(named.images) == ["seen/grey"]
    np.testing.assert_array_equal(named.images["seen/grey"], np.round(255 * grey))
    assert list(row_of({"grey": grey[:, :, None]}, tags=("image",)).images) == ["grey"]
    odd = np.array([[np.nan, 2.0], [-1.0, np.inf]])
    assert row_of({"x": odd}, images="x").images["x"].tolist() == [[0, 255], [0, 255]]


def test_what_is_not_an_image_is_logged_as_numbers_with_one_warning(caplog):
    builder = RowBuilder(16, "x")
    for _ in range(2):
        row = builder.row(Record(0, {"x": np.zeros((3, 8, 8)), "loss": 1.0}))
        assert (list(row.histograms), row.scalars) == (["x"], {"loss": 1.0})
    (told,) = caplog.records
    assert "`images` includes 'x', but it is float64[3,8,8]" in told.message
    with pytest.raises(LogTypeError, match="`images` takes names"):
        RowBuilder(16, 3)


@pytest.mark.parametrize("numbers", [[1e200] * 20, [1e308] * 20, [-1.7e308, 1.7e308] * 10])
def test_histograms_of_huge_numbers_do_not_spoil_the_row(numbers):
    row = row_of({"w": np.array(numbers), "loss": 1.0})
    assert sum(row.histograms["w"].counts) == 20
    assert np.isfinite(row.histograms["w"].edges).all()
    np.testing.assert_equal(row_from_json(row_to_json(row))._asdict(), row._asdict())


def test_values_whose_names_meet_are_all_kept():
    row = row_of({"w": np.array([1.0, 2.0]), "w/0": 7.0, "z": 1j, "z/real": 9.0})
    assert row.scalars == {
        "w/0": 1.0,
        "w/1": 2.0,
        "value/w/0": 7.0,
        "z/real": 0.0,
        "z/imag": 1.0,
        "value/z/real": 9.0,
    }


def test_values_of_all_kinds_may_have_the_name_of_a_step_or_of_a_summary():
    image, many = np.eye(4, dtype=np.uint8), np.array([np.nan, *range(20)])
    assert row_of({"step": "hello"}).texts == {"value/step": "hello"}
    assert list(row_of({"step": image}).images) == ["value/step"]
    assert list(row_of({"step": np.arange(20.0)}).histograms) == ["value/step"]
    row = row_of({"w/nonfinite": 7.0, "w": many})
    assert row.scalars == {"w/nonfinite": 7.0, "value/w/nonfinite": 1}
    row = row_of({"w/mean": 7.0, "w": np.arange(20.0)}, histograms=None)
    assert (row.scalars["w/mean"], row.scalars["value/w/mean"]) == (7.0, 9.5)


def test_what_cannot_be_encoded_is_spelled_out():
    row = row_of({"a\ud800": 1.0, "text": "b\udfff", "void": np.void(b"ab"), "huge": 10**5000})
    assert row.scalars == {"a\\ud800": 1.0, "huge": np.inf}
    assert row.texts["text"] == "b\\udfff"
    assert plain_config({"path": Path("v\ud800")}) == {"path": "v\\ud800"}
    assert plain_config({"k\ud800": ["v\ud800"]}) == {"k\\ud800": ["v\\ud800"]}
    row_to_json(row).encode()


def test_lanes_are_neither_height_nor_width(make, site):
    def program(x):
        spoolax.log({"b": x.astype(jnp.uint8)})

    with make(images="b") as logger:
        logger.tap(jax.vmap(jax.vmap(program)))(jnp.arange(6).reshape(2, 3))
        logger.tap(program)(jnp.zeros((4, 5)))
    lanes, alone = site.runs["one"].rows
    assert lanes.scalars == {f"b/{i}/{j}": 3 * i + j for i in range(2) for j in range(3)}
    assert alone.images["b"].shape == (4, 5)


def test_steps_that_are_not_always_integers_are_values_throughout():
    builder = RowBuilder(16, ())
    found = [builder.row(Record(step, {"x": 1.0}, {"t": step})) for step in (0.5, 1, 1.5)]
    assert [steps_to_log(row) for row in found] == [{"t": 0.5}, {"t": 1.0}, {"t": 1.5}]
    assert [steps_to_log(row_from_json(row_to_json(row))) for row in found] == list(
        map(steps_to_log, found)
    )
    assert steps_to_log(row_of({"x": 1}, steps={"t": 3, "n": 2})) == {"n": 2}
    lanes = row_of({"x": np.arange(4.0)}, step=2, steps={"step": np.arange(4)})
    assert (lanes.step, lanes.steps) == (2, {"step": 2})  # The last one that logged.


def test_rows_of_one_step_can_have_distinct_times():
    builder = RowBuilder(16, (), distinct_times=True)
    found = [builder.row(Record(step, {"x": 1.0}, time=5.0)) for step in [0, 0, 1] * 10_000]
    assert (
        len({(row.step, round(1000 * row.time)) for row in found}) == len(found) * 2 // 3 + 10_000
    )
    assert found[2].time == 5.0


def test_lanes_that_did_not_log_are_left_out():
    row = row_of({"x": np.arange(3.0)}, valid={"x": np.array([True, False, True])})
    assert row.scalars == {"x/0": 0.0, "x/2": 2.0}
    lanes = np.arange(40) % 2 == 0
    row = row_of({"x": np.ones((40, 2))}, valid={"x": lanes})
    assert sum(row.histograms["x"].counts) == 40


def test_steps_have_names_and_a_value_of_the_same_name_is_kept():
    row = row_of({"x": 1}, steps={"episode": 2, "step": np.int32(7)}, step=7)
    assert (row.step, row.axis, row.steps) == (7, "step", {"episode": 2, "step": 7})
    row = row_of({"x": 1}, steps={"episode": 2}, step=2)
    assert (row.axis, row.steps) == ("episode", {"episode": 2})
    assert row_of({"x": 1}).steps == {"step": 3}
    row = row_of({"step": 5, "x": 1}, steps={"step": 3})
    assert row.scalars == {"value/step": 5, "x": 1}
    assert row_of({"step": 3, "x": 1}, steps={"step": 3}).scalars == {"x": 1}


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1, max_size=8)


@given(
    st.dictionaries(NAMES, st.floats() | st.integers() | st.booleans()),
    st.dictionaries(NAMES, st.text()),
)
def test_a_line_gives_back_the_row(scalars, texts):
    row = row_of({**texts, **scalars, "w": np.arange(30.0), "i": np.eye(4, dtype=np.uint8)})
    line = row_to_json(row)
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = row_from_json(line)
    np.testing.assert_equal(again._asdict(), row._asdict())


def without_names(x):
    def body(x, i):
        spoolax.log({"x": x, "_y": 2 * x})
        return x + 0.5, None

    def outer(x, i):
        spoolax.log({"z": x}, time=x)
        return jax.lax.scan(body, x, jnp.arange(3))[0], None

    return jax.lax.scan(outer, x, jnp.arange(3))[0]


def in_lanes(x):
    def lane(x):
        def body(x):
            spoolax.log({"x": x, "step": 2 * x}, step=x)
            return x + 1

        return jax.lax.while_loop(lambda x: x < 5, body, x)

    return jax.vmap(lane)(x + jnp.arange(3.0))


@pytest.mark.parametrize("program", [scalars_only, without_names, in_lanes])
def test_many_entries_at_once_become_the_same_rows(make, site, program):
    with make(name="many") as logger:
        assert logger.takes_many
        logger.tap(program)(jnp.float32(1))
    with make(name="each", view=lambda logs: logs) as logger:
        logger.tap(program)(jnp.float32(1))
    # Entries of several `log` calls come in batches of each.
    many, each = (
        sorted(
            (row._replace(time=0)._asdict() for row in site.runs[name].rows),
            key=lambda row: sorted(row["scalars"]),
        )
        for name in ("many", "each")
    )
    assert len(many) > 2
    np.testing.assert_equal(many, each)
