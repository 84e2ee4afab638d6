"""The run of a logger, and one for every seed: opened, failed, closed."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_tracker import Site, ToSite, log_seeds, scalars_only, waiting_files

import spoolax
from spoolax.errors import (
    LoggerStateError,
    TrackerError,
    UnsentWarning,
)
from spoolax.loggers import replay
from spoolax.testing import LoggerContract

pytestmark = pytest.mark.once


class TestContract(LoggerContract):
    def make(self, directory):
        return ToSite(site=Site(), directory=directory)

    def read(self, logger):
        return [(row.step, row.scalars) for row in logger.rows]


def test_flush_is_about_all_runs_and_about_what_was_refused(make, site):
    with make(name=None) as logger:
        states = jax.vmap(logger.init)(jnp.arange(3))
        jax.vmap(lambda s, x: logger.tap(scalars_only, s)(x))(states, jnp.arange(3.0))
        assert logger.flush()
        assert [len(run.rows) for run in site.runs.values()] == [6, 6, 6]
    with pytest.warns(UnsentWarning, match="refused 1 row"), make() as logger:
        logger.log({"bad": 0}, 0)
        assert not logger.flush()


def test_a_run_that_fails_does_not_hold_up_the_others(make, site):
    class OneIsWrong(ToSite):
        def send(self, rows):
            if self.config.get("seed") == 2:  # Which is closed first.
                raise RuntimeError("not this one")
            super().send(rows)

        def finish(self, ending):
            time.sleep(0.02)
            super().finish(ending)

    with pytest.warns(UnsentWarning, match=r"could not send 6 rows \(RuntimeError: not this one"):
        with OneIsWrong(site=site, directory=make().directory) as logger:
            log_seeds(logger)
    assert [len(site.runs[f"seed-{i}"].rows) for i in range(3)] == [6, 6, 0]
    assert [site.runs[f"seed-{i}"].ended for i in range(3)] == ["well", "well", None]


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


def test_loggers_with_arguments_of_their_own_have_seeds(site, tmp_path):
    class Own(ToSite):
        def __init__(self, site, place):
            super().__init__(site=site, directory=place, name="own", run_id="id")

    with Own(site, tmp_path) as logger:
        jax.vmap(logger.init)(jnp.arange(2))
    assert sorted(site.runs) == ["own-seed-0", "own-seed-1"]
    assert [run.run_id for run in site.runs.values()] == ["id-0", "id-1"]


def test_a_run_that_could_not_be_closed_is_reported(make, site):
    with pytest.warns(UnsentWarning, match="could not close its run .*nobody is there"):
        with make() as logger:
            logger.log({"x": 1}, 0)
            assert logger.flush()
            site.is_away.set()
    assert site.runs["one"].numbers() == [1]


def test_a_forked_process_leaves_the_run_alone(make, site, monkeypatch):
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


def test_what_fails_before_it_logs_anything_has_no_run(make, site, tmp_path):
    with pytest.raises(ZeroDivisionError), make():
        _ = 1 / 0
    assert not site.runs
    assert not waiting_files(tmp_path)


def test_seeds_that_are_refused_are_reported_once(make, site, tmp_path, caplog):
    class Refusing(ToSite):
        def connect(self):
            raise ValueError("there is no such project")

    with pytest.warns(UnsentWarning), pytest.raises(Exception, match="no such project"):
        with Refusing(site=site, directory=tmp_path) as logger:
            log_seeds(logger)
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


def test_a_run_that_fails_is_marked_as_failed(make, site):
    with pytest.raises(ZeroDivisionError), make() as logger:
        logger.log({"x": 1}, 0)
        _ = 1 / 0
    assert site.runs["one"].ended == "failed"
    assert site.runs["one"].numbers() == [1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), spoolax.StopRun("enough")])
def test_a_run_that_is_interrupted_is_marked_as_that(make, site, error):
    """And so are the runs of `init`."""
    with pytest.raises(type(error)), make() as logger:
        logger.log({"x": 1}, 0)
        logger.tap(lambda: spoolax.log({"x": 2.0}), logger.init(0))()
        raise error
    assert [run.ended for run in site.runs.values()] == ["interrupted"] * 2


def test_every_seed_has_a_run_with_what_is_its_own(make, site):
    def train(key):
        def body(x, i):
            x = jnp.sin(x)
            spoolax.log({"x": x}, step=i, episode=i // 5)
            return x, x

        start = jax.random.key_data(key)[0].astype(jnp.float32)
        return jax.lax.scan(body, start, jnp.arange(20))[1]

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


def test_a_run_without_entries_is_opened_as_well(make, site):
    with make():
        pass
    assert site.runs["one"].ended == "well"


def test_the_trackers_own_object_is_available(make, site):
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


def test_seeds_that_could_not_be_sent_are_reported_once(make, site, tmp_path):
    site.is_away.set()
    with pytest.warns(UnsentWarning) as caught:
        with make(name=None) as logger:
            jax.vmap(lambda x: logger.tap(scalars_only, logger.init(x.astype(int)))(x))(
                jnp.arange(3.0)
            )
            assert sorted(logger.runs) == [0, 1, 2]  # Whoever asks for them waits for them.
    (told,) = caught
    assert "could not send 18 rows of 3 runs" in str(told.message)
    assert str(tmp_path / "spoolax-unsent") + "'" in str(told.message)
    assert told.filename == __file__
    site.is_away.clear()
    assert replay(tmp_path / "spoolax-unsent", site=site) == 18
    assert sorted(site.runs) == ["seed-0", "seed-1", "seed-2"]
    assert site.runs["seed-1"].config == {"seed": 1}
