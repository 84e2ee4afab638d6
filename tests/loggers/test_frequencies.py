"""Frequencies say at which steps a logger acts."""

import pytest
from logger_cases import five

from spoolax import errors, loggers, testing
from spoolax.loggers import EveryNStep, EverySeconds, LogSpaced, Once, Steps
from spoolax.loggers._protocol.frequency import Schedule

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("frequency", "steps"),
    [
        (EveryNStep(1), list(range(12))),
        (EveryNStep(5), [0, 5, 10]),
        (Steps(3, 6), [3, 4, 5]),
        (Steps(10), [10, 11]),
        (Once(), [0]),
        (Once() & Steps(4), [4]),
        (Steps(0, 3) | EveryNStep(5), [0, 1, 2, 5, 10]),
        (Steps(0, 8) & EveryNStep(3), [0, 3, 6]),
        ((Steps(0, 8) & EveryNStep(3)) | Steps(11), [0, 3, 6, 11]),
        (LogSpaced(1), [0, 1, 10]),
    ],
)
def test_frequencies_say_which_steps(frequency, steps):
    schedule = Schedule(frequency)
    assert [step for step in range(12) if schedule.take(step)] == steps
    assert Schedule(frequency).take(steps[0]), "a frequency has no memory"


def test_log_spaced_steps_are_the_rounded_powers():
    powers = {0, *(round(10 ** (k / 7)) for k in range(7 * 5 + 1))}
    assert {step for step in range(10**5 + 1) if LogSpaced(7).due(step)} == powers


def test_seconds_are_counted_from_the_last_time():
    now = 100.0
    schedule = Schedule(EverySeconds(5), clock=lambda: now)
    taken = []
    for step in range(10):
        now += 2.0
        if schedule.take(step):
            taken.append(step)
    assert taken == [0, 3, 6, 9]


def test_frequencies_are_values():
    assert Once() | EveryNStep(3) == Once() | EveryNStep(3)
    assert len({EveryNStep(3), EveryNStep(3), Steps(0, 3)}) == 2
    assert repr((Once() | Steps(1)) & EveryNStep(2)).startswith("(Once() | Steps(")


@pytest.mark.parametrize(
    "make",
    [
        lambda: EveryNStep(0),
        lambda: EveryNStep(2.5),
        lambda: EverySeconds(0),
        lambda: LogSpaced(0),
        lambda: loggers.PrintLogger(every="often"),
        lambda: loggers.NullLogger().every(True),
        lambda: Once() | 3,
    ],
)
def test_frequencies_without_meaning_are_refused(make):
    with pytest.raises((ValueError, TypeError)):
        make()


def test_entries_of_several_calls_take_turns():
    """Else the second of two `log` calls would never be due."""
    with testing.capture(every=EverySeconds(3600)) as logger:
        logger.tap(five)()
    assert logger.values("i") == [0]
    assert logger.values("square") == [0]


def test_what_every_wraps_can_be_asked():
    with loggers.RingBufferLogger(10).every(2) as logger:
        logger.tap(five)()
    assert [record.step for record in logger.records] == [0, 0, 2, 2, 4, 4]
    with pytest.raises(AttributeError):
        _ = logger.nothing
    assert repr(loggers.RingBufferLogger(3)) == "<RingBufferLogger(3), new>"


def test_a_logger_that_is_open_can_be_thinned_out(capsys):
    """The one who has opened it closes it."""
    with loggers.PrintLogger() as logger:
        with logger.every(2) as thinned:
            for i in range(3):
                thinned.log({"x": i}, i)
        assert logger.is_open
        with pytest.raises(errors.LoggerStateError, match=r"with PrintLogger\(\.\.\.\)\.every\("):
            logger.every(2).log({"x": 1}, 0)
    assert capsys.readouterr().out.split() == ["step", "0", "x=0", "step", "2", "x=2"]
