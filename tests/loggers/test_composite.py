"""Several loggers as one: order, failures, and requests to stop."""

import logging

import pytest
from logger_cases import Spy, five

import spoolax
from spoolax import loggers, testing
from spoolax._tap.host import host

pytestmark = pytest.mark.once


def test_several_are_opened_in_order_and_closed_in_reverse():
    told = []
    with loggers.CompositeLogger(Spy("a", told), Spy("b", told)) as logger:
        logger.log({}, 0)
    assert told == ["a enters", "b enters", "a logs 0", "b logs 0", "b exits", "a exits"]
    assert loggers.MultiLogger is loggers.CompositeLogger


def test_if_one_cannot_be_opened_those_before_it_are_closed():
    told = []
    with pytest.raises(ValueError, match="b enters"):
        loggers.CompositeLogger(
            Spy("a", told), Spy("b", told, fails=["enters"]), Spy("c", told)
        ).__enter__()
    assert told == ["a enters", "b enters", "a exits with b enters"]


def test_if_one_fails_the_others_go_on_and_the_error_is_raised_at_the_end(caplog):
    told = []
    broken = Spy("b", told, fails=["logs"])
    with (
        pytest.raises(ValueError, match="b logs 0") as caught,
        loggers.CompositeLogger(Spy("a", told), broken, Spy("c", told)) as logger,
    ):
        logger.log({}, 0)
        logger.log({}, 1)
    assert [line for line in told if "logs" in line] == [
        f"{name} logs {step}" for step in range(2) for name in "abc"
    ]
    assert told[-3:] == ["c exits", "b exits", "a exits"]
    assert "2 times" in caught.value.__notes__[0]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1, "reported once"


def test_if_several_fail_all_errors_are_raised():
    told = []
    with (
        pytest.raises(ExceptionGroup) as caught,
        loggers.CompositeLogger(
            Spy("a", told, fails=["logs"]), Spy("b", told, fails=["exits"])
        ) as logger,
    ):
        logger.log({}, 0)
    assert sorted(map(str, caught.value.exceptions)) == ["a logs 0", "b exits"]


def test_what_fails_in_a_logger_does_not_hide_what_failed_in_the_run():
    told = []
    with (
        pytest.raises(KeyError) as caught,
        loggers.CompositeLogger(Spy("a", told, fails=["logs", "exits"])) as logger,
    ):
        logger.log({}, 0)
        raise KeyError("the run")
    assert any("a logs 0" in note for note in caught.value.__notes__)


def test_a_plain_context_manager_with_log_can_be_one_of_several():
    class Plain:
        def __init__(self):
            self.steps = []

        def __enter__(self):
            return self

        def log(self, state, step):
            self.steps.append(step)

        def __exit__(self, *error):
            pass

    plain = Plain()
    with loggers.CompositeLogger(plain, loggers.NullLogger()) as logger:
        logger.tap(five)()
    assert plain.steps == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(TypeError, match="not a logger"):
        loggers.CompositeLogger(print)


def test_one_that_stops_the_run_does_so_after_the_others_have_the_entry():
    captured = testing.capture()
    stopping = loggers.CheckLogger(lambda state: state["x"] < 3)
    with (
        pytest.raises(spoolax.StopRun),
        loggers.CompositeLogger(stopping, captured) as logger,
    ):
        for i in range(10):
            logger.log({"x": i}, i)
    assert captured.values("x") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt")),
        (spoolax.StopRun("enough"), ("interrupted", "enough")),
        (spoolax.Converged("flat"), ("finished", "flat")),
        (ValueError("no"), ("failed", "ValueError: no")),
        (ExceptionGroup("two", [spoolax.StopRun("a"), OSError()]), ("failed", "OSError")),
        (BaseExceptionGroup("one", [KeyboardInterrupt()]), ("interrupted", "KeyboardInterrupt")),
    ],
)
def test_all_know_how_the_run_ended(error, ending):
    told = []

    class Plain:
        def __enter__(self):
            return self

        def log(self, state, step):
            pass

        def __exit__(self, kind, error, trace):
            told.append(error)

    captured, ring = testing.capture(), loggers.RingBufferLogger(2)
    with pytest.raises(type(error)):
        with loggers.CompositeLogger(captured.every(2), Plain(), ring) as logger:
            assert logger.ending is None
            logger.init(0)
            raise error
    for one in (logger, captured, ring, *logger.runs.values()):
        assert one.ending == ending
    assert told == [None if ending[0] == "finished" else error], "of which it knows nothing"


def test_a_stop_that_comes_too_late_still_counts(tmp_path):
    """The program is over before anybody has looked."""
    ring = loggers.RingBufferLogger(3, tmp_path / "last.jsonl")
    check = loggers.CheckLogger(lambda logs: logs["i"] < 3, keys="i")
    composite = loggers.CompositeLogger(ring, check)
    with pytest.raises(spoolax.StopRun, match="At step 3"), composite as logger:
        logger.spool(five)()
    assert (tmp_path / "last.jsonl").exists()
    for one in (composite, ring, check):
        assert one.ending.status == "interrupted"


def test_ctrl_c_while_the_last_entries_are_awaited_is_an_interruption(monkeypatch):
    def pressed():
        monkeypatch.undo()
        raise KeyboardInterrupt

    captured = testing.capture()
    with pytest.raises(KeyboardInterrupt), captured as logger:
        logger.tap(five)()
        monkeypatch.setattr(host, "settle", pressed)
    assert captured.ending.status == "interrupted"
    assert len(captured.records) == 10
