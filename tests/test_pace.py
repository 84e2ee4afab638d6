"""How long the chunks of loops get, where pauses take time by themselves."""

import jax
import pytest

from spoolax._tap.pace import Pace


def chunks(pause, each, latency, slow=()):
    """The lengths of chunks of a loop, given the seconds that a pause and an iteration take.

    Some are slow for other reasons: those with these numbers.
    """
    pace, made, found = Pace(), 1000, []
    for number in range(60):
        elapsed = pause + made * each + (1.0 if number in slow else 0.0)
        made = pace.next("scan[0]", made, made, elapsed, latency)
        found.append(made)
    return found


@pytest.fixture
def over_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)


@pytest.mark.parametrize("each", [1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize("slow", [(), (30,), (30, 31), range(30, 34)], ids=str)
@pytest.mark.usefixtures("over_processes")
def test_pauses_that_take_longer_than_the_latency_are_few(each, slow):
    """Else programs over a slow network would do nothing but pause."""
    last = chunks(0.025, each, 0.02, slow)[-1]
    assert 0.05 < last * each < 0.3


@pytest.mark.parametrize("slow", [(), (30,), (30, 31), (30, 31, 32, 33)], ids=str)
@pytest.mark.usefixtures("over_processes")
def test_short_pauses_keep_to_the_latency(slow):
    found = chunks(1e-4, 1e-3, 0.1, slow)
    assert max(found[10:]) <= 110, "what was slow for other reasons is not put on pauses for long"
    assert 45 <= found[-1] <= 50


def test_one_process_keeps_to_the_latency():
    assert chunks(0.0, 1e-3, 0.1)[-1] == 50
