"""Rows reach a tracker that is slow, away, or picky, through a file and a thread."""

import json
import logging
import random
import threading
import time

import jax
import jax.numpy as jnp
import pytest
from fake_tracker import ToSite, log_seeds, waiting_files

import spoolax
from spoolax._tap.host import host
from spoolax.errors import (
    UnsentWarning,
)
from spoolax.loggers import replay
from spoolax.loggers.trackers._delivery.timing import Timing

pytestmark = pytest.mark.once


def test_a_file_that_was_removed_is_there_again_though_the_tracker_does_not_answer(make, site):
    with pytest.warns(UnsentWarning, match="could not send 2 rows"):
        with make(patience=0.1) as logger:
            site.answers.clear()
            logger.log({"x": 0}, 0)
            logger.log({"x": 1}, 1)
            spoolax.flush()
            site.wait_for_calls(1)
            logger._channel.unsent.file.path.unlink()
    assert len(waiting_files(logger.directory)) == 1
    site.answers.set()


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
        site.wait_for_calls(2)
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


def test_a_slow_tracker_does_not_hold_up_the_program(make, site, tmp_path):
    site.answers.clear()
    with pytest.warns(UnsentWarning, match="could not send 1000 rows"):
        with make(patience=0.05) as logger:
            for i in range(1000):
                logger.log({"x": i}, i)
            spoolax.flush()  # Does not wait for the tracker.
            assert not site.runs
    assert len(waiting_files(tmp_path)) == 1
    site.answers.set()
    assert logger._channel.over.wait(10)  # What was on its way when it was closed.
    assert len(waiting_files(tmp_path)) == 1


def test_rows_that_are_refused_are_put_aside_and_the_others_sent(make, site, tmp_path, caplog):
    with pytest.warns(UnsentWarning, match="refused 2 rows"), make() as logger:
        for i in range(10):
            logger.log({"bad" if i in (3, 7) else "x": i}, i)
    assert site.runs["one"].numbers() == [0, 1, 2, 4, 5, 6, 8, 9]
    (aside,) = waiting_files(tmp_path)
    assert [json.loads(line)["bad"] for line in aside.read_text().splitlines()[1:]] == [3, 7]
    assert len([r for r in caplog.records if "refused a row" in r.message]) == 1


def test_a_short_flush_does_not_end_the_patience(make, site):
    site.answers.clear()
    with make() as logger:
        logger.log({"x": 0}, 0)
        assert not logger.flush(0.05)
        threading.Timer(0.1, site.answers.set).start()
    assert site.runs["one"].numbers() == [0]


def test_an_interrupt_at_the_end_waits_for_no_run(make, site):
    site.answers.clear()

    def interrupted(*args):
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.warns(UnsentWarning, match="could not send 18 rows of 3 runs"):
        with pytest.raises(KeyboardInterrupt), make(name=None, patience=60) as logger:
            log_seeds(logger)
            spoolax.flush()
            waits = iter([interrupted])
            wait = logger._outbox.wait
            logger._outbox.wait = lambda *args: next(waits, wait)(*args)
    assert time.monotonic() - begun < 30
    site.answers.set()


def test_a_shaky_tracker_gets_everything_once_and_in_order(site, tmp_path):
    chance = random.Random(0)

    class Shaky(ToSite):
        _timing = Timing(0.001, 0.002, gather=0.001, last_attempts=10**6)

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


def test_rows_before_a_refused_one_are_not_sent_again(make, site):
    """Even if the tracker goes away while we find out which of them it refuses."""

    class Interrupted(ToSite):
        def send(self, rows):
            if len(rows) == 1 and rows[0].step == 2 and site.calls < 10:
                site.calls = 10
                raise ConnectionError
            super().send(rows)

    with pytest.warns(UnsentWarning, match="refused 1 row"):
        with Interrupted(site=site, name="one", directory=make().directory) as logger:
            with logger._channel._busy:  # Until all are there.
                for i in range(3):
                    logger.log({"bad" if i == 1 else "x": i}, i)
                spoolax.flush()
    assert site.runs["one"].numbers() == [0, 2]


@pytest.mark.parametrize("can_finish", [True, False])
def test_rows_in_the_memory_of_a_tracker_that_is_given_up_are_not_lost(
    make, site, tmp_path, can_finish
):
    class Slow(ToSite):
        """Keeps rows in memory until it is closed."""

        lag = 1000.0
        kept = ()

        def send(self, rows):
            if any(row.step == 2 for row in rows):
                raise OSError("not now")
            self.kept = [*self.kept, *rows]

        def finish(self, ending):
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

        def finish(self, ending):
            go_on.wait(20)

    with pytest.warns(UnsentWarning, match="could not send 4 rows"):
        with Hangs(site=site, directory=tmp_path, patience=0.1) as logger:
            for i in range(4):
                logger.log({"x": i}, i)
                if i == 1:
                    assert logger.flush()
    (left,) = waiting_files(tmp_path)
    go_on.set()
    assert logger._channel.over.wait(20)
    assert replay(left, to=make()) == 4
    assert site.runs["one"].numbers() == [0, 1, 2, 3]


def test_an_interrupt_at_the_end_keeps_what_was_logged(make, site, tmp_path, monkeypatch):
    """Even if it is still on its way to the file."""
    wait, release = type(host).wait, threading.Event()

    def interrupted(self):
        monkeypatch.setattr(type(host), "wait", wait)
        threading.Timer(0.02, release.set).start()
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


def test_the_file_says_that_the_run_exists_whichever_was_there_first(make, site):
    with make() as logger:
        _ = logger.native
        logger.log({"x": 1}, 0)
        assert logger.flush()
        assert logger._channel.unsent.file.run["connected"]


def test_a_tracker_that_exits_is_one_that_is_away(make, site, monkeypatch):
    def exit_once(self):
        monkeypatch.undo()
        raise SystemExit(3)

    monkeypatch.setattr(ToSite, "connect", exit_once)
    with make() as logger:
        logger.log({"x": 1}, 0)
    assert site.runs["one"].numbers() == [1]


def test_rows_on_their_way_are_not_in_memory(make, site):
    """They are in the file."""
    site.is_away.set()
    with make() as logger:
        for i in range(2000):
            logger.log({"x": i}, i)
        spoolax.flush()
        assert logger._channel.waiting == 2000
        site.is_away.clear()
    assert site.runs["one"].numbers() == list(range(2000))


def test_reports_are_those_of_spoolax(make, site, caplog):
    site.is_away.set()
    with caplog.at_level(logging.INFO, "spoolax"), make() as logger:
        logger.log({"x": 1}, 0)
        site.wait_for_calls(1)
        site.is_away.clear()
    assert [record.name for record in caplog.records] == ["spoolax", "spoolax"]
    assert "is sending again" in caplog.records[1].message
