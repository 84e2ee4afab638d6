"""What fails is tried again after a pause that grows, and nothing sleeps to find that out."""

import json
import urllib.error

import pytest

from spoolax.errors import LogFileError, WebhookError
from spoolax.loggers import Ending, WebhookLogger
from spoolax.loggers._backoff import Backoff
from spoolax.loggers.trackers._delivery.channel import Channel
from spoolax.loggers.trackers._delivery.timing import Timing
from spoolax.loggers.trackers._delivery.unsent_file import UnsentFile
from spoolax.loggers.trackers._delivery.unsent_rows import UnsentRows

pytestmark = pytest.mark.once


class Clock:
    """A time that passes when somebody sleeps."""

    def __init__(self):
        self.now, self.sleeps = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_pauses_double_up_to_the_longest(clock):
    backoff = Backoff(0.25, 10.0, clock, clock.sleep)
    for _ in range(8):
        backoff.failed(OSError("away"))
        backoff.wait()
    assert clock.sleeps == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_fails_for_days_is_still_tried(clock):
    backoff = Backoff(0.25, 30.0, clock)
    for _ in range(10_000):
        backoff.failed(OSError("away"))
    assert backoff.remaining() == 30.0


def test_a_pause_passes_and_can_be_cut_short(clock):
    backoff = Backoff(1.0, 30.0, clock)
    assert backoff.remaining() == 0.0
    backoff.failed(OSError("away"))
    clock.now = 0.75
    assert backoff.remaining() == 0.25
    backoff.retry_now()
    assert (backoff.remaining(), backoff.failures) == (0.0, 1)


def test_a_success_resets_the_pauses(clock):
    backoff = Backoff(1.0, 30.0, clock)
    error = OSError("away")
    for _ in range(3):
        backoff.failed(error)
    assert (backoff.failures, backoff.error, backoff.remaining()) == (3, error, 4.0)
    backoff.succeeded()
    assert (backoff.failures, backoff.error, backoff.remaining()) == (0, None, 0.0)
    backoff.failed(error)
    assert backoff.remaining() == 1.0


def test_a_webhook_is_tried_again_after_pauses(clock, monkeypatch):
    def away(request, timeout):
        raise urllib.error.URLError("nobody is there")

    monkeypatch.setattr("urllib.request.urlopen", away)
    logger = WebhookLogger("http://localhost/hook", retries=3)
    with pytest.raises(WebhookError, match=r"after 4 attempts.*nobody is there"):
        logger._deliver(b"{}", Backoff(0.25, 0.75, clock, clock.sleep))
    assert clock.sleeps == [0.25, 0.5, 0.75]


class Away:
    """A tracker that is away for a while."""

    most = 10

    def __init__(self, clock, until):
        self._clock, self._until = clock, until
        self.attempts, self.steps, self.ending = [], [], None

    def connect(self):
        self.attempts.append(self._clock.now)
        if self._clock.now < self._until:
            raise ConnectionError("away")

    def send(self, rows):
        self.steps += [row.step for row in rows]

    def finish(self, ending):
        self.ending = ending

    def refuses(self, error):
        return False

    def about(self):
        return {"connected": True}


def test_a_channel_tries_again_after_pauses(clock, tmp_path):
    path, tracker = tmp_path / "rows.jsonl", Away(clock, until=20.0)
    timing = Timing(first_pause=1.0, longest_pause=5.0)
    channel = Channel(tracker, "Away", lambda: UnsentFile(path, {}), timing, clock)
    channel.put("".join(json.dumps({"_step": i}) + "\n" for i in range(3)), 3)
    channel.closing = Ending("finished")
    while channel.has_work:
        clock.now += channel.backoff.remaining()
        channel.work()
    assert tracker.attempts == [0.0, 1.0, 3.0, 7.0, 12.0, 17.0, 22.0]
    assert (tracker.steps, tracker.ending) == ([0, 1, 2], Ending("finished"))
    assert not path.exists()


def test_a_full_disk_is_tried_again_after_a_pause(clock, tmp_path, monkeypatch):
    attempts, append = [], UnsentFile.append

    def full(*args):
        attempts.append(clock.now)
        if clock.now < 2.5:
            raise OSError("no space left")
        append(*args)

    monkeypatch.setattr(UnsentFile, "append", full)
    path = tmp_path / "rows.jsonl"
    rows = UnsentRows("Rows", lambda: UnsentFile(path, {}), lambda: None, Timing(), clock)
    for i in range(16):
        clock.now = i / 4
        rows.put(json.dumps({"_step": i}) + "\n", 1)
    assert attempts == [0.0, 1.0, 2.0, 3.0, 3.25, 3.5, 3.75]
    assert (rows.in_file, rows.in_memory) == (16, 0)
    rows.file.close()


def test_rows_that_are_too_many_to_keep_in_memory_are_an_error(clock, tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(UnsentFile, "append", full)
    monkeypatch.setattr("spoolax.loggers.trackers._delivery.unsent_rows.MOST_HELD", 100)
    path = tmp_path / "rows.jsonl"
    rows = UnsentRows("Rows", lambda: UnsentFile(path, {}), lambda: None, Timing(), clock)
    rows.put("x" * 60 + "\n", 1)
    clock.now = 5.0
    with pytest.raises(LogFileError, match="could not write 2 rows to its file"):
        rows.put("x" * 60 + "\n", 1)
    rows.file.close()
