"""The thread that sends rows to a tracker.

Trackers may be slow, be away for an hour, or raise anything. All of that happens on this thread,
which takes its rows from files, so the program does not notice. A logger shares one of them with
its runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...._tap.sinks import reports
from ...._threads import start_thread
from .channel import Channel
from .timing import Timing
from .unsent_rows import rows_text


class Outbox:
    """A thread that does the work of several channels, in turn."""

    def __init__(self, name: str, timing: Timing) -> None:
        self._name, self._timing = name, timing
        self._channels: list[Channel] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._hurry = threading.Event()
        self._told_failure = self._told_refusal = False
        self._progress = 0  # Pieces of work that were done.
        self._given_up_at = -1  # What `_progress` was when somebody waited in vain.
        self._is_interrupted = False
        self.finished: list[Channel] = []

    def add(self, channel: Channel) -> None:
        """Take on a channel."""
        with self._lock:
            self._channels.append(channel)

    def notify(self) -> None:
        """Say that there is something to do."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    # Without a thread, whoever waits does the work; until then, rows are on disk.
                    self._thread = start_thread(self._run, self._name)
        if not self._news.is_set():
            self._news.set()

    def finish(self, channel: Channel, patience: float) -> None:
        """Wait until a channel that is closing is done; or else leave its rows in their file.

        Gives up after `patience` seconds in which nothing moves: at once, if that was in vain for
        another channel, or was interrupted.
        """
        is_hopeless = self._is_interrupted or self._given_up_at == self._progress
        try:
            if channel.wanted or channel.waiting or channel.connected.is_set():
                was_done = self.wait(
                    [channel], channel.over.is_set, 0.0 if is_hopeless else patience
                )
                if not (was_done or channel.backoff.failures or channel.refusal):  # No answer.
                    self._given_up_at = self._progress
        except BaseException:
            self._is_interrupted = True
            raise
        finally:
            channel.abandon()
            self.finished.append(channel)
            self.notify()  # The thread may have nothing to do any more.

    def wait(self, channels: list[Channel], done: Callable[[], bool], patience: float) -> bool:
        """Wait until something is done; give up if a tracker is away, or nothing moves."""
        begun = moved = time.monotonic()
        seen, told = self._progress, False
        # A tracker may fail a few times in a row; one that did before gets one more attempt.
        most = self._timing.last_attempts
        limits = [max(most, channel.backoff.failures + 1) for channel in channels]
        for channel in channels:
            channel.backoff.retry_now()
        self._hurry.set()
        self.notify()
        while not done():
            if self._thread is None:
                self._work_once()
            time.sleep(0.005)
            now = time.monotonic()
            if self._progress != seen:
                seen, moved = self._progress, now
            if now - moved > patience:
                return False
            if not any(
                channel.has_work and channel.backoff.failures < limit
                for channel, limit in zip(channels, limits, strict=True)
            ):
                return done()  # Those that are left are away.
            if now - begun > self._timing.silence and not told:
                told = True
                _tell_waiting(channels)
        return True

    def _run(self) -> None:
        while True:
            late = [channel.tick() for channel in tuple(self._channels)]
            self._news.wait(self._timing.tick if any(late) else None)
            self._news.clear()
            hurried = self._hurry.is_set()
            self._hurry.clear()
            self._work()
            with self._lock:
                self._channels = [c for c in self._channels if not c.over.is_set()]
                if not self._channels:
                    self._thread = None
                    return
            if not hurried:
                self._hurry.wait(self._timing.gather)

    def _work(self) -> None:
        """Work until there is nothing to do."""
        while pauses := self._work_once():
            if all(pauses):
                # Others may have something new before that.
                self._hurry.wait(min(self._timing.gather, *pauses))
                self._hurry.clear()

    def _work_once(self) -> list[float]:
        """Work for every channel that has work; return for how long they have to pause."""
        todo = [channel for channel in tuple(self._channels) if channel.has_work]
        pauses = [channel.backoff.remaining() for channel in todo]
        for channel, pause in zip(todo, pauses, strict=True):
            if not pause:
                self._work_on(channel)
        for channel in tuple(self._channels):
            channel.tick()  # Also of those that wait for one that is away.
        return pauses

    def _work_on(self, channel: Channel) -> None:
        had_failed = channel.backoff.failures
        channel.work()
        if channel.refusal is not None:
            if not self._told_refusal:  # It would be the same for every seed.
                self._told_refusal = True
                reports.error("%s could not open its run.", channel.title, exc_info=channel.refusal)
        elif channel.backoff.error is None:
            self._progress += 1
            if had_failed:
                reports.info("%s is sending again.", channel.title)
        elif not self._told_failure:
            self._told_failure = True
            _tell_failure(channel)


def _tell_waiting(channels: list[Channel]) -> None:
    rows = sum(channel.waiting for channel in channels)
    reports.warning(
        "%s %s. Interrupt it to go on without that; no row is lost.",
        channels[0].title,
        f"still has {rows_text(rows)} to send" if rows else "is waiting for its tracker",
    )


def _tell_failure(channel: Channel) -> None:
    file = channel.unsent.file
    reports.warning(
        "%s cannot send%s. The program goes on; its rows wait%s, and are sent when that works "
        "again.",
        channel.title,
        channel.reason,
        "" if file is None else f" in {file.path}",
    )
