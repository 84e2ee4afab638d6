"""What trackers have in common: rows, the file they wait in, and the thread that sends them."""

import dataclasses
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spoolax
from spoolax import loggers
from spoolax._tap.host import host
from spoolax.errors import (
    LogFileError,
    LoggerStateError,
    LogTypeError,
    LogValueError,
    TrackerError,
    UnsentWarning,
)
from spoolax.loggers import TrackerLogger, replay
from spoolax.loggers._protocol.record import Record
from spoolax.loggers.trackers._config import flat_config, plain_config
from spoolax.loggers.trackers._rows import Rows, as_line, from_line, other_steps
from spoolax.loggers.trackers._spill import Spill
from spoolax.testing import LoggerContract


class Site:
    """Where a tracker keeps its runs. It can be away, slow, or picky."""

    def __init__(self):
        self.runs = {}
        self.is_away = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.calls = 0

    def ask(self):
        self.calls += 1
        assert self.answers.wait(20)
        if self.is_away.is_set():
            raise ConnectionError("nobody is there")


class ToSite(TrackerLogger):
    """A tracker in memory."""

    most = 3

    def load(self):
        self.check_known(["site"], "this one")
        self.site = self.options["site"]

    def connect(self):
        self.site.ask()
        self.rows, self.ended = [], None
        self.site.runs[self.name] = self

    def send(self, rows):
        self.site.ask()
        if any("bad" in row.scalars for row in rows):
            raise ValueError("this is no good")
        self.rows += rows

    def finish(self, failed):
        self.site.ask()
        self.ended = "failed" if failed else "well"

    def _native(self):
        return self.rows

    def numbers(self, name="x"):
        return [row.scalars[name] for row in self.rows if name in row.scalars]


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def make(site, tmp_path):
    def make(**words):
        return ToSite(**{"name": "one", "directory": tmp_path, "site": site, **words})

    return make


def waiting_files(directory):
    return sorted((directory / "spoolax-unsent").glob("*.jsonl"))


class TestContract(LoggerContract):
    def make(self, directory):
        return ToSite(site=Site(), directory=directory)

    def read(self, logger):
        return [(row.step, row.scalars) for row in logger.rows]


def row_of(values, **about):
    options = {name: about.pop(name) for name in ("histograms", "images") if name in about}
    rows = Rows(**{"histograms": 16, "images": (), **options})
    return rows.row(Record(**{"step": 3, "values": values, **about}))


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


def test_what_is_no_image_is_logged_as_numbers_and_said_once(caplog):
    rows = Rows(16, "x")
    for _ in range(2):
        row = rows.row(Record(0, {"x": np.zeros((3, 8, 8)), "loss": 1.0}))
        assert (list(row.histograms), row.scalars) == (["x"], {"loss": 1.0})
    (told,) = caplog.records
    assert "'x' is to be shown as an image, but is float64 of shape (3, 8, 8)" in told.message
    with pytest.raises(LogTypeError, match="`images` are names"):
        Rows(16, 3)


@pytest.mark.parametrize("numbers", [[1e200] * 20, [1e308] * 20, [-1.7e308, 1.7e308] * 10])
def test_histograms_of_huge_numbers_do_not_spoil_the_row(numbers):
    row = row_of({"w": np.array(numbers), "loss": 1.0})
    assert sum(row.histograms["w"].counts) == 20
    assert np.isfinite(row.histograms["w"].edges).all()
    np.testing.assert_equal(from_line(as_line(row))._asdict(), row._asdict())


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


def test_values_of_all_kinds_may_be_called_as_a_step_or_as_what_is_said_of_others():
    image, many = np.eye(4, dtype=np.uint8), np.array([np.nan, *range(20)])
    assert row_of({"step": "hello"}).texts == {"value/step": "hello"}
    assert list(row_of({"step": image}).images) == ["value/step"]
    assert list(row_of({"step": np.arange(20.0)}).histograms) == ["value/step"]
    row = row_of({"w/nonfinite": 7.0, "w": many})
    assert row.scalars == {"w/nonfinite": 7.0, "value/w/nonfinite": 1}
    row = row_of({"w/mean": 7.0, "w": np.arange(20.0)}, histograms=None)
    assert (row.scalars["w/mean"], row.scalars["value/w/mean"]) == (7.0, 9.5)


def test_what_nobody_can_write_is_spelled_out():
    row = row_of({"a\ud800": 1.0, "text": "b\udfff", "void": np.void(b"ab"), "huge": 10**5000})
    assert row.scalars == {"a\\ud800": 1.0, "huge": np.inf}
    assert row.texts["text"] == "b\\udfff"
    assert plain_config({"path": Path("v\ud800")}) == {"path": "v\\ud800"}
    assert plain_config({"k\ud800": ["v\ud800"]}) == {"k\\ud800": ["v\\ud800"]}
    as_line(row).encode()


def test_lanes_are_neither_height_nor_width(make, site):
    def program(x):
        spoolax.log({"b": x.astype(jnp.uint8)})

    with make(images="b") as logger:
        logger.tap(jax.vmap(jax.vmap(program)))(jnp.arange(6).reshape(2, 3))
        logger.tap(program)(jnp.zeros((4, 5)))
    lanes, alone = site.runs["one"].rows
    assert lanes.scalars == {f"b/{i}/{j}": 3 * i + j for i in range(2) for j in range(3)}
    assert alone.images["b"].shape == (4, 5)


def test_steps_that_are_not_always_whole_are_values_throughout():
    rows = Rows(16, ())
    found = [rows.row(Record(step, {"x": 1.0}, {"t": step})) for step in (0.5, 1, 1.5)]
    assert [other_steps(row) for row in found] == [{"t": 0.5}, {"t": 1.0}, {"t": 1.5}]
    assert [other_steps(from_line(as_line(row))) for row in found] == list(map(other_steps, found))
    assert other_steps(row_of({"x": 1}, steps={"t": 3, "n": 2})) == {"n": 2}
    lanes = row_of({"x": np.arange(4.0)}, step=2, steps={"step": np.arange(4)})
    assert (lanes.step, lanes.steps) == (2, {"step": 2})  # The last one that logged.


def test_rows_of_one_step_can_be_kept_apart():
    rows = Rows(16, (), apart=True)
    found = [rows.row(Record(step, {"x": 1.0}, time=5.0)) for step in [0, 0, 1] * 10_000]
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
    line = as_line(row)
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    again = from_line(line)
    np.testing.assert_equal(again._asdict(), row._asdict())


def test_a_configuration_becomes_plain():
    @dataclasses.dataclass
    class Optimizer:
        lr: float = 1e-3
        betas: tuple = (0.9, 0.999)

    config = {
        "optimizer": Optimizer(),
        "size": np.int64(3),
        "scale": jnp.bfloat16(0.5),
        "key": jax.random.key(1),
        "activation": jax.nn.relu,
        "big": np.zeros((50, 50)),
        "nothing": None,
    }
    plain = plain_config(config)
    assert plain["optimizer"] == {"lr": 1e-3, "betas": [0.9, 0.999]}
    assert (plain["size"], plain["scale"], plain["key"]) == (3, 0.5, [0, 1])
    assert plain["activation"] == "relu"
    assert plain["big"] == "float64[50, 50]"
    json.dumps(plain)
    assert flat_config(plain)["optimizer.lr"] == 1e-3
    with pytest.raises(LogTypeError, match="a dictionary or a dataclass, not 3"):
        plain_config(3)


def test_a_file_of_rows_survives_being_cut(tmp_path):
    path = tmp_path / "rows.jsonl"
    spill = Spill(path, {"name": "é"})
    spill.append("".join(f'{{"_step": {i}}}\n' for i in range(10)), 10)
    lines = spill.read(4)
    assert [json.loads(line)["_step"] for line in lines] == [0, 1, 2, 3]
    spill.done(lines)
    # What a killed process leaves behind: half a line, and no more.
    data = path.read_bytes() + b'{"_st'
    with pytest.raises(LogFileError, match="in use"):
        Spill(path)
    other = tmp_path / "other.jsonl"
    other.write_bytes(data)
    again = Spill(other)
    assert (again.run, again.waiting) == ({"name": "é"}, 6)
    again.append('{"_step": 10}\n')
    lines = again.read(100)
    assert [json.loads(line)["_step"] for line in lines] == [4, 5, 6, 7, 8, 9, 10]
    again.done(lines)
    again.close()
    assert not other.exists()
    spill.close()
    assert path.exists()


def test_a_file_in_which_nothing_waits_does_not_grow(tmp_path):
    spill = Spill(tmp_path / "rows.jsonl", {})
    for i in range(30):
        spill.append(f'{{"_step": {i}, "text": "{"x" * 100_000}"}}\n')
        lines = spill.read(10)
        assert [json.loads(line)["_step"] for line in lines] == [i]
        spill.done(lines)
    assert spill.path.stat().st_size < 2 << 20
    assert spill.waiting == 0
    spill.close()


def test_what_a_tracker_may_still_have_in_memory_is_not_counted_as_sent(tmp_path):
    now = [0.0]
    spill = Spill(tmp_path / "rows.jsonl", {}, lag=5.0, clock=lambda: now[0])

    def after_a_crash():
        copy = tmp_path / "copy.jsonl"
        copy.write_bytes(spill.path.read_bytes())
        again = Spill(copy)
        steps = [json.loads(line)["_step"] for line in again.read(10**6)]
        again.close()
        copy.unlink(missing_ok=True)
        return steps

    for i in range(4):
        now[0] = 2.0 * i
        spill.append(f'{{"_step": {i}}}\n')
        spill.done(spill.read(10))
    assert after_a_crash() == [1, 2, 3]
    # Neither does the file grow, nor is anything forgotten, when it is made smaller.
    for i in range(4, 50):
        now[0] = 2.0 * i
        spill.append(f'{{"_step": {i}, "text": "{"x" * 200_000}"}}\n')
        spill.done(spill.read(10))
        assert after_a_crash() == [i - 2, i - 1, i]
    assert spill.path.stat().st_size < 3 << 20
    spill.close()
    assert not spill.path.exists()


@given(
    st.lists(st.tuples(st.sampled_from(["append", "send", "wait"]), st.integers(1, 8)), max_size=60)
)
def test_whatever_happens_to_a_file_nothing_is_lost_or_repeated(actions):
    """A model: rows that were appended, those handed over and when, and those that are safe."""
    now, appended, handed = 0.0, 0, []
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr("spoolax.loggers.trackers._spill.LARGE", 300)
        patch.setattr("spoolax.loggers.trackers._spill.PIECE", 50)
        path, copy = Path(place, "rows.jsonl"), Path(place, "copy.jsonl")
        spill = Spill(path, {}, lag=5.0, clock=lambda: now)
        for action, count in actions:
            if action == "append":
                rows = range(appended, appended + count)
                spill.append("".join(f'{{"_step": {i}}}\n' for i in rows), count)
                appended += count
            elif action == "send":
                lines = spill.read(count)
                steps = [json.loads(line)["_step"] for line in lines]
                assert steps == list(range(len(handed), min(len(handed) + count, appended)))
                handed += [now] * len(lines)
                if lines:
                    spill.done(lines)
            else:
                now += count
                assert spill.tick() == any(at > now - 5 for at in handed)
            assert spill.waiting == appended - len(handed)
            copy.write_bytes(path.read_bytes())  # What is left if the process is killed here.
            again = Spill(copy)
            left = [json.loads(line)["_step"] for line in again.read(10**6)]
            again.close()
            first = left[0] if left else appended
            assert left == list(range(first, appended))
            assert first <= len(handed)
            assert all(at <= now - 5 for at in handed[:first])
            assert action != "wait" or first == sum(at <= now - 5 for at in handed)
        spill.close()
        assert path.exists() == (appended > len(handed))


def test_a_file_that_was_removed_is_there_again(tmp_path):
    spill = Spill(tmp_path / "place" / "rows.jsonl", {"name": "one"})
    spill.append('{"_step": 0}\n{"_step": 1}\n', 2)
    spill.done(spill.read(1))
    spill.path.unlink()
    spill.path.parent.rmdir()
    spill.close()
    again = Spill(spill.path)
    assert (again.run, again.read(10)) == ({"name": "one"}, ['{"_step": 1}\n'])
    again.close()


def test_a_file_that_was_removed_is_there_again_though_the_tracker_does_not_answer(make, site):
    with pytest.warns(UnsentWarning, match="could not send 2 rows"):
        with make(patience=0.1) as logger:
            site.answers.clear()
            logger.log({"x": 0}, 0)
            logger.log({"x": 1}, 1)
            spoolax.flush()
            while not site.calls:
                time.sleep(0.01)
            logger._channel.spill.path.unlink()
    assert len(waiting_files(logger.directory)) == 1
    site.answers.set()


def test_a_file_that_could_not_be_begun_leaves_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr("os.pwrite", full)
        Spill(tmp_path / "rows.jsonl", {})
    Spill(tmp_path / "rows.jsonl", {}).close()


def test_a_position_that_cannot_be_written_is_written_later(tmp_path, monkeypatch):
    spill = Spill(tmp_path / "rows.jsonl", {})
    spill.append("".join(f'{{"_step": {i}}}\n' for i in range(4)), 4)
    full = lambda *args: (_ for _ in ()).throw(OSError("no space left"))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        spill.done(spill.read(2))
    assert [json.loads(line)["_step"] for line in spill.read(1)] == [2]
    spill.done(spill.read(1))
    assert spill.waiting == 1
    spill.close()
    again = Spill(spill.path)
    assert [json.loads(line)["_step"] for line in again.read(9)] == [3]
    again.close()


def test_a_file_is_replaced_by_a_shorter_one_at_once(tmp_path, monkeypatch):
    """Whatever write or rename of it is the last one before a crash, no row is missing."""
    monkeypatch.setattr("spoolax.loggers.trackers._spill.LARGE", 50)
    now, states = [0.0], []
    spill = Spill(tmp_path / "rows.jsonl", {}, lag=5.0, clock=lambda: now[0])
    for name in ("pwrite", "replace", "ftruncate"):
        act = getattr(os, name)

        def watched(*args, act=act):
            found = act(*args)
            states.append(spill.path.read_bytes())
            return found

        monkeypatch.setattr(f"os.{name}", watched)
    for i in range(30):
        now[0] = 2.0 * i
        spill.append(f'{{"_step": {i}}}\n')
        states.clear()
        spill.done(spill.read(1))
        for state in tuple(states):
            copy = tmp_path / "copy.jsonl"
            copy.write_bytes(state)
            again = Spill(copy)
            steps = [json.loads(line)["_step"] for line in again.read(100)]
            assert steps == list(range(steps[0], i + 1))
            assert steps[0] <= max(i - 2, 0)
            again.close()
    assert spill.path.stat().st_size < 1000
    spill.close()


def test_any_byte_may_be_in_a_file(make, site, tmp_path):
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        site.is_away.set()
        for i in range(2500):
            logger.log({"x": i}, i)
    (left,) = waiting_files(tmp_path)
    data = left.read_bytes()
    place = data.index(b'"x": 1234')
    left.write_bytes(data[:place] + b"\r" + data[place + 1 :])
    site.is_away.clear()
    with pytest.warns(UnsentWarning, match="did not take 1 row"):
        assert replay(left, site=site) == 2499


def test_large_rows_are_not_all_read_at_once(tmp_path):
    spill = Spill(tmp_path / "rows.jsonl", {})
    for i in range(30):
        spill.append(f'{{"_step": {i}, "text": "{"x" * 1_000_000}"}}\n')
    assert 3 <= len(spill.read(1000)) <= 6
    spill.close()


def test_rows_longer_than_a_read_come_whole(tmp_path):
    spill = Spill(tmp_path / "rows.jsonl", {})
    spill.append('{"_step": 0, "text": "' + "x" * 1_000_000 + '"}\n{"_step": 1}\n', 2)
    assert len(spill.read(1)[0]) > 1_000_000
    assert len(spill.read(5)) == 2
    spill.close()


def test_everything_arrives_once_and_nothing_stays_behind(make, site, tmp_path):
    with make() as logger:
        for i in range(100):
            logger.log({"x": jnp.float32(i)}, i)
    assert site.runs["one"].numbers() == list(range(100))
    assert site.runs["one"].ended == "well"
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_away_gets_everything_when_it_is_back(make, site, caplog):
    site.is_away.set()
    with make() as logger:
        for i in range(10):
            logger.log({"x": i}, i)
        spoolax.flush()
        while site.calls < 2:
            time.sleep(0.01)
        assert not site.runs
        site.is_away.clear()
    assert site.runs["one"].numbers() == list(range(10))
    told = [r for r in caplog.records if "cannot send" in r.message]
    assert len(told) == 1
    assert "nobody is there" in told[0].message


def test_a_tracker_that_goes_away_amid_a_run_misses_nothing(make, site):
    with make() as logger:
        for i in range(10):
            logger.log({"x": i}, i)
        assert logger.flush()
        site.is_away.set()
        for i in range(10, 20):
            logger.log({"x": i}, i)
        assert not logger.flush()
        site.is_away.clear()
    assert site.runs["one"].numbers() == list(range(20))


def test_what_could_not_be_sent_can_be_replayed(make, site, tmp_path):
    with pytest.warns(UnsentWarning, match=r"ToSite could not send 9 rows.*replay\("):
        with make(config={"lr": 0.1}) as logger:
            logger.log({"x": 0}, 0)
            assert logger.flush()
            site.is_away.set()
            for i in range(1, 10):
                logger.log({"x": i}, i)
    (left,) = waiting_files(tmp_path)
    assert left.read_text().count("\n") == 11
    with pytest.warns(UnsentWarning, match="could not send 9 rows"):
        assert replay(left, site=site) == 0
    site.is_away.clear()
    assert replay(left, site=site) == 9
    assert site.runs["one"].numbers() == list(range(1, 10))
    assert site.runs["one"].config == {"lr": 0.1}
    assert site.runs["one"].run_id == logger.run_id
    assert not left.exists()


def test_a_slow_tracker_does_not_hold_up_the_program(make, site, tmp_path):
    site.answers.clear()
    with pytest.warns(UnsentWarning, match="could not send 1000 rows"):
        with make(patience=0.3) as logger:
            for i in range(1000):
                logger.log({"x": i}, i)
            spoolax.flush()  # Does not wait for the tracker.
            assert not site.runs
    assert len(waiting_files(tmp_path)) == 1
    site.answers.set()
    assert logger._channel.over.wait(10)  # What was under way when it was closed.
    assert len(waiting_files(tmp_path)) == 1


def test_what_a_killed_process_has_flushed_can_be_sent(make, site, tmp_path):
    program = """
import sys, time, spoolax
from spoolax.loggers import TrackerLogger

class Hanging(TrackerLogger):
    most = 1
    def send(self, rows):
        if rows[0].step >= 50:
            time.sleep(1000)

with Hanging(directory=sys.argv[1]) as logger:
    for i in range(100):
        logger.log({"x": i}, i)
    spoolax.flush()
    while logger._channel.waiting > 50:
        time.sleep(0.01)
    print("flushed", flush=True)
    time.sleep(1000)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "flushed\n"
        process.kill()
    (left,) = waiting_files(tmp_path)
    assert replay(left, to=make()) == 50
    assert site.runs["one"].numbers() == list(range(50, 100))


def test_rows_that_are_refused_are_put_aside_and_the_others_sent(make, site, tmp_path, caplog):
    with pytest.warns(UnsentWarning, match="did not take 2 rows"), make() as logger:
        for i in range(10):
            logger.log({"bad" if i in (3, 7) else "x": i}, i)
    assert site.runs["one"].numbers() == [0, 1, 2, 4, 5, 6, 8, 9]
    (aside,) = waiting_files(tmp_path)
    assert [json.loads(line)["bad"] for line in aside.read_text().splitlines()[1:]] == [3, 7]
    assert len([r for r in caplog.records if "does not take a row" in r.message]) == 1


def test_lines_that_are_no_rows_are_put_aside(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning, match="could not send 2 rows"), make() as logger:
        logger.log({"x": 0}, 0)
        logger.log({"x": 1}, 1)
    (left,) = waiting_files(tmp_path)
    with open(left, "ab") as file:
        file.write(b'\xff\xfe\n{"x": 1}\n5\n{"_step": 2, "x": 2}\n')
    site.is_away.clear()
    with pytest.warns(UnsentWarning, match="did not take 3 rows"):
        assert replay(left, site=site) == 3
    assert site.runs["one"].numbers() == [0, 1, 2]
    (aside,) = waiting_files(tmp_path)
    assert aside.read_bytes().splitlines()[1:] == [b"\xff\xfe", b'{"x": 1}', b"5"]


def test_a_file_in_use_is_left_alone(make, site, tmp_path, caplog):
    site.is_away.set()
    with make() as logger:
        logger.log({"x": 0}, 0)
        spoolax.flush()
        (left,) = waiting_files(tmp_path)
        (tmp_path / "spoolax-unsent" / "other.jsonl").write_text("{}\n")
        with pytest.raises(LogFileError, match="in use"):
            replay(left, site=site)
        assert replay(left.parent, site=site) == 0
        assert "in use, and left to who uses it" in caplog.text
        site.is_away.clear()
    assert site.runs["one"].ended == "well"
    assert site.runs["one"].numbers() == [0]


def test_a_short_flush_does_not_end_the_patience(make, site):
    site.answers.clear()
    with make() as logger:
        logger.log({"x": 0}, 0)
        assert not logger.flush(0.1)
        threading.Timer(0.5, site.answers.set).start()
    assert site.runs["one"].numbers() == [0]


def test_flush_is_about_all_runs_and_about_what_was_refused(make, site):
    with make(name=None) as logger:
        states = jax.vmap(logger.init)(jnp.arange(3))
        jax.vmap(lambda s, x: logger.tap(scalars_only, s)(x))(states, jnp.arange(3.0))
        assert logger.flush()
        assert [len(run.rows) for run in site.runs.values()] == [6, 6, 6]
    with pytest.warns(UnsentWarning, match="did not take 1 row"), make() as logger:
        logger.log({"bad": 0}, 0)
        assert not logger.flush()


def test_a_run_that_fails_does_not_hold_up_the_others(make, site):
    class OneIsWrong(ToSite):
        def send(self, rows):
            if self.config.get("seed") == 2:  # Which is closed first.
                raise RuntimeError("not this one")
            super().send(rows)

        def finish(self, failed):
            time.sleep(0.1)
            super().finish(failed)

    with pytest.warns(UnsentWarning, match=r"could not send 6 rows \(RuntimeError: not this one"):
        with OneIsWrong(site=site, directory=make().directory) as logger:
            states = jax.vmap(logger.init)(jnp.arange(3))
            jax.vmap(lambda s, x: logger.tap(scalars_only, s)(x))(states, jnp.arange(3.0))
    assert [len(site.runs[f"seed-{i}"].rows) for i in range(3)] == [6, 6, 0]
    assert [site.runs[f"seed-{i}"].ended for i in range(3)] == ["well", "well", None]


def test_who_interrupts_the_end_does_not_wait_for_any_run(make, site):
    site.answers.clear()

    def interrupted(*args):
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.warns(UnsentWarning, match="could not send 18 rows of 3 runs"):
        with pytest.raises(KeyboardInterrupt), make(name=None, patience=60) as logger:
            states = jax.vmap(logger.init)(jnp.arange(3))
            jax.vmap(lambda s, x: logger.tap(scalars_only, s)(x))(states, jnp.arange(3.0))
            spoolax.flush()
            waits = iter([interrupted])
            wait = logger._outbox.wait
            logger._outbox.wait = lambda *args: next(waits, wait)(*args)
    assert time.monotonic() - begun < 30
    site.answers.set()


def test_threads_end_with_their_loggers(make, site, tmp_path):
    class Refusing(ToSite):
        def connect(self):
            raise ValueError("never")

    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("spoolax-")]

    with make():
        pass
    with pytest.raises(TrackerError), Refusing(site=site, directory=tmp_path):
        pass
    for thread in threads():
        thread.join(10)
    assert threads() == []


def test_a_shaky_tracker_gets_everything_once_and_in_order(site, tmp_path, monkeypatch):
    monkeypatch.setattr("spoolax.loggers.trackers._channel.PAUSES", (0.001, 0.002))
    monkeypatch.setattr("spoolax.loggers.trackers._outbox.ATTEMPTS", 10**6)
    monkeypatch.setattr("spoolax.loggers.trackers._outbox.LINGER", 0.001)
    chance = random.Random(0)

    class Shaky(ToSite):
        def connect(self):
            if chance.random() < 0.5:
                raise ConnectionError
            super().connect()

        def send(self, rows):
            if chance.random() < 0.3:
                raise OSError
            super().send(rows)

    def train(x):
        def body(x):
            spoolax.log({"x": x})
            return x + 1

        return jax.lax.while_loop(lambda x: x < 40, body, x)

    starts = jnp.arange(20.0)
    with Shaky(site=site, directory=tmp_path) as logger:
        jax.jit(jax.vmap(lambda x: logger.tap(train, logger.init(x.astype(int)))(x)))(starts)
    for i in range(20):
        assert site.runs[f"seed-{i}"].numbers() == list(range(i, 40))
        assert site.runs[f"seed-{i}"].ended == "well"
    assert list(tmp_path.iterdir()) == []


def test_loggers_with_arguments_of_their_own_have_seeds(site, tmp_path):
    class Own(ToSite):
        def __init__(self, site, place):
            super().__init__(site=site, directory=place, name="own", run_id="id")

    with Own(site, tmp_path) as logger:
        jax.vmap(logger.init)(jnp.arange(2))
    assert sorted(site.runs) == ["own-seed-0", "own-seed-1"]
    assert [run.run_id for run in site.runs.values()] == ["id-0", "id-1"]


def test_long_names_and_odd_ones_are_fine(make, site):
    with make(name="学" * 90, project="a/b\n" * 90) as logger:
        logger.log({"x": 1}, 0)
    assert site.runs["学" * 90].numbers() == [1]


def test_rows_before_a_refused_one_are_not_sent_again(make, site):
    """Though the tracker goes away while it is found out which of them it refuses."""

    class Interrupted(ToSite):
        def send(self, rows):
            if len(rows) == 1 and rows[0].step == 2 and site.calls < 10:
                site.calls = 10
                raise ConnectionError
            super().send(rows)

    with pytest.warns(UnsentWarning, match="did not take 1 row"):
        with Interrupted(site=site, name="one", directory=make().directory) as logger:
            with logger._channel._busy:  # Until all are there.
                for i in range(3):
                    logger.log({"bad" if i == 1 else "x": i}, i)
                spoolax.flush()
    assert site.runs["one"].numbers() == [0, 2]


def test_a_run_that_could_not_be_closed_is_told(make, site):
    with pytest.warns(UnsentWarning, match="could not close its run .*nobody is there"):
        with make() as logger:
            logger.log({"x": 1}, 0)
            assert logger.flush()
            site.is_away.set()
    assert site.runs["one"].numbers() == [1]


@pytest.mark.parametrize("can_finish", [True, False])
def test_rows_in_the_memory_of_a_tracker_that_is_given_up_are_not_lost(
    make, site, tmp_path, can_finish
):
    class Slow(ToSite):
        """Keeps rows for itself, until it is asked for them."""

        lag = 1000.0
        kept = ()

        def send(self, rows):
            if any(row.step == 2 for row in rows):
                raise OSError("not now")
            self.kept = [*self.kept, *rows]

        def finish(self, failed):
            if not can_finish:
                raise OSError("not now, either")
            self.rows += self.kept

    with pytest.warns(UnsentWarning, match=f"could not send {1 if can_finish else 3} row"):
        with Slow(name="one", site=site, directory=tmp_path) as logger:
            for i in range(2):
                logger.log({"x": i}, i)
            assert logger.flush()
            logger.log({"x": 2}, 2)
    assert site.runs["one"].numbers() == ([0, 1] if can_finish else [])
    (left,) = waiting_files(tmp_path)
    assert replay(left, to=make(name="two")) == (1 if can_finish else 3)


@pytest.mark.parametrize("hangs_at", [2, "finish"])
def test_rows_in_the_memory_of_a_tracker_that_hangs_are_not_lost(make, site, tmp_path, hangs_at):
    go_on = threading.Event()

    class Hangs(ToSite):
        lag = 1000.0

        def send(self, rows):
            if any(row.step == hangs_at for row in rows):
                go_on.wait(20)

        def finish(self, failed):
            go_on.wait(20)

    with pytest.warns(UnsentWarning, match="could not send 4 rows"):
        with Hangs(site=site, directory=tmp_path, patience=0.5) as logger:
            for i in range(4):
                logger.log({"x": i}, i)
                if i == 1:
                    assert logger.flush()
    (left,) = waiting_files(tmp_path)
    go_on.set()
    assert logger._channel.over.wait(20)
    assert replay(left, to=make()) == 4
    assert site.runs["one"].numbers() == [0, 1, 2, 3]


def test_rows_that_could_not_be_written_do_not_wait_for_others(make, site, monkeypatch):
    append, is_full = Spill.append, [True]

    def shaky(*args):
        if is_full:
            raise OSError("no space left")
        append(*args)

    monkeypatch.setattr(Spill, "append", shaky)
    monkeypatch.setattr("spoolax.loggers.trackers._channel.FULL", 0.01)
    with make() as logger:
        logger.log({"x": 0}, 0)
        spoolax.flush()
        assert not logger.flush(0.1)
        is_full.clear()
        end = time.monotonic() + 20
        while "one" not in site.runs or not site.runs["one"].rows:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert logger.flush()


def test_who_interrupts_the_end_keeps_what_was_logged(make, site, tmp_path, monkeypatch):
    """Though it is still on its way to the file."""
    wait, release = type(host).wait, threading.Event()

    def interrupted(self):
        monkeypatch.setattr(type(host), "wait", wait)
        threading.Timer(0.1, release.set).start()
        raise KeyboardInterrupt

    site.is_away.set()
    with pytest.warns(UnsentWarning, match="could not send 100 rows"):
        with pytest.raises(KeyboardInterrupt), make() as logger:
            put = logger._channel.put
            logger._channel.put = lambda *args: release.wait(20) and put(*args)
            for i in range(100):
                logger.log({"x": i}, i)
            monkeypatch.setattr(type(host), "wait", interrupted)
    (left,) = waiting_files(tmp_path)
    site.is_away.clear()
    assert replay(left, site=site) == 100


def test_a_process_that_was_forked_leaves_the_run_alone(make, site, monkeypatch):
    with make() as logger:
        logger.log({"x": 1}, 0)
        assert logger.flush()
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: -1)
            with pytest.raises(LoggerStateError, match="another process"):
                logger.put("{}\n")
            logger.close(None)
        logger.log({"x": 2}, 1)
    assert site.runs["one"].numbers() == [1, 2]


def test_a_disk_that_is_full_is_not_tried_for_every_row(make, site, monkeypatch):
    attempts = []

    def full(*args):
        attempts.append(args)
        raise OSError("no space left")

    with make() as logger:
        with monkeypatch.context() as patch:
            patch.setattr(Spill, "append", full)
            patch.setattr("spoolax.loggers.trackers._channel.FULL", 1000.0)
            for i in range(500):
                logger.log({"x": i}, i)
            spoolax.flush()
    assert len(attempts) == 1
    assert site.runs["one"].numbers() == list(range(500))


def test_the_file_says_that_the_run_is_there_whichever_was_there_first(make, site):
    with make() as logger:
        _ = logger.native
        logger.log({"x": 1}, 0)
        assert logger.flush()
        assert logger._channel.spill.run["connected"]


def test_what_fails_before_it_logs_anything_has_no_run(make, site, tmp_path):
    with pytest.raises(ZeroDivisionError), make():
        _ = 1 / 0
    assert not site.runs
    assert not waiting_files(tmp_path)


def test_keys_are_not_shown(make):
    logger = make(run_id="mine", api_key="secret")
    assert repr(logger) == "<ToSite(name='one', project='spoolax', run_id='mine'), new>"


def test_seeds_that_are_refused_are_told_once(make, site, tmp_path, caplog):
    class Refusing(ToSite):
        def connect(self):
            raise ValueError("there is no such project")

    with pytest.warns(UnsentWarning), pytest.raises(Exception, match="no such project"):
        with Refusing(site=site, directory=tmp_path) as logger:
            states = jax.vmap(logger.init)(jnp.arange(3))
            jax.vmap(lambda s, x: logger.tap(scalars_only, s)(x))(states, jnp.arange(3.0))
            assert not logger.flush(1)
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1


def test_a_run_that_cannot_be_opened_is_an_error_at_the_end(make, site, tmp_path):
    class Refusing(ToSite):
        def connect(self):
            raise ValueError("there is no such project")

    logger = Refusing(site=site, directory=tmp_path)
    with (
        pytest.warns(UnsentWarning, match="could not send 1 row"),
        pytest.raises(TrackerError, match="could not open its run: there is no such project"),
        logger,
    ):
        logger.log({"x": 1}, 0)
    assert len(waiting_files(tmp_path)) == 1


def test_rows_that_cannot_be_written_are_kept_for_a_while(make, site, tmp_path, caplog):
    place = tmp_path / "place"
    with make(spill=place) as logger:
        place.rmdir()
        place.write_text("in the way")
        for i in range(5):
            logger.log({"x": i}, i)
        spoolax.flush()
        assert not site.runs
        place.unlink()
        logger.log({"x": 5}, 5)
    assert site.runs["one"].numbers() == list(range(6))
    assert ["cannot write" in record.message for record in caplog.records] == [True]
    assert list(place.iterdir()) == []  # It is the user's.


def test_rows_that_can_never_be_written_are_an_error(make, site, tmp_path):
    place = tmp_path / "place"
    with pytest.raises(LogFileError, match=r"could not write 5 rows.*`spill=`"):
        with make(spill=place) as logger:
            place.rmdir()
            place.write_text("in the way")
            for i in range(5):
                logger.log({"x": i}, i)
    assert site.runs["one"].ended == "well"


def test_a_tracker_that_exits_is_one_that_is_away(make, site, monkeypatch):
    def exit_once(self):
        monkeypatch.undo()
        raise SystemExit(3)

    monkeypatch.setattr(ToSite, "connect", exit_once)
    with make() as logger:
        logger.log({"x": 1}, 0)
    assert site.runs["one"].numbers() == [1]


def test_a_run_that_fails_is_said_to_have(make, site):
    with pytest.raises(ZeroDivisionError), make() as logger:
        logger.log({"x": 1}, 0)
        _ = 1 / 0
    assert site.runs["one"].ended == "failed"
    assert site.runs["one"].numbers() == [1]


def test_every_seed_has_a_run_with_what_is_its_own(make, site):
    def train(key):
        def body(x, i):
            x = x + jax.random.normal(jax.random.fold_in(key, i))
            spoolax.log({"x": x}, step=i, episode=i // 5)
            return x, x

        return jax.lax.scan(body, jnp.float32(0), jnp.arange(20))[1]

    keys = jax.random.split(jax.random.key(0), 5)
    with make(name="walk", config={"lr": 1, "seed": 42}) as logger:
        paths = jax.jit(jax.vmap(lambda key: logger.tap(train, logger.init(key))(key)))(keys)
    assert sorted(site.runs) == [f"walk-seed-{i}" for i in range(5)]
    assert len({run.group for run in site.runs.values()}) == 1
    for i, path in enumerate(np.asarray(paths)):
        run = site.runs[f"walk-seed-{i}"]
        assert run.config == {"lr": 1, "seed": i, "base_seed": 42}
        assert run.numbers() == path.tolist()
        assert [row.steps for row in run.rows] == [
            {"step": i, "episode": i // 5} for i in range(20)
        ]


def scalars_only(x):
    def body(x, i):
        spoolax.log({"x": x, "n": i, "odd": i % 2 == 1, "bf": x.astype(jnp.bfloat16)}, step=i)
        return x / (3.0 - i.astype(x.dtype)), None

    return jax.lax.scan(body, x, jnp.arange(6))[0]


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


def test_a_run_without_entries_is_opened_nevertheless(make, site):
    with make():
        pass
    assert site.runs["one"].ended == "well"


def test_the_object_of_the_tracker_can_be_had(make, site):
    with make() as logger:
        assert logger.native == []
        assert list(site.runs) == ["one"]
        logger.log({"x": 1}, 0)
    assert len(logger.native) == 1
    with pytest.raises(spoolax.errors.LoggerStateError):
        _ = make().native
    site.is_away.set()
    with pytest.warns(UnsentWarning, match="could not open its run"):
        with make() as logger, pytest.raises(TrackerError, match="nobody is there"):
            _ = logger.native


def test_seeds_that_could_not_be_sent_are_told_once(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning) as caught:
        with make(name=None) as logger:
            jax.vmap(lambda x: logger.tap(scalars_only, logger.init(x.astype(int)))(x))(
                jnp.arange(3.0)
            )
            assert sorted(logger.runs) == [0, 1, 2]  # They are there as soon as they are asked for.
    (told,) = caught
    assert "could not send 18 rows of 3 runs" in str(told.message)
    assert str(tmp_path / "spoolax-unsent") + "'" in str(told.message)
    assert told.filename == __file__
    site.is_away.clear()
    assert replay(tmp_path / "spoolax-unsent", site=site) == 18
    assert sorted(site.runs) == ["seed-0", "seed-1", "seed-2"]
    assert site.runs["seed-1"].config == {"seed": 1}


def test_to_resume_needs_to_know_what(make):
    with pytest.raises(LogValueError, match="which run to go on with"):
        make(name=None, resume=True)
    assert make(resume=True).run_id == "one"
    assert make(resume=True, run_id="two").run_id == "two"


def test_any_jsonl_file_can_be_sent(make, site, tmp_path):
    path = tmp_path / "log.jsonl"
    with loggers.JsonlLogger(path) as logger:
        for i in range(5):
            logger.log({"x": i, "nan": np.nan, "v": np.arange(2.0)}, i)
    with pytest.raises(LogValueError, match="does not say which tracker"):
        replay(path)
    assert replay(path, to=make()) == 5
    assert site.runs["one"].numbers() == list(range(5))
    assert site.runs["one"].numbers("v/1") == [1.0] * 5
    assert path.exists()


def test_entries_of_a_jsonl_file_become_what_they_would_be(make, site, tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    names = ("_texts", "_steps", "_histograms", "_images", "_axis")
    with loggers.JsonlLogger(path) as logger:
        logger.log({"w": np.arange(100.0), "few": np.arange(2), "grey": np.eye(3)}, 0)
        logger.log({**dict.fromkeys(names, 1.0), "text": "hello"}, 1)
        logger.tap(jax.vmap(lambda x: jax.lax.cond(x > 1, lambda: log_lane(x), lambda: None)))(
            jnp.arange(3.0)
        )
    with open(path, "a") as file:
        file.write("nothing\n")
    assert replay(path, to=make(images="grey")) == 3
    first, second, lanes = site.runs["one"].rows
    assert (first.scalars, list(first.histograms)) == ({"few/0": 0, "few/1": 1}, ["w"])
    assert first.images["grey"].tolist() == (255 * np.eye(3)).tolist()
    assert (second.scalars, second.texts) == (dict.fromkeys(names, 1.0), {"text": "hello"})
    assert lanes.scalars == {"lane/2": 2.0}
    assert "1 lines of" in caplog.text


def log_lane(x):
    spoolax.log({"lane": x})


def test_a_file_that_cannot_be_read_does_not_keep_others_from_being_sent(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        logger.log({"x": 1}, 0)
    place = tmp_path / "spoolax-unsent"
    (place / "A.jsonl").write_text('{"_run": {}, "_sent": 27}\n')
    (place / "B.jsonl").write_text("[" * 100_000)
    (place / "C.jsonl").write_text('{"_run": {}, "_sent": -5}\n')
    site.is_away.clear()
    with pytest.raises(ExceptionGroup, match="could not be sent"):
        replay(place, site=site)
    assert site.runs["one"].numbers() == [1]


def test_a_file_that_another_process_has_just_sent_is_not_made_again(make, site, tmp_path):
    with pytest.raises(FileNotFoundError):
        Spill(tmp_path / "gone.jsonl")
    assert not (tmp_path / "gone.jsonl").exists()


def test_what_is_replayed_may_get_other_words_and_another_class(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning), make(patience=0) as logger:
        logger.log({"x": 1}, 0)
    (left,) = waiting_files(tmp_path)
    site.is_away.clear()
    assert replay(left, to=ToSite, site=site, directory=tmp_path, experiment="copy") == 1
    assert site.runs["one"].project == "copy"
    assert replay(left, site=site, experiment="another") == 1
    assert site.runs["one"].project == "another"


def test_many_rows_on_the_way_are_no_many_in_memory(make, site):
    """They are in the file."""
    site.is_away.set()
    with make() as logger:
        for i in range(2000):
            logger.log({"x": i}, i)
        spoolax.flush()
        assert logger._channel.waiting == 2000
        site.is_away.clear()
    assert site.runs["one"].numbers() == list(range(2000))


def test_wrong_words_are_refused_with_a_hint(make):
    with pytest.raises(LogTypeError, match=r"no option `projct`.*Did you mean `project`"):
        make(projct="x").__enter__()
    with pytest.raises(LogTypeError, match=r"no option `log_dir`.*Did you mean `directory`"):
        make(log_dir="x").__enter__()
    with pytest.raises(LogTypeError, match="`tags` are words"):
        make(tags=5)
    with pytest.raises(LogValueError, match="mean the same"):
        make(project="a", experiment="b")
    with pytest.raises(LogValueError, match="`mode='remote'` is not known"):
        make(mode="remote")
    with pytest.raises(LogValueError, match="`resume='maybe'`"):
        make(resume="maybe")
    with pytest.raises(LogTypeError, match="`name` is a string, not 3"):
        make(name=3)
    with pytest.raises(LogValueError, match="`histograms`"):
        make(histograms=-1)
    with pytest.raises(LogValueError, match="`patience` is a number of seconds"):
        make(patience="long")
    config = {}
    config["itself"] = config
    with pytest.raises(LogTypeError, match="itself somewhere in it"):
        make(config=config)
    with make() as logger, pytest.raises(LogTypeError, match="The step is NaN"):
        logger.log({"x": 1}, np.nan)


@pytest.mark.parametrize("kind", ["Wandb", "TensorBoard", "Mlflow", "Trackio"])
def test_a_tracker_that_is_not_installed_is_named_before_the_run(kind, monkeypatch):
    modules = {"TensorBoard": "tensorboardX"}
    monkeypatch.setitem(sys.modules, modules.get(kind, kind.lower()), None)
    with pytest.raises(spoolax.errors.MissingExtraError, match=rf"spoolax\[{kind.lower()}\]"):
        getattr(loggers, f"{kind}Logger")().__enter__()


def test_reports_are_those_of_spoolax(make, site, caplog):
    site.is_away.set()
    with caplog.at_level(logging.INFO, "spoolax"), make() as logger:
        logger.log({"x": 1}, 0)
        while site.calls < 1:
            time.sleep(0.01)
        site.is_away.clear()
    assert [record.name for record in caplog.records] == ["spoolax", "spoolax"]
    assert "sends again" in caplog.records[1].message
